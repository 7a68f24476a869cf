"""Every scenario in every dialect, from one table: nothing invalid at a strict provider, and the same bounds.

What must hold for every request (`World.send`) is checked on each of them; here stand the bounds of each scenario.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from proxy.demo.model_server import ModelServer
from tests.support.dialects import WRITERS
from tests.support.scenarios import RULES, WINDOW, most_calls, usable
from tests.support.worlds import Talk, one_user, prefix_reuse, session, world

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.dialects import Writer

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

B = usable(WINDOW)
in_each = pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.dialect.name)


@in_each
@pytest.mark.parametrize("stream", [False, True])
async def test_a_session_with_tools_and_turns(tmp_path: Path, writer: Writer, *, stream: bool) -> None:
    async with world(tmp_path, writer) as play:
        replies = await play.play(session(Talk()), stream=stream)
        assert 0 < play.calls <= most_calls(replies[-1].received, B)
        assert prefix_reuse(play.sent) >= 0.90
        assert all(rule in play.sent[-1].texts for rule in RULES)


@in_each
async def test_one_user_message_and_two_hundred_rounds(tmp_path: Path, writer: Writer) -> None:
    async with world(tmp_path, writer) as play:
        replies = await play.play(one_user(Talk()))
        assert 0 < play.calls <= most_calls(replies[-1].received, B)
        assert prefix_reuse(play.sent) >= 0.90
        assert all(rule in play.sent[-1].texts for rule in RULES)


@in_each
@pytest.mark.parametrize("times", [2.7, 10])
async def test_the_first_request_is_a_multiple_of_the_window(tmp_path: Path, writer: Writer, times: float) -> None:
    talk = Talk()
    whole = list(one_user(talk, rounds=int(times * WINDOW / 180)))[-1]
    async with world(tmp_path, writer) as play:
        await play.send(whole)
        calls = play.calls
        assert play.replies[0].received >= times * WINDOW
        assert 0 < calls <= most_calls(play.replies[0].received, B)
        await play.play(talk.works() for _ in range(3))
        assert play.calls == calls
        assert all(rule in play.sent[-1].texts for rule in RULES)


@in_each
@pytest.mark.parametrize("ratio", [1.33, 4])
async def test_real_tokens_are_dearer_than_estimated(tmp_path: Path, writer: Writer, ratio: float) -> None:
    async with world(tmp_path, writer, ModelServer(window=WINDOW, token_ratio=ratio)) as play:
        replies = await play.play(session(Talk(words=100)))
        assert 0 < play.calls <= most_calls(replies[-1].received, B / ratio)
        assert all(rule in play.sent[-1].texts for rule in RULES)


@in_each
@pytest.mark.parametrize("window", [4_096, 32_768])
async def test_other_windows(tmp_path: Path, writer: Writer, window: int) -> None:
    models = [{"match": "*", "context_window": window}]
    talk = Talk(words=100 if window < WINDOW else 900)
    async with world(tmp_path, writer, ModelServer(window=window), models=models) as play:
        replies = await play.play(session(talk))
        assert 0 < play.calls <= most_calls(replies[-1].received, usable(window))
        assert all(rule in play.sent[-1].texts for rule in RULES)
