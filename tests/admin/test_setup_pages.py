"""How the proxy is set up, as pages and API tell it: values, who says so, and never a secret."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING

import pytest

from proxy.callers.issued_keys import KeyLimits, KeyShelf, as_revoked, new_key
from proxy.config import shown
from proxy.config.presets import origins
from proxy.sessions.stores import Sealer, open_store
from proxy.sessions.stores.sealing import SealedStore
from tests.support.admin import BROWSER, CONFIGURED, Played, played
from tests.support.long_conversations import LONG, SMALL_WINDOW, bearer
from tests.support.servers import reserve_port
from tests.support.upstreams import CHAT, JSON, Header, ask

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

HTML: Header = (b"Accept", b"text/html")
VIEWS = ("", "live", "sessions", "status", "tenants/acme")


async def page(play: Played, path: str, *headers: Header) -> str:
    reply = await play.send("GET", f"/admin/{path}", HTML, *(headers or [bearer(CONFIGURED)]))
    assert reply.status == 200, path
    return reply.body.decode()


async def test_views_are_there_when_nothing_is_known_and_when_the_store_is_down(tmp_path: Path) -> None:
    async with played(tmp_path, CONFIGURED, store=f"redis://127.0.0.1:{reserve_port()}", tenants={"acme": {}}) as play:
        for view in VIEWS:
            assert "<h1>" in await page(play, view)
        assert "No request yet" in await page(play, "")
        assert "The store does not respond" in await page(play, "sessions")
        assert "Requests continue without it" in await page(play, "status")
        assert "No model yet" in await page(play, "status")
        figures = (await play.send("GET", "/admin/api/overview?range=30d", bearer(CONFIGURED))).json()
        assert (figures["span"], figures["is_whole"]) == ("30d", False)
        assert (await play.send("GET", "/admin/api/overview?range=1y", bearer(CONFIGURED))).status == 400
        assert len((await play.send("GET", "/admin/api/replicas", bearer(CONFIGURED))).json()["replicas"]) == 1  # type: ignore[arg-type]


async def test_this_machine_reads_the_setup_without_a_token_and_no_sessions(tmp_path: Path) -> None:
    async with played(tmp_path) as play:
        for view in ("", "status", "tenants/default"):
            shown = await page(play, view, *BROWSER[:-1])
            assert "Sign in" in shown
            assert 'href="./live"' not in shown
            assert "<button>Write" not in shown


async def test_what_was_learned_of_a_model_is_forgotten_where_that_is_wished(tmp_path: Path) -> None:
    async with played(tmp_path, CONFIGURED, **SMALL_WINDOW) as play:
        assert (await ask(play.address, "POST", CHAT, [JSON], LONG)).status == 200
        assert "the config" in await page(play, "status")
        windows = play.app._opened.engine.windows  # type: ignore[union-attr]
        (place,) = windows.places()
        windows.saw_answer(place, b"session", 0, 1_000, 77)
        target = "/admin/api/models/learned?tenant=default&upstream=main&model="
        assert (await play.send("DELETE", f"{target}x", bearer(CONFIGURED))).status == 404
        assert (await play.send("DELETE", f"{target}m", bearer(CONFIGURED))).status == 204
        assert windows.experience(place).answers == ()
        same = (b"Sec-Fetch-Site", b"same-origin")
        form = b"tenant=default&upstream=main&model=m"
        posted = await play.send("POST", "/admin/models/forget", bearer(CONFIGURED), same, body=form)
        assert (posted.status, posted.header(b"location")) == (303, b"../status#models")


async def test_the_store_is_probed_by_an_entry_of_ours_that_is_gone_afterwards(tmp_path: Path) -> None:
    async with played(tmp_path, CONFIGURED) as play:
        probed = (await play.send("POST", "/admin/api/store/probe", bearer(CONFIGURED), body=b"")).json()
        assert probed["is_well"] is True
        shown = await play.send("POST", "/admin/store/probe", HTML, bearer(CONFIGURED), body=b"")
        assert "it works" in shown.body.decode()
        operations = (await play.send("GET", "/admin/api/store", bearer(CONFIGURED))).json()["operations"]
        numbers = {row["name"]: row["number"] for row in operations}  # type: ignore[index,union-attr]
        assert (numbers["put"], numbers["erase"]) == (3, 2)  # and a heartbeat


async def test_the_store_says_since_when_it_is_so_and_what_it_holds(tmp_path: Path) -> None:
    async with played(tmp_path, CONFIGURED) as play:
        assert (await ask(play.address, "POST", CHAT, [JSON], LONG)).status == 200
        view = (await play.send("GET", "/admin/api/store", bearer(CONFIGURED))).json()
        assert view["available"] is True
        assert time.time() - 60 < view["since"] <= time.time()  # type: ignore[operator]
        assert view["entries"]["replica"] == 1  # type: ignore[index,call-overload]
        assert 0 < view["size"] < view["most"]  # type: ignore[operator]
        assert "heartbeats of replicas" in await page(play, "status")
    down = f"redis://127.0.0.1:{reserve_port()}"
    async with played(tmp_path, CONFIGURED, store=down) as play:
        view = (await play.send("GET", "/admin/api/store", bearer(CONFIGURED))).json()
        assert (view["available"], view["entries"], view["size"]) == (False, None, None)
        assert "It has failed for <time" in await page(play, "status")


async def test_the_health_line_tells_of_all_replicas_and_since_when(tmp_path: Path) -> None:
    async with played(tmp_path, CONFIGURED, f"sqlite:///{tmp_path}/s.db") as play:
        alone = (await play.send("GET", "/admin/api/overview", bearer(CONFIGURED))).json()["health"]
        assert "1 replica" in alone["words"]  # type: ignore[index,operator,call-overload]
        assert any(word.startswith("config loaded ") for word in alone["words"])  # type: ignore[index,call-overload]
        async with played(tmp_path, CONFIGURED, f"sqlite:///{tmp_path}/s.db", tenants={"acme": {}}):
            both = (await play.send("GET", "/admin/api/overview", bearer(CONFIGURED))).json()["health"]
            assert both["level"] == "warn"  # type: ignore[index,call-overload]
            assert "2 replicas" in both["words"]  # type: ignore[index,operator,call-overload]
            assert "replicas have different configs" in both["words"]  # type: ignore[index,call-overload]
            replicas = (await play.send("GET", "/admin/api/replicas", bearer(CONFIGURED))).json()["replicas"]
            assert all(time.time() - 60 < row["told"] <= time.time() for row in replicas)  # type: ignore[index,union-attr]
            other_secret = {"url": f"sqlite:///{tmp_path}/s.db", "secret": "of another replica"}
            assert not any("store secrets" in word for word in both["words"])  # type: ignore[index,union-attr]
            async with played(tmp_path, CONFIGURED, other_secret):
                third = (await play.send("GET", "/admin/api/overview", bearer(CONFIGURED))).json()["health"]
                assert any("different store secrets" in word for word in third["words"])  # type: ignore[index,union-attr]
                assert "another store.secret" in await page(play, "status")
    down = f"redis://127.0.0.1:{reserve_port()}"
    async with played(tmp_path, CONFIGURED, store=down) as play:
        told = (await play.send("GET", "/admin/api/overview", bearer(CONFIGURED))).json()["health"]
        assert re.search(r"does not respond since \d\d:\d\d:\d\d", str(told))


async def test_a_model_is_told_with_what_a_prompt_may_take_and_who_says_so(tmp_path: Path) -> None:
    async with played(tmp_path, CONFIGURED, **SMALL_WINDOW) as play:
        assert (await ask(play.address, "POST", CHAT, [JSON], LONG)).status == 200
        (model,) = (await play.send("GET", "/admin/api/models", bearer(CONFIGURED))).json()["models"]
        assert (model["upstream"], model["window"]["tokens"], model["window"]["source"]) == ("main", 20_000, "policy")  # type: ignore[index,call-overload]
        assert 10_000 < model["usable"] < 18_000  # type: ignore[index,call-overload]


async def test_a_policy_says_of_every_setting_where_it_comes_from(tmp_path: Path) -> None:
    policies = {
        "careful": {"extends": "chat", "compaction_threshold": 0.85, "summarizer": {"timeout": "30s"}},
        "mine": {"extends": "careful", "compaction_threshold": 0.86},
        "default": {"keepalive": 0},
    }
    found = origins("mine", policies)
    assert (found["compaction_threshold"], found["summarizer.timeout"]) == ("policy mine", "policy careful")
    assert "preset chat" in found.values()
    assert origins("default", policies) == {"keepalive": "policy default"}
    assert set(origins("cost", policies).values()) == {"preset cost"}
    tenants = {"acme": {"policy": "mine"}}
    async with played(tmp_path, CONFIGURED, policies=policies, tenants=tenants) as play:
        # A proxy whose file is not read again knows no more than what holds.
        shown = await page(play, "tenants/acme")
        assert re.search(r"<code>compaction_threshold</code></th><td class=\"mono\">0.86</td>", shown)
        assert (await play.send("GET", "/admin/tenants/nobody", HTML, bearer(CONFIGURED))).status == 404
        assert (await play.send("GET", "/admin/api/policies/nothing", bearer(CONFIGURED))).status == 404


async def test_a_tenants_issued_keys_are_listed_with_what_they_have_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.app.COUNT_EVERY", 0.01)
    monkeypatch.setattr("proxy.admin.views._MOST_KEYS", 2)
    url, now = f"sqlite:///{tmp_path}/s.db", time.time()
    store, limits = open_store(url), KeyLimits(tokens_per_month=2_000_000, usd_per_day=20.0)
    secret, ada = new_key("acme", now, name="ada", limits=limits)
    others = [as_revoked(new_key("acme", now - 1, name="eve")[1], now), new_key("acme", now - 2)[1]]
    for key in (ada, *others, new_key("other", now)[1]):
        await KeyShelf(SealedStore(store, Sealer(None), 60.0)).put(key)
    await store.close()
    tenants = {"acme": {}, "other": {}}
    async with asyncio.timeout(30), played(tmp_path, CONFIGURED, url, tenants=tenants) as play:
        key = (b"Authorization", f"Bearer {secret}".encode())
        assert (await ask(play.address, "POST", CHAT, [JSON, key], LONG)).status == 200
        used: dict[str, int] = {}
        while not used.get("tokens_today"):
            view = (await play.send("GET", "/admin/api/tenants/acme", bearer(CONFIGURED))).json()
            first, second = view["issued"]  # type: ignore[misc]
            used = first["used"]
        assert (first["name"], first["state"], second["state"], view["more_issued"]) == ("ada", "active", "revoked", 1)
        assert used["tokens_month"] == used["tokens_today"] > 1_000
        shown = await page(play, "tenants/acme")
        assert "2,000,000 tokens a month, $20.00 a day" in shown
        assert "1 older one:" in shown
        assert secret not in shown
        assert "ada" not in await page(play, "tenants/other")
    async with played(tmp_path, store=url, tenants=tenants) as play:
        assert "Issued keys" not in await page(play, "tenants/acme", *BROWSER[:-1])


@pytest.mark.parametrize(
    ("url", "bare"),
    [
        ("sqlite:///var/a.db", "sqlite:///var/a.db"),
        ("sqlite:////abs/a.db", "sqlite:////abs/a.db"),
        ("redis://u:p@host:6379/0?password=x", "redis://host:6379/0"),
        ("memory://", "memory://"),
    ],
)
def test_an_address_is_shown_without_what_opens_it(url: str, bare: str) -> None:
    assert shown.bare(url) == bare
