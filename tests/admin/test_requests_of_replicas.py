"""Requests that another replica served, or this one before its restart: found, told, hidden from others, and erased."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.support.admin import CONFIGURED, Played, hashed, played
from tests.support.long_conversations import LONG, SMALL_WINDOW, bearer
from tests.support.upstreams import CHAT, JSON, Header, always, answer, ask, chat, upstream

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

HTML: Header = (b"Accept", b"text/html")
KEY = "key-of-the-upstream-0123"
LEAKED = "sk-proj-" + "a1B2c3D4e5F6g7H8" * 3
IN_QUERY = "a-key-in-the-query"
WORDS = f"The field temperature is out of range. You sent {KEY}, and {LEAKED}."
VIEWER, AGENT = "ck-viewer-of-acme", "ck-agent-of-acme"
REFUSAL = answer(400, json.dumps({"error": {"message": WORDS, "code": "bad_field"}}).encode(), JSON)


@pytest.fixture(params=["sqlite", "valkey"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, object]:
    if request.param == "sqlite":
        return {"url": f"sqlite:///{tmp_path}/s.db", "secret": "shared"}
    return {"url": request.getfixturevalue("valkey_url"), "secret": "shared"}


async def stored(play: Played) -> None:
    """Store what the process would store in some seconds, when its sessions are listed."""
    opened = play.app._opened
    assert opened is not None
    while tasks := opened.engine.background._tasks:
        await asyncio.wait(tasks)
    await opened.stored_histories.write()
    await opened.requests.write()


async def page_of(play: Played, path: str, *headers: Header) -> str:
    return (await play.send("GET", f"/admin/{path}", HTML, *(headers or (bearer(CONFIGURED),)))).body.decode()


async def found(play: Played, query: str, *headers: Header) -> list[str]:
    reply = await play.send("GET", f"/admin/api/requests?{query}", *(headers or (bearer(CONFIGURED),)))
    events: list[dict[str, str]] = reply.json()["requests"]  # type: ignore[assignment]
    return [event["id"] for event in events]


async def asked(play: Played, *headers: Header, body: bytes = b"", status: int = 200) -> str:
    reply = await ask(play.address, "POST", f"{CHAT}?key={IN_QUERY}", [JSON, *headers], body or chat("a"))
    assert reply.status == status
    return (reply.header(b"x-concertina-request-id") or b"").decode()


async def test_a_failed_request_is_found_by_every_replica_and_says_what_to_do(
    tmp_path: Path, store: dict[str, object]
) -> None:
    async with upstream(always(REFUSAL)) as refusing:
        more = {"upstreams": {"main": {"base_url": f"{refusing.address}/v1", "api_key": KEY}}}
        async with AsyncExitStack() as opened:
            one, two = [await opened.enter_async_context(played(tmp_path, CONFIGURED, store, **more)) for _ in range(2)]
            name = await asked(one, status=400)
            other = await asked(two, status=400)
            await stored(one)
            for query in (
                f"id={name}",
                f"id={name[:10]}",
                "status=400",
                "status=4xx",
                "min_seconds=0",
                "tenant=default",
            ):
                assert name in await found(two, query), query
            for query in ("status=5xx", "min_seconds=60", "tenant=acme", "until=2020-01-01", "since=2099-01-01T00:00"):
                assert await found(two, query) == [], query
            first = (await two.send("GET", "/admin/api/requests?limit=1", bearer(CONFIGURED))).json()
            assert await found(two, "limit=1") == [other]
            assert await found(two, f"limit=1&cursor={quote(str(first['cursor']))}") == [name]
            pages = [await page_of(each, f"requests/{name}") for each in (one, two)]
            assert f"requests/{name}" in await page_of(two, f"sessions?q={name}")
            assert f"requests/{name}" in await page_of(two, "live")
        async with played(tmp_path, CONFIGURED, store, **more) as restarted:
            pages.append(await page_of(restarted, f"requests/{name}"))
        async with played(tmp_path, CONFIGURED, store, tenants={"default": {"inspect": False}}, **more) as silent:
            hidden = await page_of(silent, f"requests/{name}")
            unkept = await asked(silent, status=400)
            kept = (await silent.send("GET", f"/admin/api/requests/{unkept}", bearer(CONFIGURED))).json()
    for page in pages:
        (banner,) = re.findall(r'<section class="failed".*?</section>', page, re.DOTALL)
        assert page.index(banner) < page.index(">Received</h2>")
        for words in ("Failed: 400", f"{refusing.address}/v1/chat/completions", "temperature is out of range", "docs/"):
            assert words in banner, words
        assert not any(secret in page for secret in (KEY, LEAKED, IN_QUERY))
    assert "Failed: 400" in hidden
    assert "temperature" not in hidden
    assert kept["failure"] == {"address": f"{refusing.address}/v1/chat/completions"}


async def test_a_viewer_finds_its_own_tenants_requests_alone(tmp_path: Path, store: dict[str, object]) -> None:
    tenants = {"default": {}, "acme": {"keys": [hashed(AGENT)], "viewer_keys": [hashed(VIEWER)]}}
    async with AsyncExitStack() as opened:
        one, two = [
            await opened.enter_async_context(played(tmp_path, CONFIGURED, store, tenants=tenants)) for _ in range(2)
        ]
        theirs, own = await asked(one), await asked(one, bearer(AGENT))
        await stored(one)
        assert sorted(await found(two, "")) == sorted([theirs, own])
        for query in ("", f"id={theirs}", "tenant=default", "status=2xx"):
            assert await found(two, query, bearer(VIEWER)) == ([own] if "id" not in query else []), query
        for path in ("requests/{}", "api/requests/{}"):
            replies = [
                await two.send("GET", f"/admin/{path.format(name)}", HTML, bearer(VIEWER))
                for name in (own, theirs, "0" * 16)
            ]
            assert [reply.status for reply in replies] == [200, 404, 404]
            assert replies[1].body.replace(theirs.encode(), b"") == replies[2].body.replace(b"0" * 16, b"")
        assert (await two.send("GET", f"/admin/api/search?q={theirs}", bearer(VIEWER))).json()["requests"] == []
        assert (await two.send("GET", f"/admin/api/search?q={own}", bearer(VIEWER))).json()["requests"]
        assert (await two.send("GET", f"/admin/requests/{own}", HTML)).status == 401


async def test_an_erased_session_takes_its_requests_and_its_money_with_it(
    tmp_path: Path, store: dict[str, object]
) -> None:
    async with AsyncExitStack() as opened:
        one, two = [
            await opened.enter_async_context(played(tmp_path, CONFIGURED, store, **SMALL_WINDOW)) for _ in range(2)
        ]
        label: Header = (b"X-Session-Id", b"the deploy")
        name, other = await asked(one, label, body=LONG), await asked(one)
        await stored(one)
        (row,) = (await two.send("GET", "/admin/api/search?q=the+deploy", bearer(CONFIGURED))).json()["sessions"]  # type: ignore[misc]
        assert row["requests"] == 1  # type: ignore[call-overload]
        assert {*await found(two, "")} == {name, other}
        assert (await two.send("DELETE", "/admin/api/sessions/the%20deploy", bearer(CONFIGURED))).status == 200
        assert await found(two, "") == [other]
        await stored(one)
        assert await found(two, "") == [other]
        assert (await two.send("GET", f"/admin/api/requests/{name}", bearer(CONFIGURED))).status == 404
