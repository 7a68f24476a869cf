"""Where lines, bars and cells of the pictures lie."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.admin import chart


class Step(NamedTuple):
    number: int
    received: int
    sent: int
    messages: int


class Spoken(NamedTuple):
    place: int
    tokens: int
    fate: str


def steps(*messages: int) -> list[Step]:
    return [Step(number, 100 * length, 50 * length, length) for number, length in enumerate(messages, 1)]


@pytest.mark.parametrize(
    ("messages", "runs"),
    [
        ((1, 2, 3), [[1, 2, 3]]),
        ((10, 12, 5, 7), [[10, 12], [5, 7]]),
        ((10, 40, 12, 42, 14), [[10, 40, 42], [12, 14]]),
        ((5, 5, 5), [[5, 5, 5]]),
    ],
)
def test_forks_and_runs_side_by_side_are_lines_of_their_own(messages: tuple[int, ...], runs: list[list[int]]) -> None:
    assert [[step.messages for step in run] for run in chart.branches(steps(*messages))] == runs


def test_no_session_has_more_lines_than_can_be_told_apart() -> None:
    assert len(chart.branches(steps(*range(100, 0, -1)))) == 8


def test_the_window_is_in_the_picture_unless_it_is_far_away() -> None:
    near = chart.saw(steps(10, 20, 30), [("window", 4_000)], [], chart.WIDE)
    far = chart.saw(steps(10, 20, 30), [("window", 128_000)], [], chart.WIDE)
    assert [limit.text for limit in near.limits] == ["4,000"]
    assert far.limits == []


def test_more_lies_higher_and_later_further_to_the_right() -> None:
    drawn = chart.saw(steps(10, 20), [("window", 1_900)], [(1, "checkpoint")], chart.WIDE)
    assert drawn.received == ["M44.0 153.5L948.0 28.9"]
    assert drawn.sent == ["M44.0 215.7L948.0 153.5"]
    (limit,), (spot,) = drawn.limits, drawn.spots
    assert limit.y == pytest.approx(41.4)
    assert (spot.x, spot.y, spot.kind, spot.place) == (948.0, 153.5, "checkpoint", 1)
    assert drawn.areas == ["M44.0 215.7L948.0 153.5L948.0 278L44.0 278Z"]


@given(st.integers(1, 700), st.integers(1, 5_000))
def test_columns_cover_the_plot_without_a_gap(number: int, first: int) -> None:
    points = [Step(first + at, 10, 5, at) for at in range(number)]
    columns = chart.saw(points, [], [], chart.WIDE).columns
    assert len(columns) <= 120
    assert columns[0].x == chart.WIDE.left
    assert columns[-1].place == number - 1
    ends = [column.x + column.width for column in columns[:-1]]
    assert ends == pytest.approx([column.x for column in columns[1:]], abs=1.1)


@pytest.mark.parametrize(
    ("top", "numbers"),
    [
        (8_683, [0, 2_000, 4_000, 6_000, 8_000]),
        (161_000, [0, 50_000, 100_000, 150_000]),
        (1, [0, 1]),
        (12, [0, 2.5, 5, 7.5, 10]),
    ],
)
def test_an_axis_has_round_numbers(top: float, numbers: list[float]) -> None:
    assert chart.ticks(top) == numbers


def test_parts_of_a_bar_lie_side_by_side_and_fill_it() -> None:
    parts = chart.stack_parts([("head", 100), ("tools", 0), ("free", 300)])
    assert [(part.kind, part.x, part.width) for part in parts] == [("head", 0.0, 250.0), ("free", 250.0, 750.0)]
    assert chart.stack_parts([]) == []


def test_bars_stand_beside_each_other_and_their_heights_are_in_proportion() -> None:
    drawn = chart.bars([(200, 100), (0, 0)], ["09:00", ""], chart.WIDE)
    first, second = drawn.pairs
    assert first.sent == pytest.approx(first.received / 2, abs=0.1)
    assert (second.received, second.x > first.x + first.width) == (0.0, True)
    assert [tick.text for tick in drawn.across] == ["09:00"]


def test_messages_of_one_fate_are_joined_where_there_are_too_many() -> None:
    few = chart.strip([Spoken(0, 10, "head"), Spoken(1, 30, "kept"), Spoken(2, 40, "kept")])
    assert [(cell.first, cell.last, cell.width) for cell in few] == [(0, 0, 125.0), (1, 1, 375.0), (2, 2, 500.0)]
    many = chart.strip([Spoken(at, 10, "covered" if at < 900 else "kept") for at in range(1_000)])
    assert len(many) <= 240
    assert (many[0].first, many[-1].last, sum(cell.tokens for cell in many)) == (0, 999, 10_000)
