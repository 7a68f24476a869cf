"""Summarizing what does not fit one call: split, summarize the parts, merge (R1; docs/design.md, "Bisection").

A generator without I/O: it yields the calls that may run side by side, is sent their results, and returns the outcome.
Only an overflow is a result; any other error is thrown into the caller's hands and ends it, so no further call is made.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from zlib import crc32

from policies.settings import BisectSettings
from policies.transcript import Block, CountTokens, shorten

_MAX_SHRINKS = 3
# What the parts of a merge may lose, in characters, before the merge is given up.
_LEAST_PART = 200
# How far from the middle a span may be cut, as a share of it.
_NEAR = 0.1
# What stands for a part that no call could take: its beginning and end, in characters.
_EXTRACT = 1_500


@dataclass(frozen=True, slots=True)
class SummarizeCall:
    """Summarize one of so many parts of the span; one is the whole."""

    blocks: tuple[Block, ...]
    depth: int
    parts: int = 1


@dataclass(frozen=True, slots=True)
class MergeCall:
    """Merge summaries, oldest first, into one."""

    texts: tuple[str, ...]
    depth: int


Call = SummarizeCall | MergeCall


@dataclass(frozen=True, slots=True)
class Overflow:
    """The summarizer could not take the call; `limit` is the prompt size it stated, in tokens."""

    limit: int | None = None


Result = str | Overflow


@dataclass(frozen=True, slots=True)
class Outcome:
    """The summary and how it came about. `text` is None when not even one part could be summarized."""

    text: str | None
    calls: int
    chunk_count: int
    max_depth: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class _Leaf:
    blocks: tuple[Block, ...]
    depth: int
    shrinks: int = 0
    text: str | None = None
    extracted: bool = False

    @property
    def tokens(self) -> int:
        return sum(block.tokens for block in self.blocks)

    @property
    def pending(self) -> bool:
        return self.text is None

    def extract(self) -> _Leaf:
        """The last resort, without a model."""
        text = shorten("\n".join(block.text for block in self.blocks), _EXTRACT)
        return replace(self, text=text, extracted=True)


def bisect(
    blocks: Sequence[Block], previous: str | None, capacity: int | None, settings: BisectSettings, count: CountTokens
) -> Generator[tuple[Call, ...], tuple[Result, ...], Outcome]:
    """Summarize `blocks` in calls of at most `capacity` tokens (None: unknown, found out by overflowing).

    `previous`, the standing summary, joins the merge as its oldest part; a single call carries it by itself.
    """
    run = _Run(settings, capacity, count)
    leaves = [_Leaf(tuple(blocks), 0)]
    while any(leaf.pending for leaf in leaves):
        leaves = yield from run.summarize_wave(leaves)
    text = None
    if not all(leaf.extracted for leaf in leaves):
        text = leaves[0].text
        if len(leaves) > 1:
            text = yield from run.merge([*([previous] if previous else []), *(leaf.text or "" for leaf in leaves)])
    return Outcome(text, run.calls, len(leaves), run.max_depth, run.truncated)


class _Run:
    """The counters of one bisection; everything else is passed along."""

    def __init__(self, settings: BisectSettings, capacity: int | None, count: CountTokens) -> None:
        self.settings = settings
        self.capacity = capacity
        self.count = count
        self.calls = 0
        self.max_depth = 0
        self.truncated = False

    def split_to_capacity(self, leaves: list[_Leaf]) -> list[_Leaf]:
        """Split what the estimate already says cannot fit; shrink first what would take too many calls."""
        if self.capacity is None:
            return leaves
        affordable = self.capacity * max(1, self.settings.max_calls // 2)
        ready: list[_Leaf] = []
        waiting = [self._shrink_to(leaf, affordable) if leaf.pending else leaf for leaf in reversed(leaves)]
        while waiting:
            leaf = waiting.pop()
            if leaf.tokens <= self.capacity or not leaf.pending:
                ready.append(leaf)
            elif (halves := self._halves(leaf)) is not None:
                waiting.extend(reversed(halves))
            else:
                ready.append(self._shrink_to(leaf, self.capacity))
        return ready

    def summarize_wave(self, leaves: list[_Leaf]) -> Generator[tuple[Call, ...], tuple[Result, ...], list[_Leaf]]:
        """One wave: all pending leaves side by side, as far as the calls last; one call is kept for the merge."""
        leaves = self.split_to_capacity(leaves)
        left = self.settings.max_calls - self.calls - (1 if len(leaves) > 1 else 0)
        pending = [i for i, leaf in enumerate(leaves) if leaf.pending]
        asked, skipped = pending[: max(0, left)], pending[max(0, left) :]
        outcome: dict[int, list[_Leaf]] = {i: [leaves[i].extract()] for i in skipped}
        self.truncated = self.truncated or bool(skipped)
        if asked:
            calls = tuple(SummarizeCall(leaves[i].blocks, leaves[i].depth, len(leaves)) for i in asked)
            results = yield from self._ask(calls)
            for i, result in zip(asked, results, strict=True):
                outcome[i] = self._settle(leaves[i], result)
        return [after for i, leaf in enumerate(leaves) for after in outcome.get(i, [leaf])]

    def merge(self, texts: list[str]) -> Generator[tuple[Call, ...], tuple[Result, ...], str]:
        """All parts at once; on overflow pairwise until one is left; a pair that overflows is halved."""
        if self.calls < self.settings.max_calls:
            (result,) = yield from self._ask((MergeCall(tuple(texts), 0),))
            if isinstance(result, str):
                return result
        while len(texts) > 1 and self.calls < self.settings.max_calls:
            texts = yield from self._merge_pairs(texts)
        if len(texts) > 1:
            self.truncated = True
        return "\n\n".join(texts)

    def _merge_pairs(self, texts: list[str]) -> Generator[tuple[Call, ...], tuple[Result, ...], list[str]]:
        pairs: list[tuple[str, ...]] = [tuple(texts[i : i + 2]) for i in range(0, len(texts), 2)]
        whole = [pair for pair in pairs if len(pair) == 2][: self.settings.max_calls - self.calls]
        results = yield from self._ask(tuple(MergeCall(pair, 1) for pair in whole))
        merged: list[str] = []
        for asked, result in zip(whole, results, strict=True):
            merged.extend([result] if isinstance(result, str) else self._halved(asked))
        for pair in pairs:
            if pair not in whole:
                merged.extend(pair)
        return merged

    def _halved(self, pair: tuple[str, ...]) -> list[str]:
        """Both halves of a pair that overflowed, or, when there is little left to halve, both as one."""
        self.truncated = True
        halves = [shorten(text, max(_LEAST_PART, len(text) // 2)) for text in pair]
        return halves if max(map(len, halves)) > _LEAST_PART * 2 else ["\n\n".join(halves)]

    def _ask(self, calls: tuple[Call, ...]) -> Generator[tuple[Call, ...], tuple[Result, ...], tuple[Result, ...]]:
        self.calls += len(calls)
        self.max_depth = max([self.max_depth, *(call.depth for call in calls)])
        results = yield calls
        stated = [result.limit for result in results if isinstance(result, Overflow) and result.limit]
        if stated:
            self.capacity = min([*stated, *([self.capacity] if self.capacity else [])])
        return results

    def _settle(self, leaf: _Leaf, result: Result) -> list[_Leaf]:
        if isinstance(result, str):
            return [replace(leaf, text=result)]
        halves = self._halves(leaf)
        if halves is not None:
            return halves
        if leaf.shrinks >= _MAX_SHRINKS:
            self.truncated = True
            return [leaf.extract()]
        return [self._shrink_to(leaf, leaf.tokens // 2)]

    def _halves(self, leaf: _Leaf) -> list[_Leaf] | None:
        """Both sides of a legal cut near the token midpoint; None where splitting ends.

        Of those near it, within what costs no further call, content decides: so the same cuts are found again where a
        message has changed elsewhere, and the parts between them.
        """
        splitting = self.settings.enabled and leaf.depth < self.settings.max_depth
        cuts = [i for i, block in enumerate(leaf.blocks) if i > 0 and block.cut_before]
        if not splitting or len(leaf.blocks) <= self.settings.min_messages or not cuts:
            return None
        before = 0
        sums = [before := before + block.tokens for block in leaf.blocks]
        nearest = min(cuts, key=lambda i: abs(2 * sums[i - 1] - sums[-1]))
        near = [i for i in cuts if abs(2 * sums[i - 1] - sums[-1]) <= _NEAR * sums[-1]] or [nearest]
        least = min(self._calls_for(sums, nearest), *(self._calls_for(sums, i) for i in near))
        alike = [i for i in near if self._calls_for(sums, i) == least] or [nearest]
        cut = min(alike, key=lambda i: crc32(leaf.blocks[i].text.encode("utf-8", "replace")))
        depth = leaf.depth + 1
        self.max_depth = max(self.max_depth, depth)
        return [_Leaf(leaf.blocks[:cut], depth), _Leaf(leaf.blocks[cut:], depth)]

    def _calls_for(self, sums: Sequence[int], cut: int) -> int:
        """Calls that both sides of a cut take at least."""
        if not self.capacity:
            return 2
        before = sums[cut - 1]
        return ceil(before / self.capacity) + ceil((sums[-1] - before) / self.capacity)

    def _shrink_to(self, leaf: _Leaf, tokens: int) -> _Leaf:
        """Halve the largest text, head and tail, until the leaf weighs at most `tokens` or nothing is left to halve."""
        if leaf.tokens <= tokens:
            return leaf
        blocks = list(leaf.blocks)
        total = leaf.tokens
        while total > tokens:
            largest = max(range(len(blocks)), key=lambda i: blocks[i].tokens)
            old = blocks[largest]
            text = shorten(old.text, len(old.text) // 2)
            if len(text) >= len(old.text):
                break
            blocks[largest] = replace(old, text=text, tokens=self.count(text))
            total += blocks[largest].tokens - old.tokens
            self.truncated = True
        return replace(leaf, blocks=tuple(blocks), shrinks=leaf.shrinks + 1)
