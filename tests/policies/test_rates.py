"""How much was used in the last minute, and when there is room again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.rates import seconds_until_room, used_lately

NUMBERS = st.integers(0, 10_000)
SECONDS = st.floats(0, 59.999)


@pytest.mark.parametrize(
    ("limit", "current", "previous", "second", "wait"),
    [
        (3, 2, 0, 10.0, 0),
        (3, 3, 0, 10.0, 51),  # 3 of the minute before, of which less than all count from its 61st second on
        (3, 0, 3, 0.0, 1),
        (3, 0, 6, 0.0, 31),
        (3, 0, 6, 40.0, 0),
        (100, 200, 0, 30.0, 61),
        (1, 10_000, 10_000, 0.0, 120),
        (0, 0, 0, 0.0, None),
        (-1, 0, 0, 0.0, None),
    ],
)
def test_there_is_room_again(limit: int, current: int, previous: int, second: float, wait: int | None) -> None:
    assert seconds_until_room(limit, current, previous, second) == wait


@given(limit=st.integers(1, 10_000), current=NUMBERS, previous=NUMBERS, second=SECONDS)
def test_who_waits_as_long_as_told_gets_in(limit: int, current: int, previous: int, second: float) -> None:
    """And nobody who comes a second earlier."""

    def used(at: float) -> float:
        if at < 60:
            return used_lately(current, previous, at)
        return used_lately(0, current, at - 60) if at < 120 else 0.0

    wait = seconds_until_room(limit, current, previous, second)
    assert wait is not None
    assert used(second + wait) < limit
    assert wait == 0 or used(second + wait - 1) >= limit


@given(current=NUMBERS, previous=NUMBERS, second=SECONDS)
def test_no_more_is_counted_than_was_used_in_both_minutes(current: int, previous: int, second: float) -> None:
    assert current <= used_lately(current, previous, second) <= current + previous
