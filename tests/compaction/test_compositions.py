"""What a prompt consists of, told where its copy has changed, and now and then as it grows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from proxy.telemetry.events import PromptComposed
from proxy.telemetry.message_fates import MOST, SentMessage, pack
from tests.support.admin import CONFIGURED, Played, played
from tests.support.long_conversations import LONG, SMALL_WINDOW
from tests.support.upstreams import CHAT, JSON, ask, chat

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

TOLD = [
    SentMessage(7, "system", "", 12, "head", 12),
    SentMessage(8, "assistant", "read_file", 90_000, "covered", 0),
    SentMessage(9, "tool", "read_file", 100_000, "cooled", 300),
    SentMessage(10, "user", "", 40, "kept", 40),
]


def test_what_is_packed_is_unpacked() -> None:
    packed = pack(TOLD)
    assert [*packed] == TOLD
    assert len(packed.packed) == 11 * len(TOLD)


def test_of_many_messages_the_newest_are_kept() -> None:
    many = [SentMessage(place, "user", f"tool-{place}", place, "kept", place) for place in range(MOST + 5)]
    found = [*pack(many)]
    assert (len(found), found[0].place, found[-1].place) == (MOST, 5, MOST + 4)
    assert (found[0].tool, found[-1].tool) == ("tool-5", ""), "of so many tools the first have a name"


def test_nothing_is_packed_as_nothing() -> None:
    assert [*pack([])] == []


async def told(play: Played, *bodies: bytes) -> list[PromptComposed]:
    """What is told of these requests, one after the other."""
    opened = play.app._opened
    assert opened is not None
    kept: list[PromptComposed] = []
    compositions = play.app._pipeline._lessons.compositions
    compositions._observe = lambda event: kept.append(event) if isinstance(event, PromptComposed) else None
    for body in bodies:
        assert (await ask(play.address, "POST", CHAT, [JSON], body)).status == 200
        while tasks := [*opened.engine.background._tasks]:
            await asyncio.wait(tasks)
    return kept


@pytest.mark.slow
async def test_a_compacted_prompt_is_told_once_and_a_small_one_not_at_all(tmp_path: Path) -> None:
    policies = {"default": {"summarizer": {"model": "none"}}}
    async with played(tmp_path, CONFIGURED, policies=policies, **SMALL_WINDOW) as play:
        (prompt,) = await told(play, chat("a"), LONG, LONG)
    assert prompt.record > 0
    assert {message.fate for message in prompt.messages} == {"covered", "kept"}
    kept = sum(message.after for message in prompt.messages)
    assert (prompt.conversation, prompt.head, prompt.results, prompt.cooled) == (kept, 0, 0, 0)
    assert prompt.soft < prompt.due < 20_000
