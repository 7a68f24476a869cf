"""Requests as they end: filtered, paged, and streamed to those who watch, however slow they are."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING

import pytest

from proxy.admin import recent as live
from proxy.admin.recent import Recent
from proxy.admin.requests import Filter
from tests.support.admin import CONFIGURED, played
from tests.support.long_conversations import bearer
from tests.support.session_events import compacted, requested
from tests.support.upstreams import CHAT, JSON, ask, chat

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

NEVER = 10.0**10


def recent(*events: object) -> Recent:
    kept = Recent()
    for event in events:
        kept(event)  # type: ignore[arg-type]
    return kept


@pytest.mark.parametrize(
    ("wanted", "holds"),
    [
        (Filter(), True),
        (Filter(tenant="default", outcome="none", status="200", session="0123"), True),
        (Filter(status="2xx"), True),
        (Filter(status="5xx"), False),
        (Filter(status="20"), False),
        (Filter(tenant="acme"), False),
        (Filter(outcome="applied"), False),
        (Filter(session="ff"), False),
        (Filter(id="ff"), False),
        (Filter(id=requested().id[:4]), True),
        (Filter(min_seconds=2.0), False),
        (Filter(min_seconds=0.001), True),
        (Filter(since=NEVER), False),
        (Filter(until=1.0), False),
    ],
)
def test_a_filter_holds_for_what_it_names(wanted: Filter, holds: bool) -> None:
    assert wanted.holds(requested()) == holds


async def test_pages_hold_every_request_once_the_newest_first(tmp_path: Path) -> None:
    async with played(tmp_path, CONFIGURED) as play:
        opened = play.app._opened
        assert opened is not None
        now = time.time()
        for number in range(230):
            opened.engine.observe(requested(id=f"{number}", at=now + number // 2))
            if number == 150:
                await opened.requests.write()
        opened.engine.observe(compacted())
        found: list[str] = []
        cursor = ""
        while True:
            query = f"cursor={cursor}" if cursor else ""
            page = (await play.send("GET", f"/admin/api/requests?{query}", bearer(CONFIGURED))).json()
            found += [event["id"] for event in page["requests"]]  # type: ignore[union-attr,index]
            if (cursor := page["cursor"]) is None:  # type: ignore[assignment]
                break
    assert sorted(found, key=int, reverse=True) == [f"{number}" for number in reversed(range(230))]
    assert [int(each) // 2 for each in found] == sorted((int(each) // 2 for each in found), reverse=True)


def test_no_more_than_a_thousand_are_kept() -> None:
    kept = recent(*(requested(id=f"{number}") for number in range(1_100)))
    assert [entry.event.id for entry in kept.newest()][-1] == "100"  # type: ignore[union-attr]


async def test_who_watches_is_told_what_comes_and_what_it_missed() -> None:
    kept, is_ended = Recent(), False
    stream = live.stream(kept, lambda event: event.tenant == "default", lambda: is_ended)
    assert await anext(stream) == b": open\n\n"
    for event in (requested(id="a"), requested(tenant="acme"), compacted()):
        kept(event)
    first, second = await anext(stream), await anext(stream)
    assert first.startswith(b"id: 1\ndata: {")
    assert json.loads(first.partition(b"data: ")[2])["id"] == "a"
    assert second.startswith(b"id: 3\nevent: compaction\ndata: {")
    for _ in range(130):
        kept(requested())
    assert await anext(stream) == b'event: lost\ndata: {"lost": 30}\n\n'
    await anext(stream)
    is_ended = True
    assert len([each async for each in stream]) == 99
    kept(requested())


async def test_who_comes_back_is_told_what_came_meanwhile() -> None:
    kept = recent(*(requested(id=str(number)) for number in range(4)))
    stream = live.stream(kept, lambda event: event.id != "2", lambda: True, after=2)  # type: ignore[union-attr]
    told = [event async for event in stream]
    assert [event.partition(b"\n")[0] for event in told] == [b": open", b"id: 4"]
    assert [event async for event in live.stream(kept, lambda _: True, lambda: True)] == [b": open\n\n"]


async def test_no_more_watch_than_may() -> None:
    kept = Recent()
    streams = [live.stream(kept, lambda _: True, lambda: False) for _ in range(51)]
    first = [await anext(stream) for stream in streams]
    assert first[49:] == [b": open\n\n", b"event: full\ndata: {}\n\n"]
    for stream in streams:
        await stream.aclose()  # type: ignore[attr-defined]
    assert not kept._viewers


@pytest.mark.slow
async def test_a_request_is_streamed_as_it_ends_and_a_viewer_that_leaves_is_forgotten(tmp_path: Path) -> None:
    async with played(tmp_path, CONFIGURED) as play:
        reader, writer = await asyncio.open_connection("127.0.0.1", play.port)
        name, value = bearer(CONFIGURED)
        writer.write(b"GET /admin/api/live HTTP/1.1\r\nHost: x\r\n" + name + b": " + value + b"\r\n\r\n")
        head = await reader.readuntil(b": open\n\n")
        assert b"text/event-stream" in head.lower()
        assert (await ask(play.address, "POST", CHAT, [JSON], chat("a"))).status == 200
        told = await asyncio.wait_for(reader.readuntil(b"\n\n"), 30)
        assert b'"status":200' in told
        opened = play.app._opened
        assert opened is not None
        assert len(opened.recent._viewers) == 1
        writer.close()
        async with asyncio.timeout(30):
            while opened.recent._viewers:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_the_api_tells_the_newest_requests_and_refuses_a_cursor_that_is_none(tmp_path: Path) -> None:
    async with played(tmp_path, CONFIGURED) as play:
        assert (await ask(play.address, "POST", CHAT, [JSON], chat("a"))).status == 200
        reply = await play.send("GET", "/admin/api/requests?status=2xx", bearer(CONFIGURED))
        assert [event["status"] for event in reply.json()["requests"]] == [200]  # type: ignore[union-attr,index]
        for wrong in (
            "cursor=x",
            f"cursor={'9' * 5_000}",
            "cursor=nan-a",
            "limit=0",
            "min_seconds=x",
            "min_seconds=-1",
            "since=soon",
        ):
            assert (await play.send("GET", f"/admin/api/requests?{wrong}", bearer(CONFIGURED))).status == 400
        assert (await ask(play.address, "POST", CHAT, [JSON], chat("a"))).status == 200
        first = (await play.send("GET", "/admin/api/requests?limit=1", bearer(CONFIGURED))).json()
        (event,) = first["requests"]  # type: ignore[misc]
        assert first["cursor"] == f"{event['at']!r}-{event['id']}"  # type: ignore[index]
        overview = (await play.send("GET", "/admin/api/overview", bearer(CONFIGURED))).json()
        assert (overview["figures"]["requests"], overview["health"]["level"]) == (2, "good")  # type: ignore[index]


@pytest.mark.slow
async def test_the_live_view_tells_whose_requests_they_are_where_there_are_several(tmp_path: Path) -> None:
    html = (b"Accept", b"text/html")
    for tenants, is_told in (({"default": {}}, False), ({"default": {}, "acme": {}}, True)):
        async with played(tmp_path, CONFIGURED, tenants=tenants) as play:
            assert (await ask(play.address, "POST", CHAT, [JSON], chat("a"))).status == 200
            page = (await play.send("GET", "/admin/live", html, bearer(CONFIGURED))).body.decode()
            assert ('<td class="nowrap" data-head="Tenant">default</td>' in page) == is_told
