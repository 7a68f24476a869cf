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
# What a single message must take of a small part to be what makes it too large, where no capacity is known.
_MOST_OF_IT = 0.5
# How far from the middle a span may be cut, as a share of it.
_NEAR = 0.1
# What stands for a part that no call could take: its beginning and end, in characters, at most.
_EXTRACT = 1_500
_CHARACTERS_PER_TOKEN = 3


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
class BisectOutcome:
    """The summary and how it came about. `text` is None when not even one part could be summarized.

    chunk_count: parts that calls were made for, or tried with.
    is_bounded:  whether parts were left out since the calls or the depth of the settings were used up.
    """

    text: str | None
    calls: int
    chunk_count: int
    max_depth: int
    truncated: bool
    is_bounded: bool = False


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A part of the span. `left_out`: nobody is asked for it, for want of calls or depth."""

    blocks: tuple[Block, ...]
    depth: int
    shrinks: int = 0
    text: str | None = None
    extracted: bool = False
    left_out: bool = False

    @property
    def tokens(self) -> int:
        return sum(block.tokens for block in self.blocks)

    @property
    def largest(self) -> int:
        return max((block.tokens for block in self.blocks), default=0)

    @property
    def cuts(self) -> list[int]:
        return [i for i, block in enumerate(self.blocks) if i > 0 and block.cut_before]

    @property
    def pending(self) -> bool:
        return self.text is None

    def extract(self, characters: int, *, left_out: bool = False) -> _Leaf:
        """The last resort, without a model."""
        text = shorten("\n".join(block.text for block in self.blocks), characters)
        return replace(self, text=text, extracted=True, left_out=left_out)


def bisect(
    blocks: Sequence[Block],
    previous: str | None,
    capacity: int | None,
    settings: BisectSettings,
    count: CountTokens,
    part: int = 0,
) -> Generator[tuple[Call, ...], tuple[Result, ...], BisectOutcome]:
    """Summarize `blocks` in calls of at most `capacity` tokens (None: unknown, found out by overflowing).

    `previous`, the standing summary, joins the merge as its oldest part; a single call carries it by itself.
    part: tokens that the summary of a part may have, by which calls are kept for the merges; 0: all fit one merge.
    """
    run = _BisectionCounters(settings, capacity, count, part)
    leaves = [_Leaf(tuple(blocks), 0)]
    while any(leaf.pending for leaf in leaves):
        leaves = yield from run.summarize_wave(leaves)
    text = None
    if not all(leaf.extracted for leaf in leaves):
        text = leaves[0].text
        if len(leaves) > 1:
            text = yield from run.merge([*([previous] if previous else []), *(leaf.text or "" for leaf in leaves)])
    chunks = max(1, sum(not leaf.left_out for leaf in leaves))
    return BisectOutcome(text, run.calls, chunks, run.max_depth, run.truncated, run.is_bounded)


class _BisectionCounters:
    """The counters of one bisection; everything else is passed along."""

    def __init__(self, settings: BisectSettings, capacity: int | None, count: CountTokens, part: int) -> None:
        self.settings = settings
        self.capacity = capacity
        self.count = count
        self.part = part
        self.calls = 0
        self.max_depth = 0
        self.truncated = False
        self.is_bounded = False

    @property
    def calls_left(self) -> int:
        return self.settings.max_calls - self.calls

    @property
    def extract_size(self) -> int:
        """Characters that stand for what nobody has summarized: about what a summary of a part may have."""
        return min(_EXTRACT, max(_LEAST_PART, _CHARACTERS_PER_TOKEN * self.part)) if self.part else _EXTRACT

    def split_to_capacity(self, leaves: list[_Leaf]) -> list[_Leaf]:
        """Split what the estimate already says cannot fit. Only what cannot be split is cut; what lies too deep to be
        split gives up its older messages, whole."""
        if self.capacity is None:
            return leaves
        ready: list[_Leaf] = []
        waiting = leaves[::-1]
        while waiting:
            leaf = waiting.pop()
            if leaf.tokens <= self.capacity or not leaf.pending:
                ready.append(leaf)
            elif (halves := self._halves(leaf)) is not None:
                waiting.extend(reversed(halves))
            elif self._is_at_its_depth(leaf):
                ready.extend(self._newest_within(leaf, self.capacity))
            else:
                ready.append(self._shrink_to(leaf, self.capacity))
        return ready

    def summarize_wave(self, leaves: list[_Leaf]) -> Generator[tuple[Call, ...], tuple[Result, ...], list[_Leaf]]:
        """One wave: pending leaves side by side, the newest of them as far as the calls last beside those that merge;
        of the others together, beginning and end stand for them."""
        leaves = self._without_oldest(self.split_to_capacity(leaves))
        asked = [i for i, leaf in enumerate(leaves) if leaf.pending]
        outcome: dict[int, list[_Leaf]] = {}
        if asked:
            calls = tuple(SummarizeCall(leaves[i].blocks, leaves[i].depth, len(leaves)) for i in asked)
            results = yield from self._ask(calls)
            for i, result in zip(asked, results, strict=True):
                outcome[i] = self._settle(leaves[i], result)
        return [after for i, leaf in enumerate(leaves) for after in outcome.get(i, [leaf])]

    def _without_oldest(self, leaves: list[_Leaf]) -> list[_Leaf]:
        """The leaves; of those that the calls do not last for, each run as one that is left out."""
        pending = [i for i, leaf in enumerate(leaves) if leaf.pending]
        others = len(leaves) - len(pending)
        fits = (n for n in range(len(pending), 0, -1) if self._costs(others, n, len(pending)) <= self.calls_left)
        most = next(fits, min(1, self.calls_left))
        if most == len(pending):
            return leaves
        self.truncated = self.is_bounded = True
        kept: list[_Leaf] = []
        run: list[_Leaf] = []
        skipped = set(pending[: len(pending) - most])
        for i, leaf in enumerate(leaves):
            if i in skipped:
                run.append(leaf)
                continue
            kept += [*_left_out(run, self.extract_size), leaf]
            run = []
        return [*kept, *_left_out(run, self.extract_size)]

    def _costs(self, others: int, asked: int, pending: int) -> int:
        """Calls that it takes to ask for so many of the pending leaves, and to merge all there is then."""
        return asked + self._merges(others + asked + (1 if asked < pending else 0))

    def _merges(self, texts: int) -> int:
        if texts <= 1:
            return 0
        if not self.capacity or not self.part:
            return 1
        at_once = max(2, self.capacity // self.part)
        return ceil((texts - 1) / (at_once - 1))

    def merge(self, texts: list[str]) -> Generator[tuple[Call, ...], tuple[Result, ...], str]:
        """One text: of as many parts at once as fit, on overflow of two, until one is left; a pair that overflows is
        halved."""
        most = len(texts)
        while len(texts) > 1 and self.calls_left > 0:
            groups = self._groups(texts, most)
            asked = [i for i, group in enumerate(groups) if len(group) > 1][: self.calls_left]
            depth = 0 if len(groups) == 1 and most > 2 else 1
            results = yield from self._ask(tuple(MergeCall(groups[i], depth) for i in asked))
            merged: dict[int, list[str]] = {}
            for i, result in zip(asked, results, strict=True):
                if isinstance(result, str):
                    merged[i] = [result]
                elif len(groups[i]) > 2:
                    most = 2
                else:
                    merged[i] = self._halve_pair(groups[i])
            texts = [text for i, group in enumerate(groups) for text in merged.get(i, group)]
        if len(texts) > 1:
            self.truncated = True
        return "\n\n".join(texts)

    def _groups(self, texts: list[str], most: int) -> list[tuple[str, ...]]:
        """Neighbours that one call may merge: at most so many, and as many as fit, but for two, which are tried."""
        groups: list[tuple[str, ...]] = []
        group: list[str] = []
        for text in texts:
            tokens = sum(map(self.count, [*group, text]))
            if len(group) >= 2 and (len(group) == most or (self.capacity and tokens > self.capacity)):
                groups.append(tuple(group))
                group = []
            group.append(text)
        return [*groups, tuple(group)]

    def _halve_pair(self, pair: tuple[str, ...]) -> list[str]:
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
        if self.settings.enabled and self._is_at_its_depth(leaf):
            self.truncated = self.is_bounded = True
            return [leaf.extract(self.extract_size)]
        if leaf.shrinks >= _MAX_SHRINKS:
            self.truncated = True
            return [leaf.extract(self.extract_size)]
        if self._is_at_its_depth(leaf):
            return self._newest_within(leaf, leaf.tokens // 2)
        return [self._shrink_to(leaf, leaf.tokens // 2)]

    def _is_at_its_depth(self, leaf: _Leaf) -> bool:
        """Whether a leaf of several messages is not split any more, however large it is."""
        return bool(leaf.cuts) and (not self.settings.enabled or leaf.depth >= self.settings.max_depth)

    def _is_one_message(self, leaf: _Leaf) -> bool:
        """Whether a small leaf is too large for one of its messages, so that this is what has to be cut."""
        if len(leaf.blocks) > self.settings.min_messages:
            return False
        if not self.capacity:
            return leaf.largest >= _MOST_OF_IT * leaf.tokens
        return leaf.largest > self.capacity and leaf.tokens - leaf.largest <= _MOST_OF_IT * self.capacity

    def _halves(self, leaf: _Leaf) -> list[_Leaf] | None:
        """Both sides of a legal cut near the token midpoint, or where one side fills its calls; None if splitting ends.

        Of those near it, within what costs no further call, content decides: so the same cuts are found again where a
        message has changed elsewhere, and the parts between them.
        """
        cuts = leaf.cuts
        if not cuts or self._is_at_its_depth(leaf) or self._is_one_message(leaf):
            return None
        before = 0
        sums = [before := before + block.tokens for block in leaf.blocks]
        middle = self._middle(sums[-1])
        nearest = min(cuts, key=lambda i: abs(sums[i - 1] - middle))
        near = [i for i in cuts if abs(sums[i - 1] - middle) <= _NEAR / 2 * sums[-1]] or [nearest]
        least = min(self._calls_for(sums, nearest), *(self._calls_for(sums, i) for i in near))
        alike = [i for i in near if self._calls_for(sums, i) == least] or [nearest]
        cut = min(alike, key=lambda i: crc32(leaf.blocks[i].text.encode("utf-8", "replace")))
        depth = leaf.depth + 1
        self.max_depth = max(self.max_depth, depth)
        return [_Leaf(leaf.blocks[:cut], depth), _Leaf(leaf.blocks[cut:], depth)]

    def _middle(self, tokens: int) -> float:
        """Where so many tokens are best cut: an odd number of full calls leaves one more on the older side."""
        calls = ceil(tokens / self.capacity) if self.capacity else 2
        return tokens * ceil(calls / 2) / calls if calls > 1 else tokens / 2

    def _calls_for(self, sums: Sequence[int], cut: int) -> int:
        """Calls that both sides of a cut take at least."""
        if not self.capacity:
            return 2
        before = sums[cut - 1]
        return ceil(before / self.capacity) + ceil((sums[-1] - before) / self.capacity)

    def _newest_within(self, leaf: _Leaf, tokens: int) -> list[_Leaf]:
        """The newest messages of a leaf that fit, behind the others, which are left out."""
        self.truncated = self.is_bounded = True
        cut = next((i for i in leaf.cuts if sum(b.tokens for b in leaf.blocks[i:]) <= tokens), leaf.cuts[-1])
        newest = replace(leaf, blocks=leaf.blocks[cut:], shrinks=leaf.shrinks + 1)
        older = replace(leaf, blocks=leaf.blocks[:cut]).extract(self.extract_size, left_out=True)
        return [older, self._shrink_to(newest, tokens)]

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


def _left_out(leaves: Sequence[_Leaf], characters: int) -> list[_Leaf]:
    """Neighbours as one leaf that nobody is asked for."""
    if not leaves:
        return []
    blocks = tuple(block for leaf in leaves for block in leaf.blocks)
    return [_Leaf(blocks, min(leaf.depth for leaf in leaves)).extract(characters, left_out=True)]
