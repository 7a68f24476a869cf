"""Plans as values: what is done at which size, and why."""

from __future__ import annotations

import pytest

from policies.budget import budget_of
from policies.conversation import Conversation
from policies.plan import Compact, Forward, Reuse, Standing, decide, needs_attention, tokens_with
from policies.settings import DEFAULTS
from tests.conversations import assistant, conversation, described, rounds, system, user

BUDGET = budget_of(8_192, 7_000)
# 116 tokens a round
ROUND = 116


def of_tokens(tokens: int) -> list[dict[str, object]]:
    return [user("task"), *rounds(tokens // ROUND)]


@pytest.mark.parametrize(
    ("share", "attention"), [(0.10, False), (0.599, False), (0.60, True), (0.95, True), (10.0, True)]
)
def test_only_large_requests_get_attention(share: float, attention: bool) -> None:
    assert needs_attention(int(share * BUDGET.usable) + 1 * attention, BUDGET, DEFAULTS) is attention


def test_an_unknown_window_is_left_to_the_upstream() -> None:
    assert not needs_attention(10**9, None, DEFAULTS)


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.70, "below_threshold"), (0.85, "proactive"), (0.95, "must")],
)
def test_the_size_decides(share: float, expected: str) -> None:
    plan = decide(conversation([*of_tokens(int(share * 7_000)), user("next")]), BUDGET, DEFAULTS, None)
    if isinstance(plan, Compact):
        assert expected == ("must" if plan.must else plan.trigger)
    else:
        assert isinstance(plan, Forward)
        assert expected == plan.reason


def test_a_tool_result_at_the_end_names_the_second_check() -> None:
    plan = decide(conversation(of_tokens(6_500)), BUDGET, DEFAULTS, None)
    assert isinstance(plan, Compact)
    assert plan.trigger == "tool_execution"


def test_a_standing_checkpoint_is_reused_until_the_rest_has_grown() -> None:
    view = conversation(of_tokens(9_000))
    covered = view.units[len(view.units) // 2]
    plan = decide(view, BUDGET, DEFAULTS, Standing(covered, 500))
    assert plan == Reuse(Standing(covered, 500), "below_threshold")
    grown = decide(view, BUDGET, DEFAULTS, Standing(view.units[5], 500))
    assert isinstance(grown, Compact)
    assert grown.cut.position > view.units[5]


def test_tools_and_head_that_fill_the_window_lead_to_no_summary() -> None:
    floor = conversation([system("s" * 24_000), user("hi"), assistant("x"), user("more")])
    assert decide(floor, BUDGET, DEFAULTS, None) == Forward("gain_too_small")


def test_one_message_cannot_be_compacted() -> None:
    assert decide(conversation([user("x" * 40_000)]), BUDGET, DEFAULTS, None) == Forward("nothing_to_compact")


def test_force_compacts_below_the_threshold() -> None:
    plan = decide(conversation([*of_tokens(4_000), user("next")]), BUDGET, DEFAULTS, None, force=True)
    assert isinstance(plan, Compact)
    assert (plan.trigger, plan.must) == ("manual", False)


def test_what_would_be_sent_counts_head_record_anchor_and_rest() -> None:
    view = conversation([system("s" * 40), *of_tokens(2_000)], tools_tokens=50)
    cut = view.units[10]
    expected = 50 + 14 + 500 + view.body[0].tokens + view.tokens_from[cut]
    assert tokens_with(view, Standing(cut, 500)) == expected


@pytest.mark.parametrize("size", [60, 120, 250, 400, 900])
@pytest.mark.parametrize("turn_length", [1, 5, 1000])
def test_a_growing_history_costs_no_more_summaries_than_promised(size: int, turn_length: int) -> None:
    """At most ceil((H - 0.8 B) / 0.35 B) + 1 for a history of H tokens."""
    messages = described([system()])
    standing: Standing | None = None
    compactions = 0
    for i in range(50_000 // size):
        if i % turn_length == 0:
            messages.extend(described([user(f"step {i}")]))
        messages.extend(described(rounds(1, size=size * 4, start=i)))
        view = Conversation(messages)
        plan = decide(view, BUDGET, DEFAULTS, standing)
        if isinstance(plan, Compact):
            compactions += 1
            standing = Standing(plan.cut.position, BUDGET.record)
        assert tokens_with(view, standing) < 0.95 * BUDGET.usable
    history = Conversation(messages).total_tokens
    assert compactions <= -(-(history - 0.8 * BUDGET.usable) // (0.35 * BUDGET.usable)) + 1
