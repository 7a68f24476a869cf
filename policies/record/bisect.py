"""Bisection of a span that does not fit one summarizer call (R1; docs/design.md, "Bisection").

Split the span, summarize the parts, merge the summaries. A generator without I/O: it yields calls that may run
concurrently, receives their results and returns the outcome. Only an overflow is a result. The caller throws any other
error into the generator, which ends it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from zlib import crc32

from policies.conversation.transcript import Block, CountTokens, shorten
from policies.settings import BisectSettings

_MAX_SHRINKS = 3
# A merge is given up when its parts are this short, in characters.
_LEAST_PART = 200
# If no capacity is known: the share of a small part at which one message is what makes the part too large.
_MOST_OF_IT = 0.5
# The window around the middle in which a span may be cut, as a share of the span.
_NEAR = 0.1
# Maximum length in characters of the extract (beginning and end) of a part that no call accepted.
_EXTRACT = 1_500
_CHARACTERS_PER_TOKEN = 3
# If no limit is stated: the share of a refused part to try next. It exceeds one half because halves are not equal.
_NEXT_SIZE = 0.6
# The share of all calls to make concurrently before a capacity is proven.
_UNPROVEN_CALLS = 1 / 2
# The summary of a part has at most this share of its tokens. Below the minimum it would hold only the headings.
_PART_SHARE = 1 / 4
_LEAST_SUMMARY = 250


def part_length(tokens: int, length: int) -> int:
    """Return the maximum tokens for the summary of a part, if the whole summary may have `length`."""
    return min(length, max(_LEAST_SUMMARY, int(_PART_SHARE * tokens)))


@dataclass(frozen=True, slots=True)
class SummarizeCall:
    """A call that summarizes one of `parts` parts of the span."""

    blocks: tuple[Block, ...]
    depth: int
    parts: int = 1


@dataclass(frozen=True, slots=True)
class MergeCall:
    """A call that merges summaries, oldest first, into one."""

    texts: tuple[str, ...]
    depth: int


Call = SummarizeCall | MergeCall


@dataclass(frozen=True, slots=True)
class Overflow:
    """The prompt was too large for the summarizer. limit: the maximum prompt it stated, in tokens."""

    limit: int | None = None


Result = str | Overflow


@dataclass(frozen=True, slots=True)
class BisectOutcome:
    """The summary and how it was made.

    text:        None if no part could be summarized.
    chunk_count: parts for which a call was made or tried.
    is_bounded:  True if parts were left out because `max_calls` or `max_depth` was reached.
    """

    text: str | None
    calls: int
    chunk_count: int
    max_depth: int
    truncated: bool
    is_bounded: bool = False


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A part of the span. left_out: True if no call is made for it because calls or depth ran out."""

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
        """Return the leaf with its beginning and end as its text. No model is called."""
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
    """Summarize `blocks` in calls of at most `capacity` tokens (None: unknown until a call overflows).

    previous: the current summary. A single call includes it; a merge takes it as its oldest part.
    length:   maximum tokens of the summary, used to reserve calls for merges; 0: all parts fit one merge.
    carried:  tokens that a single call has in addition to its blocks, including `previous`. A part has none.
    taken:    tokens of the largest prompt that the model is known to accept.
    """
    carried_by_merges = max(0, carried - (count(previous) if previous else 0))
    run = _BisectionCounters(settings, capacity, count, length, carried_by_merges, proven=2 * taken > (capacity or 0))
    leaves = [_Leaf(tuple(blocks), 0)]
    if capacity is not None and leaves[0].tokens <= capacity < leaves[0].tokens + carried:
        leaves = run.split(leaves[0])
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
    """The counters of one bisection.

    capacity: tokens of a part that one call accepts, as far as known.
    length:   maximum tokens of the whole summary; 0 if there is no maximum.
    carried:  tokens that a merge has in addition to the texts. A part has none.
    proven:   True if a call near the capacity has succeeded.
    guessed:  True if the capacity is a guess after a refused call.
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
        """Return the characters of an extract: about the size of a part's summary."""
        return min(_EXTRACT, max(_LEAST_PART, _CHARACTERS_PER_TOKEN * self.length)) if self.length else _EXTRACT

    def split(self, leaf: _Leaf) -> list[_Leaf]:
        """Return both halves of a leaf, or the leaf itself if it cannot be split."""
        return self._halves(leaf) or [leaf]

    def split_to_capacity(self, leaves: list[_Leaf]) -> list[_Leaf]:
        """Split the leaves that exceed the capacity.

        A leaf that cannot be split is shortened. A leaf at its maximum depth drops its older messages.
        """
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
        """Summarize the newest pending leaves concurrently, as many as the remaining calls allow.

        Other leaves wait for calls that merges do not need. If no call is left, extracts replace them.
        """
        leaves = self.split_to_capacity(self._within_calls(leaves))
        chosen = self._affordable(leaves)
        if not chosen:
            return self._without_pending(leaves)
        calls = tuple(SummarizeCall(leaves[i].blocks, leaves[i].depth, len(leaves)) for i in chosen)
        results = yield from self._ask(calls)
        outcome = {i: self._settle(leaves[i], result) for i, result in zip(chosen, results, strict=True)}
        return [after for i, leaf in enumerate(leaves) for after in outcome.get(i, [leaf])]

    def _within_calls(self, leaves: list[_Leaf]) -> list[_Leaf]:
        """Return the leaves that the remaining calls can read. The older pending messages become one left-out leaf."""
        room = self.calls_left * (self.capacity or 0)
        if self.capacity is None or sum(leaf.tokens for leaf in leaves if leaf.pending) <= room:
            return leaves
        newest: list[_Leaf] = []
        for i, leaf in reversed([*enumerate(leaves)]):
            room -= leaf.tokens if leaf.pending else 0
            if room < 0:
                # Keep the newest messages of the leaf that fit: legal cuts need not coincide with calls.
                cut = next((c for c in leaf.cuts if sum(b.tokens for b in leaf.blocks[:c]) >= -room), None)
                if cut is not None:  # a new leaf starts at depth 0
                    newest.insert(0, _Leaf(leaf.blocks[cut:], 0))
                    leaves = [*leaves[:i], replace(leaf, blocks=leaf.blocks[:cut])]
                elif newest:
                    leaves = leaves[: i + 1]
                else:
                    return leaves
                return [*self._without_pending(leaves), *newest]
            newest.insert(0, leaf)
        return newest

    def _affordable(self, leaves: list[_Leaf]) -> list[int]:
        """Return the indexes of the pending leaves to summarize now: the newest, and few while the capacity is a guess.

        At least one is returned if nothing has been summarized yet and a call is left.
        """
        pending = [i for i, leaf in enumerate(leaves) if leaf.pending]
        most = len(pending) if self.proven else 1 if self.guessed else int(_UNPROVEN_CALLS * self.settings.max_calls)
        for number in range(min(len(pending), max(1, most), self.calls_left), 0, -1):
            chosen = pending[-number:]
            if number + self._merges_of(leaves, chosen) <= self.calls_left:
                return chosen
        if any(not leaf.pending and not leaf.extracted for leaf in leaves):
            return []
        return pending[-min(1, self.calls_left) :] if self.calls_left else []

    def _merges_of(self, leaves: list[_Leaf], chosen: list[int]) -> int:
        """Return the calls needed to merge everything, if only the leaves `chosen` are still summarized."""
        sizes: list[int] = []
        was_left_out = False
        for i, leaf in enumerate(leaves):
            is_left_out = leaf.pending and i not in chosen
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
        """Return the leaves with each run of pending ones replaced by one left-out leaf."""
        self.truncated = self.is_bounded = True
        leaves_left: list[_Leaf] = []
        run: list[_Leaf] = []
        for leaf in leaves:
            if leaf.pending:
                run.append(leaf)
                continue
            leaves_left += [*_join_left_out(run, self.extract_size), leaf]
            run = []
        return [*leaves_left, *_join_left_out(run, self.extract_size)]

    def merge(self, texts: list[str]) -> Generator[tuple[Call, ...], tuple[Result, ...], str]:
        """Merge the texts into one, as many in a call as fit.

        After an overflow a call merges two texts. A pair that overflows is halved.
        """
        most = len(texts)
        while len(texts) > 1 and self.calls_left > 0:
            groups = [tuple(texts[i] for i in group) for group in self._groups([*map(self.count, texts)], most)]
            mergeable = [i for i, group in enumerate(groups) if len(group) > 1][: self.calls_left]
            depth = 0 if len(groups) == 1 and most > 2 else 1
            results = yield from self._ask(tuple(MergeCall(groups[i], depth) for i in mergeable))
            merged: dict[int, list[str]] = {}
            for i, result in zip(mergeable, results, strict=True):
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
        """Return groups of neighbouring indexes for texts of these sizes; one call merges one group.

        A group has at most `most` texts and fits the capacity. A pair is tried even if it does not fit.
        """
        room = None if self.capacity is None else self.capacity - self.carried
        groups: list[list[int]] = []
        tokens = 0
        for i, size in enumerate(sizes):
            tokens += size
            group = groups[-1] if groups else []
            if not group or (len(group) >= 2 and (len(group) == most or (room is not None and tokens > room))):
                groups.append([i])
                tokens = size
            else:
                group.append(i)
        return groups

    def _halve_pair(self, pair: tuple[str, ...]) -> list[str]:
        """Return both texts of an overflowing pair halved, or joined into one if they are already short."""
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
        """Return True if a leaf of several messages has reached the maximum depth."""
        return bool(leaf.cuts) and (not self.settings.enabled or leaf.depth >= self.settings.max_depth)

    def _is_one_message(self, leaf: _Leaf) -> bool:
        """Return True if one message makes a small leaf too large, so that the message must be shortened."""
        if len(leaf.blocks) > self.settings.min_messages:
            return False
        if not self.capacity:
            return leaf.largest >= _MOST_OF_IT * leaf.tokens
        return leaf.largest > self.capacity and leaf.tokens - leaf.largest <= _MOST_OF_IT * self.capacity

    def _halves(self, leaf: _Leaf) -> list[_Leaf] | None:
        """Split a leaf at a legal cut near its token midpoint. Return None if it cannot be split.

        Prefer cuts that need no additional call. Among these, a hash of the message decides. An edit elsewhere then
        leaves the cuts and parts unchanged, so their cached summaries can be reused.
        """
        cuts = leaf.cuts
        if not cuts or self._is_at_its_depth(leaf) or self._is_one_message(leaf):
            return None
        tokens_before = 0
        sums = [tokens_before := tokens_before + block.tokens for block in leaf.blocks]
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
        """Return the best position of a cut, in tokens. The older side gets the odd full call."""
        calls = ceil(tokens / self.capacity) if self.capacity else 2
        return tokens * ceil(calls / 2) / calls if calls > 1 else tokens / 2

    def _calls_for(self, sums: Sequence[int], cut: int) -> int:
        """Return the minimum number of calls for both sides of a cut."""
        if not self.capacity:
            return 2
        tokens_before = sums[cut - 1]
        return ceil(tokens_before / self.capacity) + ceil((sums[-1] - tokens_before) / self.capacity)

    def _newest_within(self, leaf: _Leaf, tokens: int) -> list[_Leaf]:
        """Return the newest messages of a leaf that fit, after one left-out leaf with its older messages."""
        self.truncated = self.is_bounded = True
        cut = next((i for i in leaf.cuts if sum(b.tokens for b in leaf.blocks[i:]) <= tokens), leaf.cuts[-1])
        newest = replace(leaf, blocks=leaf.blocks[cut:], shrinks=leaf.shrinks + 1)
        older = replace(leaf, blocks=leaf.blocks[:cut]).extract(self.extract_size, left_out=True)
        return [older, self._shrink_to(newest, tokens)]

    def _shrink_to(self, leaf: _Leaf, tokens: int) -> _Leaf:
        """Halve the largest text repeatedly until the leaf has at most `tokens` or nothing can be shortened."""
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


def _join_left_out(leaves: Sequence[_Leaf], characters: int) -> list[_Leaf]:
    """Return neighbouring leaves as one left-out leaf; an empty list if there are none."""
    if not leaves:
        return []
    blocks = tuple(block for leaf in leaves for block in leaf.blocks)
    return [_Leaf(blocks, min(leaf.depth for leaf in leaves)).extract(characters, left_out=True)]
