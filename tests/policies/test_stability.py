"""Histories in which no record holds twice: places, notes, and when a model is asked again."""

from __future__ import annotations

import pytest

from policies.decision.budget import budget_of
from policies.decision.stability import SummaryNote, after_record, is_unstable, places_in
from tests.support.conversations import assistant, described, tool, user

M = budget_of(8_192, 4_000).movable


def steps(number: int) -> list[dict[str, object]]:
    """Return so many rounds, no two of them alike."""
    return [
        message
        for i in range(number)
        for message in (assistant(None, f"c{i}", arguments=f'{{"number": {i}}}'), tool(f"c{i}", f"result {i}"))
    ]


def test_places_are_named_by_what_the_assistant_said_alone() -> None:
    one = [*places_in(described([user("The task, at 10:42."), *steps(6)]))]
    other = [*places_in(described([user("Another one."), user("Go on."), *steps(6)]))]
    assert [place.name for place in one] == [place.name for place in other]
    assert [place.position for place in one] == [11, 9, 7]
    assert [*places_in(described([user("The task."), *steps(3)]))] == []


def test_assistant_messages_that_are_alike_name_no_place() -> None:
    again = [message for _ in range(9) for message in (assistant("done"), user("again"))]
    assert [*places_in(described(again))] == []


def test_a_longer_history_has_the_places_of_the_shorter_one() -> None:
    shorter, longer = ([*places_in(described([user("The task."), *steps(number)]))] for number in (6, 9))
    assert longer[-len(shorter) :] == shorter


@pytest.mark.parametrize(
    ("counts", "growth", "expected"),
    [
        ([], 0, False),
        ([1], 0, False),
        ([1, 1], 0, False),
        ([2], 0.2, True),
        ([2], 0.26, False),
        ([3, 1], 0.4, True),
        ([3, 1], 0.51, False),
        ([4], 0.9, True),
    ],
)
def test_models_are_left_alone_for_twice_as_long_each_time(counts: list[int], growth: float, expected: bool) -> None:
    notes = [SummaryNote(count, 5_000 - at) for at, count in enumerate(counts)]
    assert is_unstable(notes, budget_of(8_192, 4_000), 5_000 + int(growth * M)) is expected


def test_a_note_counts_the_summaries_of_a_history_and_has_the_size_at_the_last_one() -> None:
    first = after_record([], 100, by_model=True)
    assert first == SummaryNote(1, 100)
    assert after_record([SummaryNote(1, 90), first], 200, by_model=True) == SummaryNote(2, 200)
    assert after_record([SummaryNote(2, 200), first], 300, by_model=False) == SummaryNote(2, 200)
    assert after_record([], 300, by_model=False) is None
