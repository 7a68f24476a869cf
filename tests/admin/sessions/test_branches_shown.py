"""Branches of a session that several replicas served, on its page."""

from __future__ import annotations

import json
import re
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from tests.support.admin import CONFIGURED, Played, played
from tests.support.long_conversations import LONG, SMALL_WINDOW, bearer
from tests.support.upstreams import CHAT, JSON, Header, ask

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.conversations import Json

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

HTML: Header = (b"Accept", b"text/html")
LABEL: Header = (b"X-Session-Id", b"forked")


async def send(play: Played, messages: list[Json]) -> None:
    body = json.dumps({**json.loads(LONG), "messages": messages}).encode()
    assert (await ask(play.address, "POST", CHAT, [JSON, LABEL], body)).status == 200
    opened = play.app._opened
    assert opened is not None
    await opened.stored_histories.write()


def said(text: str) -> list[Json]:
    return [{"role": "assistant", "content": "Done."}, {"role": "user", "content": text}]


async def test_where_a_client_went_back_its_session_has_a_branch(tmp_path: Path, valkey_url: str) -> None:
    store = {"url": valkey_url, "secret": "shared"}
    first = json.loads(LONG)["messages"]
    async with AsyncExitStack() as opened:
        one, two, third = [
            await opened.enter_async_context(played(tmp_path, CONFIGURED, store, **SMALL_WINDOW)) for _ in range(3)
        ]
        await send(one, first)
        session = (await one.send("GET", "/admin/api/search", bearer(CONFIGURED))).json()["sessions"][0]["id"]  # type: ignore[index,call-overload]
        path = f"sessions/{session}?label=forked"
        page = (await third.send("GET", f"/admin/{path}", HTML, bearer(CONFIGURED))).body.decode()
        assert "Branches" not in page
        await send(one, [*first, *said("one way")])
        await send(two, [*first, *said("another way")])
        await send(one, [*first, *said("one way"), *said("and on")])
        view = (await third.send("GET", f"/admin/api/{path}", bearer(CONFIGURED))).json()
        found = [(each["number"], each["parent"], each["parted"], each["requests"]) for each in view["branches"]]  # type: ignore[index,call-overload,union-attr]
        assert found == [(1, None, None, 3), (2, 1, len(first), 1)]
        page = (await third.send("GET", f"/admin/{path}", HTML, bearer(CONFIGURED))).body.decode()
        (panel,) = re.findall(r'<section class="panel" id="branches".*?</section>', page, re.DOTALL)
        assert "└ 2" in panel
        assert f"{len(first)}</td>" in panel
