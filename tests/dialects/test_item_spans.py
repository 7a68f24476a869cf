"""Where items stand, packed: read as a list of pairs is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.spans import Spans

PAIRS = st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)), max_size=8)


@given(PAIRS, PAIRS, st.slices(8))
def test_they_are_read_as_a_list_of_pairs(
    pairs: list[tuple[int, int]], later: list[tuple[int, int]], at: slice
) -> None:
    spans, part = Spans(pairs), slice(at.start, at.stop)
    assert (len(spans), [*spans]) == (len(pairs), pairs)
    assert [*spans[part]] == pairs[part]
    assert [*(spans + later)] == pairs + later
    assert [spans[i] for i in range(-len(pairs), len(pairs))] == pairs * 2
