"""Blocks of text, and a summarizer with a window that bisection is driven with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from policies.conversation.transcript import Block
from policies.record.bisect import BisectOutcome, Call, MergeCall, Overflow, Result, bisect
from policies.settings import BisectSettings
from tests.support.conversations import count

DEFAULT = BisectSettings()


def blocks(*sizes: int) -> list[Block]:
    """Blocks of that many tokens, each named so that its text can be found again; every one may be cut before."""
    return [block(i, size) for i, size in enumerate(sizes)]


def block(number: int, size: int, *, cut_before: bool = True) -> Block:
    text = f"<{number}>".ljust(4 * size, "x")
    return Block(text, count(text), cut_before)


@dataclass
class Model:
    """A summarizer with a window in tokens. Its summary of blocks is their first eight characters."""

    window: float
    merge_window: float = float("inf")
    states_limit: bool = False
    calls: list[Call] = field(default_factory=list)

    def answer(self, call: Call) -> Result:
        self.calls.append(call)
        if isinstance(call, MergeCall):
            fits = sum(map(count, call.texts)) <= self.merge_window
            return "+".join(call.texts) if fits else Overflow()
        if sum(b.tokens for b in call.blocks) > self.window:
            return Overflow(int(self.window) if self.states_limit else None)
        return "".join(b.text[: b.text.index(">") + 1] for b in call.blocks)


def run(
    given_blocks: Sequence[Block],
    answer: Callable[[Call], Result],
    *,
    previous: str | None = None,
    capacity: int | None = None,
    settings: BisectSettings = DEFAULT,
    length: int = 0,
) -> BisectOutcome:
    work = bisect(given_blocks, previous, capacity, settings, count, length)
    results: tuple[Result, ...] | None = None
    while True:
        try:
            calls = next(work) if results is None else work.send(results)
        except StopIteration as finished:
            outcome: BisectOutcome = finished.value
            return outcome
        results = tuple(answer(call) for call in calls)
