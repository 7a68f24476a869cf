"""Spans that a summarizer's window does not hold: how many of their messages are read, by how many calls."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

import pytest

from proxy.models.tokenizer import DEFAULT_ENCODING
from tests.support.compacting import HEADINGS, TOKENIZER, Model, completion, error, job, replica
from tests.support.conversations import Json
from tests.support.scenarios import prose

pytestmark = pytest.mark.anyio

# About 1.9 tokens each, as the words of a technical text.
WORDS = [prose(number, 1) + (str(number % 10) if number % 10 else "") for number in range(1_000)]


def count(text: str) -> int:
    return TOKENIZER.count(text, DEFAULT_ENCODING)


@dataclass
class SmallSummarizer:
    """Refuses what its window does not hold, and answers with about as many tokens as it is asked for.

    states: whether a refusal tells the window.
    read:   positions of the messages whose part was summarized.
    """

    window: int
    states: bool = False
    refused: int = 0
    read: set[int] = field(default_factory=set)
    _choice: random.Random = field(default_factory=lambda: random.Random(5))

    def __call__(self, request: Json) -> tuple[int, bytes]:
        system, user = (str(message["content"]) for message in request["messages"])
        if count(system) + count(user) + request["max_tokens"] > self.window:
            self.refused += 1
            stated = f"This model's maximum context length is {self.window} tokens. However, …"
            return error(400, stated if self.states else "The prompt is too long", "context_length_exceeded")
        if not system.startswith("You merge"):
            self.read.update(int(position) for position in re.findall(r"^\[(\d+)\]", user, re.MULTILINE))
        asked = int(re.findall(r"At most (\d+) tokens", system)[0])
        # Nine headings and a line below each take 150 tokens; few models write less.
        words = max(4, int(0.5 * min(0.8 * asked, count(user) / 4) / len(HEADINGS)))
        lines = (f"## {heading}\n- {' '.join(self._choice.choices(WORDS, k=words))}" for heading in HEADINGS)
        return completion("\n".join(lines))


@pytest.mark.requirement("R1 2.2", "R1 5.2 end")
@pytest.mark.parametrize(
    ("window", "told", "states", "least"),
    [
        (8_192, None, False, 1.0),
        (8_192, 8_192, False, 1.0),
        (8_192, 65_536, False, 1.0),
        (8_192, 65_536, True, 1.0),
        (8_192, 4_096, False, 0.8),
        (4_096, None, False, 0.5),
        (4_096, None, True, 0.7),
        (4_096, 4_096, False, 0.8),
        (4_096, 32_768, False, 0.5),
        (2_048, 2_048, False, 0.15),
        (2_048, None, True, 0.15),
    ],
)
async def test_most_messages_are_read_though_the_window_is_small_unknown_or_told_wrong(
    window: int, told: int | None, states: bool, least: float
) -> None:
    summarizer = SmallSummarizer(window, states=states)
    async with replica(model := Model(summarizer)) as one:
        work = await job(one.target(window=told), number=300)
        making = (await one.compactor.checkpoint(work)).making
    assert making.algorithm == "bisect_v1"
    assert len(summarizer.read) >= least * len(work.source)
    assert making.calls <= 16
    assert len(model.asked) <= making.calls + 1  # an answer that is refused is asked for again
    assert making.truncated == (least < 1)


@pytest.mark.parametrize(
    ("window", "told", "least"), [(2_048, 2_048, 1.0), (2_048, None, 0.7), (3_000, None, 1.0), (3_000, 1_500, 0.5)]
)
async def test_a_short_span_is_read_by_a_summarizer_of_a_tiny_window(
    window: int, told: int | None, least: float
) -> None:
    summarizer = SmallSummarizer(window)
    async with replica(Model(summarizer)) as one:
        work = await job(one.target(window=told), number=80)
        making = (await one.compactor.checkpoint(work)).making
    assert making.algorithm == "bisect_v1"
    assert len(summarizer.read) >= least * len(work.source)
