"""The health of a replica: what it is made of, and where each part leads."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.admin import BROWSER, CONFIGURED, Played, hashed, played
from tests.support.long_conversations import LONG, bearer
from tests.support.session_events import requested
from tests.support.upstreams import CHAT, JSON, ask

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

VIEWER = "a-key-of-a-viewer"


async def health(play: Played, query: str = "", token: str = CONFIGURED) -> dict[str, Any]:
    reply = await play.send("GET", f"/admin/api/overview{query}", bearer(token))
    return reply.json()["health"]  # type: ignore[return-value]


async def parts(play: Played, query: str = "") -> dict[str, tuple[str, str]]:
    found = (await health(play, query))["parts"]
    return {part["text"]: (part["level"], part["link"]) for part in found}


def observe(play: Played, number: int, **changes: object) -> None:
    opened = play.app._opened
    assert opened is not None
    for _ in range(number):
        opened.engine.observe(requested(**{"at": time.time(), **changes}))


async def test_a_dead_upstream_is_not_well_and_named_with_a_link(tmp_path: Path) -> None:
    dead = {"main": {"base_url": "http://127.0.0.1:1/v1"}}
    async with played(tmp_path, CONFIGURED, upstreams=dead) as play:
        assert (await health(play))["level"] == "good"
        for _ in range(4):
            assert (await ask(play.address, "POST", CHAT, [JSON], LONG)).status == 502
        told = await parts(play)
        assert (await health(play))["level"] == "bad"
        assert told["4 of 4 requests failed in five minutes"] == ("bad", "live")
        assert told["upstream main failed 4 of 4 requests"] == ("bad", "live?status=5xx")
        page = (await play.send("GET", "/admin/", *BROWSER, bearer(CONFIGURED))).body.decode()
        assert "Problem" in page
        assert 'href="./live?status=5xx">upstream main failed 4 of 4 requests</a>' in page


@pytest.mark.parametrize(("failed", "level"), [(0, "good"), (1, "good"), (3, "warn"), (20, "bad")])
async def test_health_is_as_bad_as_the_share_of_requests_that_failed(tmp_path: Path, failed: int, level: str) -> None:
    async with played(tmp_path, CONFIGURED) as play:
        observe(play, 20)
        observe(play, failed, status=503)
        assert (await health(play))["level"] == level


async def test_requests_of_more_than_five_minutes_ago_and_relayed_ones_do_not_count(tmp_path: Path) -> None:
    async with played(tmp_path, CONFIGURED) as play:
        observe(play, 20, status=502, at=time.time() - 301)
        observe(play, 20, status=404, wire="relay")
        assert (await health(play))["level"] == "good"
        assert "no request failed in five minutes" in await parts(play)


async def test_budgets_resting_summarizers_faults_and_cut_off_prompts_are_part_of_it(tmp_path: Path) -> None:
    async with played(tmp_path, CONFIGURED, tenants={"default": {}, "acme": {}}) as play:
        engine = play.app._opened.engine  # type: ignore[union-attr]
        engine.spending.allows("acme", 1_000)
        engine.spending.add("acme", 1_040)
        engine.summarizer._paused["main", "small"] = time.monotonic() + 60
        observe(play, 30, tenant="acme")
        observe(play, 2, tenant="acme", warning="prompt_cut_off")
        observe(play, 1, tenant="acme", compaction="failed-open")
        observe(play, 1, tenant="acme", status=429, code="insufficient_quota", attempts=0, upstream=None)
        told = await parts(play)
        assert told["tenant acme has used 104 % of its budget for summaries"] == ("warn", "status#tenants")
        assert told["summarizer small of upstream main is paused after failures"] == ("warn", "status#models")
        assert told["upstream main cut off 2 prompts"] == ("warn", "status#models")
        assert told["1 request sent unchanged after a fault of the proxy"] == ("warn", "live?outcome=failed-open")
        assert told["1 request of keys that are over their budget"] == ("warn", "status#tenants")
        assert (await health(play))["level"] == "warn"
        other = await parts(play, "?tenant=default")
        assert not any("acme" in text or "cut off" in text for text in other)


async def test_a_viewer_is_told_of_its_own_tenant_and_led_to_no_page_that_is_closed_to_it(tmp_path: Path) -> None:
    tenants = {"default": {}, "acme": {"viewer_keys": [hashed(VIEWER)]}}
    async with played(tmp_path, CONFIGURED, tenants=tenants) as play:
        play.app._opened.engine.spending.allows("default", 10)  # type: ignore[union-attr]
        play.app._opened.engine.spending.add("default", 20)  # type: ignore[union-attr]
        observe(play, 20, tenant="default", status=502)
        found = await health(play, token=VIEWER)
        assert found["level"] == "good"
        assert "default" not in str(found)
        for part in found["parts"]:
            if part["link"]:
                reply = await play.send("GET", f"/admin/{part['link']}", *BROWSER, bearer(VIEWER))
                assert reply.status == 200, part


PAGES_OF_OPERATORS = (
    "",
    "live",
    "sessions",
    "status",
    "tenants/default",
    "explain",
)


async def test_every_page_begins_with_what_is_wrong_the_worst_first_and_says_what_to_do(tmp_path: Path) -> None:
    async with played(tmp_path, CONFIGURED) as play:
        for path in PAGES_OF_OPERATORS:
            page = (await play.send("GET", f"/admin/{path}", *BROWSER, bearer(CONFIGURED))).body.decode()
            assert "No problem found" in page, path
        observe(play, 30)
        observe(play, 1, warning="prompt_cut_off")
        observe(play, 1, overflow="passed_on", status=400)
        for path in PAGES_OF_OPERATORS:
            page = (await play.send("GET", f"/admin/{path}", *BROWSER, bearer(CONFIGURED))).body.decode()
            line = page.partition('id="health"')[2].partition("</p>")[0]
            assert "Problem" in line, path
            worst, other = "1 client got the error that a conversation is too long", "upstream main cut off 1 prompt"
            assert 0 < line.index(worst) < line.index(other), path
            assert "docs/runbooks.md: ConcertinaPromptsCutOff" in line


async def test_readiness_and_metrics_tell_the_same_health_without_names(tmp_path: Path) -> None:
    async with played(tmp_path, CONFIGURED) as play:
        assert "parts" not in (await play.send("GET", "/readyz")).json()
        observe(play, 1, warning="prompt_cut_off", upstream="a-secret-name")
        reply = await play.send("GET", "/readyz?verbose")
        found: Any = reply.json()
        assert (reply.status, found["status"], found["health"]) == (200, "ready", "warn")
        assert (found["parts"]["prompts"], found["parts"]["store"]) == ("warn", "good")
        assert b"a-secret-name" not in reply.body
        metrics = (await play.send("GET", "/metrics", bearer(CONFIGURED))).body.decode()
        assert 'concertina_health{part="prompts"} 1.0' in metrics
        assert 'concertina_health{part="store"} 0.0' in metrics


async def test_pages_do_not_ask_the_store_for_the_replicas_each_time(tmp_path: Path) -> None:
    async with played(tmp_path, CONFIGURED) as play:
        replicas = play.app._opened.replicas  # type: ignore[union-attr]
        asked = 0
        every = replicas.every

        async def counted() -> Any:
            nonlocal asked
            asked += 1
            return await every()

        replicas.every = counted  # type: ignore[method-assign]
        for _ in range(5):
            await play.send("GET", "/admin/explain", *BROWSER, bearer(CONFIGURED))
        assert asked == 1
