"""Agents whose system prompt and tools take half of the window, and that ask for far more output than they use."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import pytest

from tests.support.model_server import ModelServer
from tests.support.scenarios import FIRST, ROUND_WORDS, RULES, TOOLS, Agent, large_head, prefix_reuse, stage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.support.scenarios import Reply, Stage

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ROUNDS = 66


async def played(play: Stage, client: Agent, **more: object) -> Sequence[Reply]:
    await play.send(client.says(FIRST), **more)
    for _ in range(ROUNDS):
        await play.send(client.works(), **more)
    return play.replies


@pytest.mark.parametrize(("window", "most_summaries"), [(32_768, 13), (40_960, 9), (49_152, 7), (65_536, 5)])
async def test_a_large_head_does_not_make_it_thrash(tmp_path: Path, window: int, most_summaries: int) -> None:
    models = [{"match": "*", "context_window": window}]
    async with stage(tmp_path, ModelServer(window=window), models=models) as play:
        replies = await played(play, large_head(), tools=TOOLS, max_tokens=8_000)
        reasons = [reply.headers["x-compaction-reason"] for reply in replies]
        made = sum(reply.headers["x-compaction"] == "applied" for reply in replies)
        assert 17_000 < replies[0].received < 19_000
        assert max(play.calls, made) <= most_summaries
        assert all(len([*run]) < 3 for reason, run in groupby(reasons) if reason == "gain_too_small")
        assert max(sent.received.prompt_tokens for sent in play.sent) >= 0.8 * window
        assert prefix_reuse(play.sent) >= 0.90
        assert all(rule in play.sent[-1].texts for rule in RULES)
        assert all(received.status == 200 for received in play.model.received)


@pytest.mark.parametrize(("window", "asked"), [(49_152, 32_000), (40_960, 16_384)])
@pytest.mark.parametrize("stream", [False, True])
async def test_output_that_is_asked_for_and_not_used_takes_no_room(
    tmp_path: Path, window: int, asked: int, *, stream: bool
) -> None:
    models = [{"match": "*", "context_window": window}]
    client = Agent(words=ROUND_WORDS)
    async with stage(tmp_path, ModelServer(window=window), models=models, policies={"default": {"economy": 0}}) as play:
        await played(play, client, max_tokens=asked, stream=stream)
        assert all(received.status == 200 for received in play.model.received)
        assert max(sent.received.prompt_tokens for sent in play.sent) >= 0.74 * window
        lowered = [reply for reply in play.replies if "x-compaction-max-output" in reply.headers]
        assert lowered
        assert all(512 <= int(reply.headers["x-compaction-max-output"]) < asked for reply in lowered)


async def test_a_limit_that_fits_is_left_alone(tmp_path: Path) -> None:
    models = [{"match": "*", "context_window": 40_960}]
    client = Agent(words=ROUND_WORDS)
    async with stage(tmp_path, ModelServer(window=40_960), models=models) as play:
        await play.send(client.says(FIRST), max_tokens=32_000)
        assert "x-compaction-max-output" not in play.replies[-1].headers
        assert b'"max_tokens": 32000' in play.sent[-1].received.body


async def test_a_limit_that_may_not_be_lowered_keeps_its_room(tmp_path: Path) -> None:
    policies = {"default": {"output_floor": None}}
    async with stage(tmp_path, ModelServer(), policies=policies) as play:
        await played(play, Agent(words=100), max_tokens=3_500)
        assert all(received.status == 200 for received in play.model.received)


async def test_why_nothing_was_summarized_is_told_though_the_output_was_lowered(tmp_path: Path) -> None:
    client = Agent(words=100)
    async with stage(tmp_path, ModelServer(summaries="down")) as play:
        await play.send(client.says(FIRST), max_tokens=4_000)
        while play.replies[-1].headers["x-compaction"] != "failed-open":
            await play.send(client.works(), max_tokens=4_000)
        assert play.replies[-1].headers["x-compaction-reason"].startswith("summarizer_")
