"""Where items stand in a body."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import overload

Span = tuple[int, int]


class ByteSpans(Sequence[Span]):
    """First and last of the bytes of each item, packed: a pair for each would take eight times as much."""

    __slots__ = ("_offsets",)

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._offsets = array("Q", chain.from_iterable(spans))

    def __len__(self) -> int:
        return len(self._offsets) // 2

    @overload
    def __getitem__(self, at: int) -> Span: ...

    @overload
    def __getitem__(self, at: slice) -> ByteSpans: ...

    def __getitem__(self, at: int | slice) -> Span | ByteSpans:
        """Slices without a step."""
        if isinstance(at, slice):
            first, last, step = at.indices(len(self))
            if step != 1:
                raise ValueError("spans are sliced without a step")
            return _of(self._offsets[2 * first : 2 * last])
        return self._offsets[2 * at], self._offsets[2 * at + 1]

    def __add__(self, later: Iterable[Span]) -> ByteSpans:
        return _of(self._offsets + ByteSpans(later)._offsets)


def _of(offsets: array[int]) -> ByteSpans:
    spans = ByteSpans.__new__(ByteSpans)
    spans._offsets = offsets  # noqa: SLF001 - of its own module
    return spans


class JoinedSpans(Sequence[Span]):
    """Of messages that stand for several items each, worked out when they are asked for: most never are.

    ends: of each message, how many items stand before its end.
    """

    __slots__ = ("_ends", "_items")

    def __init__(self, items: Sequence[Span], ends: Sequence[int]) -> None:
        self._items, self._ends = items, ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, at: int) -> Span: ...

    @overload
    def __getitem__(self, at: slice) -> list[Span]: ...

    def __getitem__(self, at: int | slice) -> Span | list[Span]:
        if isinstance(at, slice):
            return [self[index] for index in range(*at.indices(len(self)))]
        end = self._ends[at]
        first = self._ends[at - 1] if at % len(self._ends) else 0
        return self._items[first][0], self._items[end - 1][1]
