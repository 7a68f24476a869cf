"""Where items stand in a body."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import overload

Span = tuple[int, int]


class Spans(Sequence[Span]):
    """First and last of the bytes of each item, packed: a pair for each would take eight times as much."""

    __slots__ = ("_offsets",)

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._offsets = array("Q", chain.from_iterable(spans))

    def __len__(self) -> int:
        return len(self._offsets) // 2

    @overload
    def __getitem__(self, at: int) -> Span: ...

    @overload
    def __getitem__(self, at: slice) -> Spans: ...

    def __getitem__(self, at: int | slice) -> Span | Spans:
        """Slices without a step."""
        if isinstance(at, slice):
            first, last, _ = at.indices(len(self))
            return _of(self._offsets[2 * first : 2 * last])
        return self._offsets[2 * at], self._offsets[2 * at + 1]

    def __add__(self, later: Iterable[Span]) -> Spans:
        return _of(self._offsets + Spans(later)._offsets)


def _of(offsets: array[int]) -> Spans:
    spans = Spans.__new__(Spans)
    spans._offsets = offsets  # noqa: SLF001 - of its own module
    return spans
