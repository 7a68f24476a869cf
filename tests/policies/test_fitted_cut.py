"""The cut of a full request, once what its record takes is known: the tail gets what the record leaves."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.conversation.conversation import Conversation
from policies.decision.budget import budget_of
from policies.decision.cut import measured_room
from policies.decision.legal_cuts import legal_cuts
from policies.decision.plan import Compact, Weight, decide, decide_ahead, fit_cut, limits_of
from policies.settings import PolicySettings
from tests.support.conversations import conversation, rounds, user

DEFAULTS = PolicySettings()
LITTLE = Weight(text=500, names=0)
# What a small record leaves, and the least where names want all.
LITTLE_TO_SAY, SMALL, LARGE = 0.30, 0.20, 0.25


def measured(room: int) -> int:
    """Tokens of which the shares of what stays are taken."""
    return measured_room(budget_of(room, room), DEFAULTS)


def planned(room: int, weight: Weight, *, size: int = 400, policy: PolicySettings = DEFAULTS) -> Compact:
    """The plan for one task that has just become full, with and without room for its tail."""
    limits = limits_of(budget_of(room, room), policy, 0)

    def task(number: int) -> Conversation:
        return conversation([user("task"), *rounds(number, size=size)])

    def is_full(number: int) -> bool:
        return isinstance(decide(task(number), limits, policy, None), Compact)

    view = task(bisect_left(range(5 * room // size), True, lo=2, key=is_full))
    plan = decide(view, limits, policy, None)
    assert isinstance(plan, Compact)
    return fit_cut(plan, view, policy, weight)


@pytest.mark.parametrize("room", [7_000, 14_000, 28_000, pytest.param(112_000, marks=pytest.mark.slow)])
def test_what_a_small_record_leaves_is_the_tails(room: int) -> None:
    assert planned(room, LITTLE).cut.kept >= LITTLE_TO_SAY * measured(room)


@pytest.mark.parametrize(("room", "share"), [(7_000, SMALL), (14_000, SMALL), (28_000, SMALL)])
def test_names_that_want_all_the_room_leave_the_least_tail(room: int, share: float) -> None:
    plan = planned(room, Weight(text=10**6, names=10**6))
    assert plan.cut.kept >= share * measured(room)
    assert plan.cut.kept + plan.budget.injected <= 0.5 * measured(room)


def test_the_example_of_eleven_rounds_keeps_more_than_one() -> None:
    plan = planned(7_168, LITTLE, size=1_940)  # 490 tokens a round
    assert plan.cut.units_kept >= 4


@pytest.mark.parametrize(
    "settings",
    [{"keep_recent_messages": 18}, {"min_overlap": 8, "min_rounds": 9, "keep_recent_messages": 0}],
    ids=["messages", "units"],
)
def test_what_a_policy_asks_to_keep_is_kept_while_it_fits_the_target(settings: dict[str, int]) -> None:
    policy = PolicySettings.model_validate(settings)
    assert planned(7_000, Weight(text=300, names=0), size=1_000, policy=policy).cut.units_kept >= 9
    usual = PolicySettings(keep_recent_messages=0)
    assert planned(7_000, Weight(text=300, names=0), size=1_000, policy=usual).cut.units_kept < 9


@pytest.mark.parametrize(
    ("weight", "small", "large"),
    [(LITTLE, LITTLE_TO_SAY, LITTLE_TO_SAY), (Weight(text=10**6, names=10**6), SMALL, LARGE)],
    ids=["little to say", "names"],
)
@pytest.mark.parametrize("room", [7_000, 14_000, 28_000])
def test_the_tail_of_a_record_made_ahead_is_as_long_once_the_record_is_needed(
    room: int, weight: Weight, small: float, large: float
) -> None:
    limits = limits_of(budget_of(room, room), DEFAULTS, 0)
    number = next(n for n in range(2, 1_000) if rounds_take(n) >= limits.budget.at(DEFAULTS.soft_threshold))
    view = conversation([user("task"), *rounds(number)])
    plan = decide_ahead(view, limits, DEFAULTS, None)
    assert plan is not None
    growth = DEFAULTS.compaction_threshold - DEFAULTS.soft_threshold
    kept = fit_cut(plan, view, DEFAULTS, weight).cut.kept
    assert kept >= ((small if room < 28_000 else large) - growth) * measured(room) - 1
    assert kept <= (0.5 - growth) * measured(room)


def rounds_take(number: int) -> int:
    return conversation([user("task"), *rounds(number)]).total_tokens


def test_a_request_that_is_not_full_stays_as_planned() -> None:
    view = conversation([user("task"), *rounds(20)])
    plan = decide(view, limits_of(budget_of(7_000, 7_000), DEFAULTS, 0), DEFAULTS, None, force=True)
    assert isinstance(plan, Compact)
    assert fit_cut(plan, view, DEFAULTS, LITTLE) is plan


@given(st.integers(4_000, 60_000), st.integers(40, 6_000), st.integers(0, 20_000), st.integers(0, 20_000))
def test_a_fitted_cut_is_legal_no_newer_and_within_half_of_the_room(
    room: int, size: int, text: int, names: int
) -> None:
    number = 3 * room // size + 8
    view = conversation([user("task"), *rounds(number, size=size)])
    plan = decide(view, limits_of(budget_of(room, room), DEFAULTS, 0), DEFAULTS, None)
    if not isinstance(plan, Compact):
        return
    weighed = fit_cut(plan, view, DEFAULTS, Weight(text, names))
    assert weighed.cut.position in legal_cuts(view)
    assert weighed.cut.position <= plan.cut.position
    assert weighed.budget.record <= plan.budget.record
    if weighed is not plan:
        assert weighed.cut.kept + weighed.budget.injected <= 0.5 * room
