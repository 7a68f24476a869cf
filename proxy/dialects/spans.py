"""Positions of items in a body."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import overload

Span = tuple[int, int]


class ByteSpans(Sequence[Span]):
    """Start and end of each item, packed. A list of pairs would take eight times the memory."""

    __slots__ = ("_offsets",)

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        """Pack these spans."""
        self._offsets = array("Q", chain.from_iterable(spans))

    def __len__(self) -> int:
        """Return the number of spans."""
        return len(self._offsets) // 2

    @overload
    def __getitem__(self, at: int) -> Span: ...

    @overload
    def __getitem__(self, at: slice) -> ByteSpans: ...

    def __getitem__(self, at: int | slice) -> Span | ByteSpans:
        """Return a span, or a slice without a step."""
        if isinstance(at, slice):
            start, end, step = at.indices(len(self))
            if step != 1:
                raise ValueError("spans are sliced without a step")
            return _from_offsets(self._offsets[2 * start : 2 * end])
        return self._offsets[2 * at], self._offsets[2 * at + 1]

    def __add__(self, later: Iterable[Span]) -> ByteSpans:
        """Return the spans with later ones appended."""
        return _from_offsets(self._offsets + ByteSpans(later)._offsets)


def _from_offsets(offsets: array[int]) -> ByteSpans:
    spans = ByteSpans.__new__(ByteSpans)
    spans._offsets = offsets  # noqa: SLF001 - same module
    return spans


class JoinedSpans(Sequence[Span]):
    """Spans of messages of several items each, computed on access. Most are never needed.

    ends: for each message, the number of items up to its end.
    """

    __slots__ = ("_ends", "_items")

    def __init__(self, items: Sequence[Span], ends: Sequence[int]) -> None:
        """Combine the spans of items into those of messages."""
        self._items, self._ends = items, ends

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self._ends)

    @overload
    def __getitem__(self, at: int) -> Span: ...

    @overload
    def __getitem__(self, at: slice) -> list[Span]: ...

    def __getitem__(self, at: int | slice) -> Span | list[Span]:
        """Return the span of a message, or those of a slice."""
        if isinstance(at, slice):
            return [self[index] for index in range(*at.indices(len(self)))]
        end = self._ends[at]
        start = self._ends[at - 1] if at % len(self._ends) else 0
        return self._items[start][0], self._items[end - 1][1]
