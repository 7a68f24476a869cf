"""Plans as values: what is done at which size, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.conversation.conversation import Conversation
from policies.conversation.message import Message
from policies.decision.budget import Budget, budget_of, usable_input
from policies.decision.plan import (
    ActiveCheckpoint,
    Compact,
    Forward,
    Limits,
    Reuse,
    decide,
    decide_ahead,
    is_far_below,
    limits_of,
    needs_attention,
    soft_share,
    tokens_with,
)
from policies.settings import DEFAULTS, PolicySettings
from tests.support.conversations import assistant, conversation, described, rounds, system, user

BUDGET = budget_of(8_192, 7_000)
LIMITS = limits_of(BUDGET, DEFAULTS, 0)
UNKNOWN = limits_of(None, DEFAULTS, 0)
# 116 tokens a round
ROUND = 116


def limits(view: Conversation) -> Limits:
    return limits_of(BUDGET, DEFAULTS, view.fixed_tokens)


def of_tokens(tokens: int) -> list[dict[str, object]]:
    return [user("task"), *rounds(tokens // ROUND)]


@pytest.mark.requirement("R3 7.1 sum")
@pytest.mark.parametrize(
    ("share", "attention"), [(0.10, False), (0.249, False), (0.25, True), (0.95, True), (10.0, True)]
)
def test_only_large_requests_get_attention(share: float, attention: bool) -> None:
    size = 4 * (int(share * BUDGET.usable) - 8 + 4 * attention)
    assert needs_attention(conversation([user("x" * size)]), LIMITS, DEFAULTS) is attention


@given(
    window=st.integers(1_000, 2_000_000),
    max_output=st.none() | st.integers(1, 3_000_000),
    exact=st.booleans(),
    calibration=st.floats(1, 6),
    answer=st.none() | st.integers(0, 100_000),
    floor=st.floats(0, 0.79),
    message_limit=st.none() | st.integers(2, 20),
    token_limit=st.integers(1_000, 3_000_000),
    share=st.floats(0, 1.1),
    fixed=st.floats(0, 1),
)
def test_what_is_far_below_every_floor_needs_no_attention(
    window: int,
    max_output: int | None,
    exact: bool,
    calibration: float,
    answer: int | None,
    floor: float,
    message_limit: int | None,
    token_limit: int,
    share: float,
    fixed: float,
) -> None:
    policy = PolicySettings(apply_floor=floor, message_limit=message_limit, token_limit=token_limit)
    least = min(0.39 * window / calibration, token_limit)
    tokens = max(1, int(share * min(floor, 0.5) * least))
    tools = int(fixed * tokens)
    messages = [Message("user", 0, b"u" * 32)] * 60 + [Message("user", tokens - tools, b"v" * 32)]
    real = usable_input(window, max_output, exact=exact, calibration=calibration, longest_answer=answer)
    view = Conversation(messages, tools)
    found = limits_of(real, policy, view.fixed_tokens)
    assert found.real is not None
    if is_far_below(tokens, window, calibration, policy):
        assert not needs_attention(view, found, policy)
        assert tokens < found.real.at(0.5)


def test_an_unknown_window_is_left_to_the_upstream() -> None:
    assert not needs_attention(conversation([user("x" * 4_000_000)]), UNKNOWN, DEFAULTS)


@pytest.mark.requirement(
    "R0 4.1 order",
    "R1 2.3 before",
    "R1 5.1 limits",
    "R3 3.1 overflowThreshold",
    "R3 3.1 compactionThreshold",
    "R3 4.1 decide",
    "R3 BR-01",
)
@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.70, "below_threshold"), (0.85, "proactive"), (0.95, "must")],
)
def test_the_size_decides(share: float, expected: str) -> None:
    plan = decide(conversation([*of_tokens(int(share * 7_000)), user("next")]), LIMITS, DEFAULTS, None)
    if isinstance(plan, Compact):
        assert expected == ("must" if plan.must else plan.trigger)
    else:
        assert isinstance(plan, Forward)
        assert expected == plan.reason


@pytest.mark.requirement("R1 4.6 trigger", "R3 3.3 reason", "R3 4.1 afterTool")
def test_a_tool_result_at_the_end_names_the_second_check() -> None:
    plan = decide(conversation(of_tokens(6_500)), LIMITS, DEFAULTS, None)
    assert isinstance(plan, Compact)
    assert plan.trigger == "tool_execution"


def test_a_compaction_tells_what_it_takes_out_and_what_it_breaks() -> None:
    view = conversation([system("rules " * 300), *of_tokens(6_500)])
    limits = limits_of(budget_of(8_000, 7_000), DEFAULTS, view.fixed_tokens)
    plan = decide(view, limits, DEFAULTS, None)
    assert isinstance(plan, Compact)
    rest = plan.budget.injected + plan.cut.kept
    assert plan.payoff.removed == view.total_tokens - view.fixed_tokens - rest > 0
    assert plan.payoff.rewritten == rest, "tools and head stay in the cache"


@pytest.mark.requirement("R0 1.3 L2")
def test_a_standing_checkpoint_is_reused_until_the_rest_has_grown() -> None:
    view = conversation(of_tokens(9_000))
    covered = view.units[len(view.units) // 2]
    plan = decide(view, LIMITS, DEFAULTS, ActiveCheckpoint(covered, 500))
    assert plan == Reuse(ActiveCheckpoint(covered, 500), "below_threshold")
    grown = decide(view, LIMITS, DEFAULTS, ActiveCheckpoint(view.units[5], 500))
    assert isinstance(grown, Compact)
    assert grown.cut.position > view.units[5]


@pytest.mark.requirement("R3 6.1 maximum")
def test_tools_and_head_that_fill_the_window_lead_to_no_summary() -> None:
    floor = conversation([system("s" * 24_000), user("hi"), assistant("x" * 3_300), user("more")])
    assert decide(floor, limits(floor), DEFAULTS, None) == Forward("irreducible")


@pytest.mark.requirement("R0 1.3 L3")
def test_one_message_cannot_be_compacted() -> None:
    assert decide(conversation([user("x" * 40_000)]), LIMITS, DEFAULTS, None) == Forward("nothing_to_compact")


@pytest.mark.requirement("R3 3.3 reason")
def test_force_compacts_below_the_threshold() -> None:
    plan = decide(conversation([*of_tokens(4_000), user("next")]), LIMITS, DEFAULTS, None, force=True)
    assert isinstance(plan, Compact)
    assert (plan.trigger, plan.must, plan.with_model) == ("manual", True, True)


def test_what_would_be_sent_counts_head_record_anchor_and_rest() -> None:
    view = conversation([system("s" * 40), *of_tokens(2_000)], tools_tokens=50)
    cut = view.units[10]
    expected = 50 + 14 + 500 + view.body[0].tokens + view.tokens_from[cut]
    assert tokens_with(view, ActiveCheckpoint(cut, 500)) == expected


@pytest.mark.requirement("R0 3.2 half")
@pytest.mark.parametrize(
    ("size", "turn_length"),
    [(60, 1), (120, 5), (120, 1000), (250, 1), (250, 1000), (400, 5), (400, 1000), (900, 1), (900, 5)],
)
def test_a_growing_history_costs_no_more_summaries_than_promised(size: int, turn_length: int) -> None:
    """At most ceil((H - 0.8 B) / 0.35 B) + 1 for a history of H tokens."""
    messages = described([system()])
    standing: ActiveCheckpoint | None = None
    compactions = 0
    for i in range(50_000 // size):
        if i % turn_length == 0:
            messages.extend(described([user(f"step {i}")]))
        messages.extend(described(rounds(1, size=size * 4, start=i)))
        view = Conversation(messages)
        plan = decide(view, LIMITS, DEFAULTS, standing)
        if isinstance(plan, Compact):
            compactions += 1
            standing = ActiveCheckpoint(plan.cut.position, BUDGET.record)
        assert tokens_with(view, standing) < 0.95 * BUDGET.usable
    history = Conversation(messages).total_tokens
    assert compactions <= -(-(history - 0.8 * BUDGET.usable) // (0.35 * BUDGET.usable)) + 1


def settings(**changes: object) -> PolicySettings:
    return PolicySettings.model_validate(changes)


@pytest.mark.requirement("R1 4.1 messages", "R1 5.1 limits", "R4 2 number", "R4 3.2 A1")
@pytest.mark.parametrize(
    ("real", "limit", "messages", "tokens", "compacts"),
    [
        (BUDGET, None, 300, 5_000, False),  # with a known window the number counts only where a policy says so
        (BUDGET, 40, 60, 5_000, True),
        (BUDGET, 40, 30, 5_000, False),
        (BUDGET, 40, 200, 3_000, False),  # less than half full
        (None, None, 60, 20_000, True),
        (None, None, 40, 20_000, False),
        (None, None, 200, 7_000, False),  # the span would not be worth a summary
        (None, 90, 80, 20_000, False),
    ],
)
def test_the_number_of_messages_counts_too(
    real: Budget | None, limit: int | None, messages: int, tokens: int, compacts: bool
) -> None:
    case = settings(message_limit=limit)
    size = 4 * (tokens // (messages // 2)) - 60
    view = conversation([user("task"), *rounds(messages // 2, size=size)])
    limits = limits_of(real, case, 0)
    assert needs_attention(view, limits, case) or not compacts
    assert isinstance(decide(view, limits, case, None), Compact) == compacts


@pytest.mark.requirement("R1 4.1 tokens", "R4 3.2 A1")
@pytest.mark.parametrize("real", [None, budget_of(1_000_000, 900_000)])
def test_a_token_limit_takes_the_place_of_a_larger_window(real: Budget | None) -> None:
    case = settings(token_limit=6_000)
    limits = limits_of(real, case, 0)
    assert isinstance(decide(conversation(of_tokens(5_800)), limits, case, None), Forward)
    plan = decide(conversation(of_tokens(6_200)), limits, case, None)
    assert isinstance(plan, Compact)
    assert not plan.must
    assert plan.cut.kept + limits.budget.record <= 0.45 * 7_500
    standing = ActiveCheckpoint(plan.cut.position, limits.budget.record)
    assert isinstance(decide(conversation(of_tokens(6_800)), limits, case, standing), Reuse)


@pytest.mark.requirement("R1 4.1 tokens")
def test_a_token_limit_above_the_window_changes_nothing() -> None:
    assert replace(limits_of(BUDGET, DEFAULTS, 0).budget, names=0) == BUDGET


def test_a_compaction_made_ahead_lasts_as_long_as_one_made_when_it_is_needed() -> None:
    early = decide_ahead(conversation(of_tokens(4_950)), LIMITS, DEFAULTS, None)
    assert early is not None
    assert (early.trigger, early.must) == ("background", False)
    grown = conversation(of_tokens(5_650))
    late = decide(grown, LIMITS, DEFAULTS, None)
    assert isinstance(late, Compact)
    by_then = tokens_with(grown, ActiveCheckpoint(early.cut.position, BUDGET.record))
    assert by_then <= 0.46 * BUDGET.usable
    assert abs(early.cut.position - late.cut.position) <= 4


@pytest.mark.parametrize(
    ("room", "soft", "share"),
    [
        (7_000, 0.7, 0.7),
        (28_000, 0.7, 0.8 - 1_859 / 28_000),
        (900_000, 0.7, 0.8 - 10_541 / 900_000),
        (900_000, 1.0, 1.0),
    ],
)
def test_a_record_is_made_ahead_by_a_share_of_the_room_or_a_size(room: int, soft: float, share: float) -> None:
    found = soft_share(budget_of(room, room), settings(soft_threshold=soft))
    assert found == pytest.approx(share, abs=1e-5)


def test_nothing_is_made_ahead_where_it_would_not_help() -> None:
    assert decide_ahead(conversation([user("x" * 30_000)]), LIMITS, DEFAULTS, None) is None
    floor = conversation([system("s" * 24_000), *of_tokens(2_000)])
    assert decide_ahead(floor, limits(floor), DEFAULTS, None) is None
    assert decide_ahead(conversation(of_tokens(1_500)), LIMITS, DEFAULTS, None) is None


def test_where_no_summary_can_help_a_model_is_not_asked_and_only_what_must_be_done_is_done() -> None:
    floor = conversation([system("s" * 23_000), *of_tokens(3_000)])
    plan = decide(floor, limits(floor), DEFAULTS, None)
    assert isinstance(plan, Compact)
    assert (plan.must, plan.with_model) == (True, False)
    forced = decide(floor, limits(floor), DEFAULTS, None, force=True)
    assert isinstance(forced, Compact)
    assert forced.with_model
    small = conversation([system("s" * 22_600), *of_tokens(1_200)])
    assert decide(small, limits(small), DEFAULTS, None) == Forward("irreducible")


@pytest.mark.requirement("R3 3.1 compressSystemMessages")
def test_instructions_are_covered_where_a_policy_says_so() -> None:
    messages = described([user("task"), *rounds(5), system("be brief " * 50), *rounds(30)])
    kept, covered = Conversation(messages), Conversation(messages, instructions_covered=True)
    assert kept.covered_instructions(20) == [11]
    assert covered.covered_instructions(20) == []
    assert kept.kept_tokens(20) - covered.kept_tokens(20) == messages[11].tokens
