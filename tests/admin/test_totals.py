"""What tenants and models have used, as tables: sorted, added up, and written as CSV."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

import pytest

from policies.price import Price
from proxy.admin.access import Visitor
from proxy.admin.overview import DAY
from proxy.admin.totals import COLUMNS, as_csv, order_rows, totals
from proxy.admin.views import used_of
from proxy.telemetry.tally import Tally
from tests.support.admin import BROWSER, CONFIGURED, Played, hashed, played
from tests.support.long_conversations import bearer
from tests.support.upstreams import CHAT, JSON, Header, ask, chat

if TYPE_CHECKING:
    from pathlib import Path

HTML: Header = (b"Accept", b"text/html")
VIEWER, AGENT = "ck-viewer-of-acme", "ck-agent-of-acme"
PRICES = {"m": Price(prompt=1e-6, completion=1e-5, cached=1e-7, written=1e-6, written_long=1e-6)}
SUMS = {
    ("acme", "m"): Tally(10, passed_on=1, answered=7, received=9_000, sent=4_000, summary_in=500, cost=4_000_000,
                         cost_received=9_000_000, cost_summaries=500_000),
    ("acme", "unheard-of"): Tally(requests=1, answered=1, received=100, sent=100),
    ("zoo", "m"): Tally(requests=3, answered=3, kept_alive=2, received=900, sent=900, cost=2_000_000_000),
    ("none", "unheard-of"): Tally(requests=2),
}  # fmt: skip


def test_sums_are_those_of_a_tenant_or_of_a_model() -> None:
    acme = totals(SUMS, PRICES.get, by_model=False)["acme"]
    assert (acme.requests, acme.failed, acme.passed_on, acme.net) == (11, 3, 1, 4_500)
    assert (acme.cost, acme.cost_of_summaries, acme.unpriced) == (pytest.approx(0.0045), pytest.approx(0.0005), True)
    assert acme.saved == pytest.approx(0.0045)
    models = totals(SUMS, PRICES.get, by_model=True)
    assert {name: row.requests for name, row in models.items()} == {"m": 13, "unheard-of": 3}
    assert (models["m"].unpriced, models["unheard-of"].cost) == (False, None)


@pytest.mark.parametrize("column", COLUMNS)
def test_a_table_is_sorted_by_any_column_the_largest_first_and_what_is_not_known_last(column: str) -> None:
    rows = order_rows(totals(SUMS, PRICES.get, by_model=False).values(), column)
    values = [getattr(row, column) for row in rows]
    if column == "name":
        assert values == ["acme", "none", "zoo"]
    elif column in ("cost", "saved"):
        assert [row.name for row in rows] == (["zoo", "acme", "none"] if column == "cost" else ["acme", "zoo", "none"])
    else:
        assert values == sorted(values, reverse=True)


def test_no_name_is_a_formula_to_a_spreadsheet() -> None:
    sums = {("t", name): Tally(requests=1) for name in ("=1+1", "+1", "-1", "@x", 'a"b', "a,b", "\tx")}
    lines = [*csv.DictReader(io.StringIO(as_csv(order_rows(totals(sums, PRICES.get, by_model=True).values(), "name"))))]
    assert [line["name"] for line in lines] == ["'\tx", "'+1", "'-1", "'=1+1", "'@x", 'a"b', "a,b"]
    assert {line["requests"] for line in lines} == {"1"}


async def _page(play: Played, path: str, *headers: Header) -> str:
    reply = await play.send("GET", f"/admin/{path}", HTML, *(headers or [bearer(CONFIGURED)]))
    assert reply.status == 200, path
    return reply.body.decode()


@pytest.mark.anyio
@pytest.mark.slow
async def test_which_tenant_spends_most_is_seen_at_once_and_of_all_replicas(tmp_path: Path) -> None:
    tenants = {"default": {}, "acme": {"keys": [hashed(AGENT)]}, "quiet": {}}
    store = f"sqlite:///{tmp_path}/s.db"
    async with played(tmp_path, CONFIGURED, store, tenants=tenants) as play:
        for headers in ([], [bearer(AGENT)], [bearer(AGENT)]):
            assert (await ask(play.address, "POST", CHAT, [JSON, *headers], chat("a"))).status == 200
    async with played(tmp_path, CONFIGURED, store, tenants=tenants) as play:
        assert (await ask(play.address, "POST", CHAT, [JSON], chat("a"))).status == 200
        told = (await play.send("GET", "/admin/api/tenants?sort=requests", bearer(CONFIGURED))).json()
        rows = [(row["name"], row["requests"]) for row in told["tenants"]]  # type: ignore[index,union-attr,call-overload]
        assert (sorted(rows), rows[-1]) == ([("acme", 2), ("default", 2), ("quiet", 0)], ("quiet", 0))
        page = await _page(play, "status?range=7d&sort=requests")
        assert 'aria-sort="descending">Requests' in page
        assert "all replicas, last 7 days" in page
        assert "tenants.csv?range=7d&amp;sort=requests" in page
        written = await play.send("GET", "/admin/tenants.csv?range=7d&sort=name", bearer(CONFIGURED))
        assert written.header(b"content-disposition") == b'attachment; filename="tenants-7d.csv"'
        assert [line.partition(",")[0] for line in written.body.decode().splitlines()] == [
            *("name", "acme", "default", "quiet"),
        ]
        models = (await play.send("GET", "/admin/api/models?range=1h", bearer(CONFIGURED))).json()
        assert models["used"]["all"]["requests"] == 4  # type: ignore[index,call-overload]
        assert "Spend by model" in await _page(play, "status")
        acme = (await play.send("GET", "/admin/api/tenants/acme", bearer(CONFIGURED))).json()
        assert (acme["row"]["requests"], [row["requests"] for row in acme["models"]]) == (2, [2])  # type: ignore[index,union-attr,call-overload]
        for wrong in ("range=1y", "sort=x"):
            assert (await play.send("GET", f"/admin/api/tenants?{wrong}", bearer(CONFIGURED))).status == 400


@pytest.mark.anyio
@pytest.mark.slow
async def test_a_viewer_sees_what_its_own_tenant_used_and_nobody_elses(tmp_path: Path) -> None:
    acme = {"keys": [hashed(AGENT)], "viewer_keys": [hashed(VIEWER)]}
    async with played(tmp_path, CONFIGURED, tenants={"default": {}, "acme": acme, "zoo": {}}) as play:
        for headers in ([], [bearer(AGENT)]):
            assert (await ask(play.address, "POST", CHAT, [JSON, *headers], chat("a"))).status == 200
        page = await _page(play, "status", bearer(VIEWER))
        assert "acme" in page
        assert "zoo" not in page
        assert "tenants/default" not in page
        written = (await play.send("GET", "/admin/tenants.csv", bearer(VIEWER))).body.decode()
        assert len(written.splitlines()) == 2
        (row,) = (await play.send("GET", "/admin/api/tenants", bearer(VIEWER))).json()["tenants"]  # type: ignore[misc]
        assert (row["name"], row["requests"]) == ("acme", 1)
        opened = play.app._opened
        assert opened is not None
        for by_model in (True, False):
            used = await used_of(opened, Visitor("tenant", "acme"), DAY, "cost", by_model=by_model)
            assert (used.all.requests, [each.requests for each in used.rows]) == (1, [1])
        assert "Windows, and who says so" not in page
        assert (await play.send("GET", "/admin/models.csv", bearer(VIEWER))).status == 403
        for target in ("/admin/tenants/zoo", "/admin/api/tenants/default"):
            assert (await play.send("GET", target, bearer(VIEWER))).status == 404
        assert (await play.send("GET", "/admin/tenants.csv", *BROWSER)).status == 401
