"""A session whose record is undone, over real sockets: on two replicas, and on those that are started later."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import aiohttp
import pytest

from tests.support.dialects import WRITERS
from tests.support.worlds import Talk, session, world

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.dialects import Writer
    from tests.support.worlds import History, World

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

TOKEN = "t" * 16
SETTINGS = {"policies": {"default": {"summarizer": {"model": "none"}}}, "server": {"admin_token": TOKEN}}
SESSIONS = "/admin/api/sessions"


async def called(play: World, method: str, path: str, *, replica: int = 0) -> tuple[int, dict[str, object]]:
    """Return status and body of a response of the admin API."""
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with (
        aiohttp.ClientSession() as client,
        client.request(method, play.addresses[replica] + path, headers=headers) as response,
    ):
        return response.status, json.loads(await response.read())


async def told(play: World, history: History, *, replica: int = 0, **headers: str) -> str:
    reply = await play.post(play.body(history), replica=replica, headers=headers)
    assert reply.status == 200, reply.body
    assert play.provider.invalid == []
    return reply.headers["x-compaction"]


async def found(play: World) -> str:
    _, listed = await called(play, "GET", SESSIONS)
    (row,) = listed["sessions"]  # type: ignore[misc]
    return str(row["id"])[:16]  # type: ignore[index]


@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.dialect.name)
async def test_undo_holds_on_all_replicas_and_after_a_restart(tmp_path: Path, writer: Writer) -> None:
    settings = {**SETTINGS, "store": {"url": f"sqlite:///{tmp_path}/s.db", "secret": "s"}}
    *_, history = session(Talk(), requests=26)
    async with world(tmp_path, writer, replicas=2, **settings) as play:
        assert await told(play, history[:-8]) == "none"
        first = play.sent[-1].received.body
        force = {"x-compaction": "force"}
        assert await told(play, history[:-8], **force) == "applied"
        parent = play.sent[-1].items
        assert await told(play, history, **force) == "applied"
        assert await told(play, history, replica=1) == "reused"
        child = play.sent[-1].items
        path = f"{SESSIONS}/{await found(play)}/undo"
        status, undone = await called(play, "POST", path, replica=1)
        assert status == 200
        for replica in (0, 1):
            assert await told(play, history, replica=replica) == "reused"
            assert play.sent[-1].items[: len(parent)] == parent
            assert play.sent[-1].items != child
    async with world(tmp_path, writer, replicas=2, **settings) as play:
        assert await told(play, history, replica=1) == "reused"
        assert play.sent[-1].items[: len(parent)] == parent
        status, earlier = await called(play, "POST", path)
        assert (status, earlier) == (200, {"undone": undone["in_use"], "in_use": None})
        for replica in (0, 1):
            assert await told(play, history[:-8], replica=replica) == "none"
            assert play.sent[-1].received.body == first
        assert (await called(play, "POST", path, replica=1))[0] == 409
    async with world(tmp_path, writer, **settings) as play:
        assert await told(play, history[:-8]) == "none"
        status, answer = await called(play, "POST", path)
        assert (status, answer["error"]["code"]) == (409, "nothing_to_undo")  # type: ignore[index]
