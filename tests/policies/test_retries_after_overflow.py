"""The overflow ladder: what is believed of a refusal and how much smaller each retry is (invariant 17)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.decision.budget import budget_of, usable_input
from policies.decision.overflow_retries import StatedLimit, next_rung, refused_budget, stated_room
from policies.decision.oversize import allowance
from policies.decision.plan import ActiveCheckpoint
from policies.settings import DEFAULTS, PolicySettings
from tests.support.conversations import conversation, rounds, user


@pytest.mark.parametrize(
    ("stated", "sent", "window", "max_output", "usable", "why"),
    [
        (StatedLimit(8_192, 8_400), 8_400, None, None, 8_192 - 819 - 245, "the stated limit, with reserve and margin"),
        (StatedLimit(8_192, 33_600), 8_400, None, None, 7_128 // 4, "the upstream counts four times what we do"),
        (StatedLimit(None, None), 10_000, 16_000, None, 9_000, "a window that explains nothing: below what was sent"),
        (StatedLimit(None, None), 20_000, 8_192, None, 8_192 - 819 - 245, "no number: the window that was known"),
        (StatedLimit(None, None), 10_000, None, None, 9_000, "no number and no window: below what was sent"),
        (StatedLimit(200_000, None), 1_000, None, None, 900, "a limit far above what was refused is not believed"),
        (StatedLimit(8_192, None), 5_000, None, 6_000, 1_972, "what the output leaves, and a tenth less"),
    ],
)
def test_the_budget_after_a_refusal(
    stated: StatedLimit, sent: int, window: int | None, max_output: int | None, usable: int, why: str
) -> None:
    budget = refused_budget(stated, sent_tokens=sent, window=window, max_output=max_output, exact=True)
    assert budget is not None
    assert budget.usable == pytest.approx(usable, abs=2), why


def test_no_smaller_prompt_helps_where_the_output_alone_fills_the_window() -> None:
    stated = StatedLimit(8_192, None)
    assert refused_budget(stated, sent_tokens=100, window=None, max_output=8_192, exact=True) is None


def test_targets_shrink_from_rung_to_rung() -> None:
    view = conversation([user("task"), *rounds(60)])
    budget = budget_of(8_192, 7_000)
    rungs = [next_rung(view, budget, DEFAULTS, None, attempt=i, smallest_sent=8_000) for i in range(3)]
    assert [rung.target for rung in rungs] == [3_500, 1_750, 875]
    assert [rung.with_model for rung in rungs] == [True, True, False]
    positions = [rung.cut.position for rung in rungs if rung.cut is not None]
    assert positions == sorted(positions)
    assert len(positions) == 3


def test_targets_are_shares_of_what_tools_and_head_leave() -> None:
    view = conversation([user("task"), *rounds(60)], tools_tokens=5_000)
    budget = budget_of(8_192, 7_000)
    rungs = [next_rung(view, budget, DEFAULTS, None, attempt=i, smallest_sent=8_000) for i in range(3)]
    assert [rung.target for rung in rungs] == [6_000, 5_500, 5_250]
    assert rungs[0].tail_tokens is None


def test_pinned_texts_have_their_share_and_leave_a_small_retry_room() -> None:
    view, budget = conversation([user("task"), *rounds(60)]), replace(budget_of(8_192, 7_000), pins=5_000)
    policy = PolicySettings.model_validate({"pins": {"budget_ratio": 0.3}})
    rungs = [next_rung(view, budget, policy, None, attempt=i, smallest_sent=8_000) for i in range(3)]
    assert [rung.budget.pins for rung in rungs] == [1_400, 700, 350]
    fewer = next_rung(view, replace(budget, pins=200), policy, None, attempt=0, smallest_sent=8_000)
    assert fewer.budget.pins == 200
    assert fewer.cut is not None
    assert rungs[0].cut is not None
    assert fewer.cut.position < rungs[0].cut.position


def test_a_target_is_always_a_tenth_below_what_was_refused() -> None:
    view = conversation([user("task"), *rounds(10)])
    rung = next_rung(view, budget_of(100_000, 90_000), DEFAULTS, None, attempt=0, smallest_sent=1_000)
    assert rung.target == 900


def test_one_message_that_cannot_be_cut_out_is_cut_inside() -> None:
    rung = next_rung(
        conversation([user("x" * 80_000)]), budget_of(8_192, 7_000), DEFAULTS, None, attempt=0, smallest_sent=20_000
    )
    assert rung.cut is None
    assert rung.tail_tokens == 3_500


def test_a_standing_checkpoint_is_continued() -> None:
    view = conversation([user("task"), *rounds(60)])
    rung = next_rung(view, budget_of(8_192, 7_000), DEFAULTS, ActiveCheckpoint(31, 600), attempt=0, smallest_sent=8_000)
    assert rung.cut is not None
    assert rung.cut.position > 31


@pytest.mark.requirement("R3 4.3 response")
def test_the_reserve_never_takes_more_than_half_of_the_window() -> None:
    assert usable_input(8_192, 1_000_000, exact=True).usable == 8_192 - 4_096 - 245


@given(st.lists(st.integers(0, 5_000), max_size=30), st.integers(0, 20_000))
def test_an_allowance_keeps_the_sum_and_spares_small_messages(sizes: list[int], total: int) -> None:
    cap = allowance(sizes, total)
    if total >= len(sizes):
        assert sum(min(size, cap) for size in sizes) <= max(total, 0) or sum(sizes) <= total
    if sum(sizes) <= total:
        assert cap == max(sizes, default=0)


@pytest.mark.parametrize(
    ("stated", "sent", "max_output", "room", "why"),
    [
        (StatedLimit(11_108, 11_109, kind="input"), 11_109, None, 10_964, "the limit, less one in a hundred"),
        (StatedLimit(11_108, 11_109, kind="input"), 11_109, 8_000, 10_964, "which is for the prompt alone"),
        (StatedLimit(11_108, 11_109, kind="input"), 5_554, None, 5_481, "in our own tokens"),
        (StatedLimit(10_000, 15_000, kind="input"), 15_000, None, 9_118, "more has to go, of which more is not known"),
        (StatedLimit(10_000, 10_001, kind="window"), 10_001, 1_000, 8_717, "the output beside it"),
        (StatedLimit(10_000, 10_001, kind="window"), 10_001, None, 9_293, "some room for an answer"),
        (StatedLimit(10_000, None, kind="input"), 20_000, None, 9_700, "no count: our own margin"),
        (StatedLimit(10_000, 10_001, kind="input", is_lower_bound=True), 20_000, None, 9_700, "it stopped counting"),
        (StatedLimit(10_000, None, kind="input"), 10_000, None, None, "nothing is explained by these numbers"),
        (StatedLimit(10_000, 5_000, kind="input"), 10_000, None, None, "nor by these"),
        (StatedLimit(None, 15_000), 15_000, None, None, "nothing is stated"),
    ],
)
def test_contents_are_cut_to_the_stated_limit_less_a_margin(
    stated: StatedLimit, sent: int, max_output: int | None, room: int | None, why: str
) -> None:
    found = stated_room(stated, sent_tokens=sent, max_output=max_output, exact=True, calibration=1.0)
    assert found == (room if room is None else pytest.approx(room, abs=3)), why


def test_the_first_retry_has_all_the_room_that_was_stated_and_later_ones_a_tenth_less_than_was_refused() -> None:
    view = conversation([user("x" * 80_000)])
    budget = budget_of(20_000, 18_000)
    rungs = [
        next_rung(view, budget, DEFAULTS, None, attempt=at, smallest_sent=sent, room=19_000)
        for at, sent in enumerate((20_000, 19_000, 17_000))
    ]
    assert [rung.tail_tokens for rung in rungs] == [19_000, 17_100, 2_250]
    assert [rung.most for rung in rungs] == [19_000, 17_100, 15_300]
