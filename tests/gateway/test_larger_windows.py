"""A session that goes on with another window: the shortest checkpoint that fits is sent, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from proxy.demo.model_server import ModelServer
from tests.support.scenarios import FIRST, Agent, stage

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SMALL, LARGE = "small", "large"
MODELS = [{"match": SMALL, "context_window": 8_192}, {"match": LARGE, "context_window": 32_768}]
POLICIES = {"default": {"summarizer": {"model": "none"}}}


@pytest.mark.parametrize(("share", "compaction"), [(0.63, "none"), (0.95, "reused")])
async def test_what_a_small_window_had_no_room_for_comes_back_in_a_larger_one(
    tmp_path: Path, share: float, compaction: str
) -> None:
    agent = Agent()
    async with stage(tmp_path, ModelServer(window=32_768), models=MODELS, policies=POLICIES) as play:
        reply = await play.post(agent.says(FIRST), model=SMALL)
        while reply.received < share * 28_000:
            reply = await play.post(agent.works(), model=SMALL)
        assert reply.headers["x-compaction"] in ("applied", "reused")
        again = await play.post(agent.works(), model=LARGE)
        assert again.headers["x-compaction"] == compaction
        assert int(again.headers["x-compaction-tokens-sent"]) > 2 * int(reply.headers["x-compaction-tokens-sent"])
