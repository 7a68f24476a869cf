"""Sessions of every dialect are listed, and an erased one loses all that was stored of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from proxy.dialects.table import DIALECTS, MESSAGES
from proxy.sessions.stores.base import tombstone
from tests.support.operating import LABEL, TOKEN, enrolled, erased, listed
from tests.support.plain_talk import path_of, turns, written
from tests.support.stages import ours, stage

if TYPE_CHECKING:
    from pathlib import Path

    from proxy.dialects.base import Dialect
    from tests.support.conversations import Json

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

# Thinking is bound to its prompt by its name.
MODEL = "claude-opus-5-5"


def thoughtful(said: list[Json]) -> list[Json]:
    thought = {"type": "thinking", "thinking": "Let me see.", "signature": "c2lnbmVk"}
    return [
        {**item, "content": [thought, {"type": "text", "text": item["content"]}]}
        if item["role"] == "assistant"
        else item
        for item in said
    ]


@pytest.mark.usefixtures("one_replica")
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
async def test_an_erased_session_of_any_dialect_leaves_nothing_but_its_mark(
    tmp_path: Path, dialect: Dialect, valkey_url: str
) -> None:
    said = turns(30)
    settings = {
        "store": {"url": valkey_url, "secret": "shared"},
        "server": {"admin_token": TOKEN},
        "models": [{"match": "*", "context_window": 8_192}],
    }
    items = thoughtful(said) if dialect is MESSAGES else said
    async with Redis.from_url(valkey_url) as redis, stage(tmp_path, **settings) as play:
        await redis.flushdb()
        for outcome in ("applied", "reused"):
            reply = await play.send(written(dialect, items, model=MODEL), LABEL, path=path_of(dialect))
            assert (reply.status, ours(reply)[""]) == (200, outcome), reply.body
            await play.settled()
        (session,) = await enrolled(play.address, 1)
        assert (session["label"], session["model"], session["generation"]) == ("the deploy", MODEL, 1)
        (tag,) = {key.split(b"{")[1].split(b"}")[0].decode() async for key in redis.scan_iter("cp:*")}
        old = [key async for key in redis.scan_iter(f"*{{{tag}}}*")]
        assert any(b":use:" in key for key in old) == (dialect is MESSAGES)
        assert (await erased(play.address, "the%20deploy")).json() == {"erased": [session["id"]]}
        assert [key async for key in redis.scan_iter(f"*{{{tag}}}*")] == [tombstone(tag).encode()]
        assert await listed(play.address) == []
        # What this process still had in its memory is not used again.
        reply = await play.send(written(dialect, items, model=MODEL), LABEL, path=path_of(dialect))
        assert ours(reply)[""] == "applied"
