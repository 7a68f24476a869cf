"""A session that goes on with another window: the shortest checkpoint that fits is sent, or none. And one whose
upstream refused once what it takes again later."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from policies.model_profile import FIRST_TRIAL
from tests.support.model_server import ModelServer
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


async def test_a_window_that_was_learned_and_holds_no_more_is_tried_again_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = 0.0
    monkeypatch.setattr(
        "proxy.wiring.time", SimpleNamespace(time=lambda: time.time() + later, monotonic=time.monotonic)
    )
    agent, windows = Agent(), {LARGE: 32_768}
    async with stage(tmp_path, ModelServer(windows=windows), models=MODELS, policies=POLICIES) as play:
        reply = await play.post(agent.says(FIRST), model=LARGE)
        while reply.received < 0.6 * 28_000:
            reply = await play.post(agent.works(), model=LARGE)
        assert reply.headers["x-compaction"] == "none"

        async def sent() -> int:
            answer = await play.post(agent.works(), model=LARGE)
            assert answer.status == 200
            return int(answer.headers["x-compaction-tokens-sent"])

        windows[LARGE] = 3_000
        assert await sent() < 3_000
        windows[LARGE] = 32_768
        assert await sent() < 3_000
        later = FIRST_TRIAL + 1
        assert await sent() > reply.received
