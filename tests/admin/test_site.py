"""Pages and endpoints of a proxy that is in use, and what is shown of one that fails."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from proxy.admin import views
from proxy.admin.endpoints import ADMIN, API, ENDPOINTS, PAGES
from tests.support.admin import BROWSER, CONFIGURED, Played, played
from tests.support.long_conversations import LONG, SMALL_WINDOW, bearer
from tests.support.session_events import compacted, requested
from tests.support.upstreams import CHAT, JSON, Header, ask

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

HTML: Header = (b"Accept", b"text/html")


@asynccontextmanager
async def requests_at_every_turn(play: Played) -> AsyncIterator[None]:
    """Let requests and compactions of many sessions end at every turn of the event loop."""
    opened = play.app._opened
    assert opened is not None

    async def end_requests() -> None:
        number = 0
        while True:
            number += 1
            name = f"{number % 400:016x}"
            opened.engine.observe(compacted(session=name))
            opened.engine.observe(requested(session=name, id=f"{number:016x}", model=f"m{number % 50}"))
            await asyncio.sleep(0)

    task = asyncio.create_task(end_requests())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_every_page_and_endpoint_answers_while_requests_come(tmp_path: Path) -> None:
    policies = {"default": {"summarizer": {"model": "none"}}}
    more = {"policies": policies, "tenants": {"default": {"inspect": True}}, **SMALL_WINDOW}
    async with played(tmp_path, CONFIGURED, **more) as play:
        assert (await ask(play.address, "POST", CHAT, [JSON], LONG)).status == 200
        (request,) = (await play.send("GET", f"{API}requests", bearer(CONFIGURED))).json()["requests"]  # type: ignore[misc]
        session = request["session"]  # type: ignore[index]
        made = (await play.send("GET", f"{API}sessions/{session}/records", bearer(CONFIGURED))).json()["records"]
        values = {
            "{id}": session,
            "{request}": request["id"],  # type: ignore[index]
            "{digest}": made[0]["digest"],  # type: ignore[index]
            "{name}": "default",
        }
        targets = [ADMIN + page.path for page in PAGES if "GET" in page.methods]
        targets += [API + each.path for each in ENDPOINTS if each.method == "GET" and each.name != "live"]
        assert len(targets) > 25
        async with requests_at_every_turn(play):
            for target in targets:
                for name, value in values.items():
                    target = target.replace(name, str(value))
                for _ in range(3):
                    reply = await play.send("GET", target, HTML, bearer(CONFIGURED))
                    assert reply.status < 500, target


async def test_a_page_that_fails_is_a_page_and_an_endpoint_that_fails_answers_in_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    async with played(tmp_path, CONFIGURED) as play:
        monkeypatch.setattr(views, "health_of", fail)
        page = await play.send("GET", ADMIN, *BROWSER, bearer(CONFIGURED))
        assert (page.status, page.header(b"content-type")) == (500, b"text/html; charset=utf-8")
        assert b"This page failed; see the log" in page.body
        assert b"a fault of ours" not in page.body
        answer = await play.send("GET", f"{API}overview", *BROWSER, bearer(CONFIGURED))
        assert (answer.status, answer.header(b"content-type")) == (500, b"application/json")
        assert "see the log" in answer.json()["error"]["message"]  # type: ignore[index,operator,call-overload]
