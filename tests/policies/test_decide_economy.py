"""When a compaction pays: reading what it takes out has cost several times its price."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.conversation.conversation import Conversation
from policies.decision.budget import budget_of
from policies.decision.cut import target_tokens
from policies.decision.plan import (
    ActiveCheckpoint,
    Limits,
    attention_floor,
    decide_economy,
    limits_of,
    read_so_far,
    tokens_with,
)
from policies.price import Price
from policies.settings import DEFAULTS, PolicySettings
from tests.support.conversations import conversation, rounds, user

CLAUDE = Price(prompt=3.0, completion=15.0, cached=0.3, written=3.75, written_long=6.0)
UNCACHED = Price(prompt=3.0, completion=15.0, cached=3.0, written=3.0, written_long=3.0)
FREE = Price(prompt=3.0, completion=15.0, cached=0.0, written=3.0, written_long=3.0)
ROOM = 56_000


def limits(room: int = ROOM, policy: PolicySettings = DEFAULTS) -> Limits:
    return limits_of(budget_of(room, room), policy, 0)


def task(number: int, size: int = 1_200) -> Conversation:
    """A task and so many rounds, of 300 tokens and more each."""
    return conversation([user("task"), *rounds(number, size=size)])


def first_due(
    policy: PolicySettings = DEFAULTS,
    price: Price | None = CLAUDE,
    size: int = 1_200,
    standing: ActiveCheckpoint | None = None,
) -> int | None:
    """After how many rounds a compaction pays; None if it does not below the threshold."""
    covered = standing.covered // 2 if standing else 0
    for number in range(covered + 8, 1_000):
        view = task(number, size)
        if tokens_with(view, standing) >= limits().budget.at(policy.compaction_threshold):
            return None
        if decide_economy(view, limits(policy=policy), policy, standing, price) is not None:
            return number
    return None


def test_a_compaction_is_made_once_reading_what_it_takes_out_has_cost_four_times_its_price() -> None:
    number = first_due()
    assert number is not None
    view = task(number)
    plan = decide_economy(view, limits(), DEFAULTS, None, CLAUDE)
    assert plan is not None
    assert plan.read_so_far is not None
    assert (plan.trigger, plan.must, plan.growth) == ("economy", False, 0)
    left = max(target_tokens(view, limits().budget, DEFAULTS), view.fixed_tokens + plan.budget.injected + plan.cut.kept)
    sizes = [view.total_tokens - view.tokens_from[unit] for unit in view.units if view.body[unit].role == "assistant"]
    read = [size - left for size in sizes if size > left]
    summary = limits().budget.summary
    price = view.total_tokens + ((3.75 - 0.3) * left + 15 * summary) / 0.3
    assert plan.read_so_far.read == sum(read)
    assert plan.read_so_far.requests == len(read)
    assert plan.read_so_far.price == int(price)
    assert sum(read) >= 4 * int(price)
    assert view.total_tokens >= limits().budget.at(0.5)


def test_it_is_made_the_later_the_more_times_it_must_have_paid() -> None:
    low = PolicySettings(economy_from=0.1)
    due = [first_due(low.model_copy(update={"economy": times})) for times in (1, 2, 4)]
    assert None not in due
    assert due == sorted(set(due))  # type: ignore[type-var]


@pytest.mark.parametrize("price", [None, FREE], ids=["unknown", "cached tokens cost nothing"])
def test_without_a_price_none_pays(price: Price | None) -> None:
    assert first_due(price=price) is None


def test_where_all_that_is_read_costs_the_same_it_pays_early() -> None:
    early = PolicySettings(economy_from=0.1)
    dear, cheap = first_due(early, UNCACHED), first_due(early)
    assert dear is not None
    assert cheap is not None
    assert dear < cheap


def test_none_is_made_below_the_share_that_a_policy_says_or_if_it_wants_none() -> None:
    number = first_due(PolicySettings(economy_from=0.7))
    assert number is not None
    assert task(number).total_tokens >= limits().budget.at(0.7)
    assert first_due(PolicySettings(economy=0)) is None


def test_without_a_window_none_is_made() -> None:
    number = first_due()
    assert number is not None
    unknown = limits_of(None, DEFAULTS, 0)
    assert decide_economy(task(number), unknown, DEFAULTS, None, CLAUDE) is None


def test_what_was_read_before_the_standing_record_does_not_count() -> None:
    number = first_due()
    assert number is not None
    plan = decide_economy(task(number), limits(), DEFAULTS, None, CLAUDE)
    assert plan is not None
    standing = ActiveCheckpoint(plan.cut.position, plan.budget.injected)
    assert decide_economy(task(number + 1), limits(), DEFAULTS, standing, CLAUDE) is None
    following = first_due(standing=standing)
    assert following is not None
    assert following - number >= number // 2


@given(
    number=st.integers(1, 120),
    more=st.integers(1, 30),
    covered=st.integers(0, 40),
    left=st.integers(0, 30_000),
    size=st.integers(40, 4_000),
)
def test_what_was_read_is_a_function_of_the_history_that_grows_with_it(
    number: int, more: int, covered: int, left: int, size: int
) -> None:
    standing = ActiveCheckpoint(2 * min(covered, number) + 1, 500) if covered else None
    budget = limits().budget
    earlier = read_so_far(task(number, size), budget, standing, CLAUDE, left)
    later = read_so_far(task(number + more, size), budget, standing, CLAUDE, left)
    assert earlier is not None
    assert later is not None
    assert earlier == read_so_far(task(number, size), budget, standing, CLAUDE, left)
    assert 0 <= earlier.read <= later.read
    assert later.requests <= earlier.requests + more


@pytest.mark.parametrize("economy_from", [0.05, 0.25, 0.5, 1.0])
def test_the_store_is_looked_at_below_the_share_from_which_records_are_made(economy_from: float) -> None:
    policy = PolicySettings(economy_from=economy_from)
    assert attention_floor(policy) <= economy_from / 2
    assert attention_floor(policy) <= policy.apply_floor
    assert attention_floor(PolicySettings(economy=0, economy_from=economy_from)) == policy.apply_floor
    assert attention_floor(policy, is_known=False) == policy.apply_floor


def test_a_price_beside_the_summary_is_of_its_length() -> None:
    budget = replace(limits().budget, record=0)
    alone = read_so_far(task(40), budget, None, CLAUDE, 5_000)
    with_summary = read_so_far(task(40), limits().budget, None, CLAUDE, 5_000)
    assert alone is not None
    assert with_summary is not None
    assert with_summary.price - alone.price == pytest.approx(50 * limits().budget.summary, abs=2)
