"""Summarizing what does not fit one call: split, summarize the parts, merge (R1; docs/design.md, "Bisection").

A generator without I/O: it yields the calls that may run side by side, is sent their results, and returns the outcome.
Only an overflow is a result; any other error is thrown into the caller's hands and ends it, so no further call is made.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from zlib import crc32

from policies.conversation.transcript import Block, CountTokens, shorten
from policies.settings import BisectSettings

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
# The share of a refused part that is tried next, if the limit is not stated: a little more than half, since halves are
# not equal.
_NEXT_SIZE = 0.6
# The share of all calls that are made at once before a capacity is known to be right.
_UNPROVEN_CALLS = 1 / 2
# A summary of a part has at most a fourth of its tokens, but so many in any case: fewer hold the headings alone.
_PART_SHARE = 1 / 4
_LEAST_SUMMARY = 250


def part_length(tokens: int, length: int) -> int:
    """Return the tokens that the summary of a part of `tokens` may have, if that of the whole may have `length`."""
    return min(length, max(_LEAST_SUMMARY, int(_PART_SHARE * tokens)))


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
    length: int = 0,
    carried: int = 0,
    taken: int = 0,
) -> Generator[tuple[Call, ...], tuple[Result, ...], BisectOutcome]:
    """Summarize `blocks` in calls of at most `capacity` tokens (None: unknown, found out by overflowing).

    `previous`, the standing summary, joins the merge as its oldest part; a single call carries it by itself.
    length:  tokens that the summary may have, by which calls are kept for the merges; 0: all parts fit one merge.
    carried: tokens that a single call has beside its blocks and a part has not, `previous` among them.
    taken:   tokens of the largest prompt that the model is known to take.
    """
    carried_by_merges = max(0, carried - (count(previous) if previous else 0))
    run = _BisectionCounters(settings, capacity, count, length, carried_by_merges, proven=2 * taken > (capacity or 0))
    leaves = [_Leaf(tuple(blocks), 0)]
    if capacity is not None and leaves[0].tokens <= capacity < leaves[0].tokens + carried:
        leaves = run.halved(leaves[0])
    while any(leaf.pending for leaf in leaves):
        leaves = yield from run.summarize_wave(leaves)
    text = None
    if not all(leaf.extracted for leaf in leaves):
        text = leaves[0].text
        if len(leaves) > 1:
            text = yield from run.merge([*([previous] if previous else []), *(leaf.text or "" for leaf in leaves)])
    chunks = max(1, sum(not leaf.left_out for leaf in leaves))
    return BisectOutcome(text, run.calls, chunks, run.max_depth, run.truncated, run.is_bounded)


@dataclass(slots=True)
class _BisectionCounters:
    """The counters of one bisection; everything else is passed along.

    capacity: tokens of a part that one call takes, as far as that is known.
    length:   tokens that the whole summary may have; 0 if nobody says so.
    carried:  tokens that a merge has beside the texts and a part has not.
    proven:   whether a call near the capacity has been answered.
    guessed:  whether the capacity is what a refused call led us to try.
    """

    settings: BisectSettings
    capacity: int | None
    count: CountTokens
    length: int
    carried: int
    proven: bool
    guessed: bool = False
    calls: int = 0
    max_depth: int = 0
    truncated: bool = False
    is_bounded: bool = False

    @property
    def calls_left(self) -> int:
        return self.settings.max_calls - self.calls

    @property
    def extract_size(self) -> int:
        """Characters that stand for what nobody has summarized: about what a summary of a part may have."""
        return min(_EXTRACT, max(_LEAST_PART, _CHARACTERS_PER_TOKEN * self.length)) if self.length else _EXTRACT

    def halved(self, leaf: _Leaf) -> list[_Leaf]:
        """Return both halves of a leaf, or the leaf itself if it cannot be split."""
        return self._halves(leaf) or [leaf]

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
        """Ask for the newest pending leaves side by side, as many as the calls last for.

        The others wait for calls that merges turn out not to need. If none is left, their beginning and end stand for
        them.
        """
        leaves = self.split_to_capacity(self._within_calls(leaves))
        asked = self._affordable(leaves)
        if not asked:
            return self._without_pending(leaves)
        calls = tuple(SummarizeCall(leaves[i].blocks, leaves[i].depth, len(leaves)) for i in asked)
        results = yield from self._ask(calls)
        outcome = {i: self._settle(leaves[i], result) for i, result in zip(asked, results, strict=True)}
        return [after for i, leaf in enumerate(leaves) for after in outcome.get(i, [leaf])]

    def _within_calls(self, leaves: list[_Leaf]) -> list[_Leaf]:
        """Return the leaves without what no call is left to read: the oldest pending messages are one left-out leaf."""
        room = self.calls_left * (self.capacity or 0)
        if self.capacity is None or sum(leaf.tokens for leaf in leaves if leaf.pending) <= room:
            return leaves
        kept: list[_Leaf] = []
        for i, leaf in reversed([*enumerate(leaves)]):
            room -= leaf.tokens if leaf.pending else 0
            if room < 0:
                # As many of its messages as fit stay, for legal cuts need not lie where calls end.
                cut = next((c for c in leaf.cuts if sum(b.tokens for b in leaf.blocks[:c]) >= -room), None)
                if cut is not None:  # from here on it is halved anew
                    kept.insert(0, _Leaf(leaf.blocks[cut:], 0))
                    leaves = [*leaves[:i], replace(leaf, blocks=leaf.blocks[:cut])]
                elif kept:
                    leaves = leaves[: i + 1]
                else:
                    return leaves
                return [*self._without_pending(leaves), *kept]
            kept.insert(0, leaf)
        return kept

    def _affordable(self, leaves: list[_Leaf]) -> list[int]:
        """Return the indexes of the pending leaves to ask for: the newest, and few as long as the capacity is a guess.

        One is asked for in any case if nothing has been summarized yet.
        """
        pending = [i for i, leaf in enumerate(leaves) if leaf.pending]
        most = len(pending) if self.proven else 1 if self.guessed else int(_UNPROVEN_CALLS * self.settings.max_calls)
        for number in range(min(len(pending), max(1, most), self.calls_left), 0, -1):
            asked = pending[-number:]
            if number + self._merges_of(leaves, asked) <= self.calls_left:
                return asked
        if any(not leaf.pending and not leaf.extracted for leaf in leaves):
            return []
        return pending[-min(1, self.calls_left) :] if self.calls_left else []

    def _merges_of(self, leaves: list[_Leaf], asked: list[int]) -> int:
        """Return the calls that merge what there is once the leaves `asked` are summarized and the others left out."""
        sizes: list[int] = []
        was_left_out = False
        for i, leaf in enumerate(leaves):
            is_left_out = leaf.pending and i not in asked
            if is_left_out and not was_left_out:
                sizes.append(self.extract_size // _CHARACTERS_PER_TOKEN)
            elif not is_left_out:
                text = leaf.text
                sizes.append(part_length(leaf.tokens, self.length) if text is None else self.count(text))
            was_left_out = is_left_out
        calls = 0
        while len(sizes) > 1:
            groups = self._groups(sizes, len(sizes))
            calls += sum(len(group) > 1 for group in groups)
            sizes = [min(self.length, sum(sizes[i] for i in group)) for group in groups]
        return calls

    def _without_pending(self, leaves: list[_Leaf]) -> list[_Leaf]:
        """Return the leaves with one that is left out in the place of each run of pending ones."""
        self.truncated = self.is_bounded = True
        kept: list[_Leaf] = []
        run: list[_Leaf] = []
        for leaf in leaves:
            if leaf.pending:
                run.append(leaf)
                continue
            kept += [*_left_out(run, self.extract_size), leaf]
            run = []
        return [*kept, *_left_out(run, self.extract_size)]

    def merge(self, texts: list[str]) -> Generator[tuple[Call, ...], tuple[Result, ...], str]:
        """One text: of as many parts at once as fit, on overflow of two, until one is left; a pair that overflows is
        halved."""
        most = len(texts)
        while len(texts) > 1 and self.calls_left > 0:
            groups = [tuple(texts[i] for i in group) for group in self._groups([*map(self.count, texts)], most)]
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

    def _groups(self, sizes: Sequence[int], most: int) -> list[list[int]]:
        """Return the indexes of neighbours that one call may merge, of texts of so many tokens.

        A group has at most `most`, and as many as fit, but for two, which are tried.
        """
        room = None if self.capacity is None else self.capacity - self.carried
        groups: list[list[int]] = []
        tokens = 0
        for i, size in enumerate(sizes):
            tokens += size
            last = groups[-1] if groups else []
            if not last or (len(last) >= 2 and (len(last) == most or (room is not None and tokens > room))):
                groups.append([i])
                tokens = size
            else:
                last.append(i)
        return groups

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
            self.proven = True
            return [replace(leaf, text=result)]
        if self.capacity is None or leaf.tokens <= self.capacity:
            self.capacity, self.guessed, self.proven = int(_NEXT_SIZE * leaf.tokens), True, False
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
