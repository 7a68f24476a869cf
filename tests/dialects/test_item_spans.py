"""Where items stand, packed: read as a list of pairs is."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.spans import ByteSpans, JoinedSpans

PAIRS = st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)), max_size=8)


@given(PAIRS, PAIRS, st.slices(8))
def test_they_are_read_as_a_list_of_pairs(
    pairs: list[tuple[int, int]], later: list[tuple[int, int]], at: slice
) -> None:
    spans, part = ByteSpans(pairs), slice(at.start, at.stop)
    assert (len(spans), [*spans]) == (len(pairs), pairs)
    assert [*spans[part]] == pairs[part]
    assert [*(spans + later)] == pairs + later
    assert [spans[i] for i in range(-len(pairs), len(pairs))] == pairs * 2


def test_a_step_is_refused() -> None:
    with pytest.raises(ValueError, match="without a step"):
        ByteSpans([(1, 2), (3, 4)])[::-1]


@given(PAIRS, st.sets(st.integers(1, 8)), st.slices(8))
def test_those_of_several_items_each_are_read_as_a_list_of_pairs(
    items: list[tuple[int, int]], ends: set[int], at: slice
) -> None:
    kept = sorted(end for end in ends if end <= len(items))
    pairs = [(items[first][0], items[end - 1][1]) for first, end in pairwise((0, *kept))]
    spans = JoinedSpans(items, kept)
    assert (len(spans), [*spans], spans[at]) == (len(pairs), pairs, pairs[at])
    assert [spans[i] for i in range(-len(pairs), len(pairs))] == pairs * 2
    with pytest.raises(IndexError):
        spans[len(pairs)]
