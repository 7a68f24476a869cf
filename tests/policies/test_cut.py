"""Where the cut falls: R0's half window, its fallbacks, and the target that holds before any count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.decision.budget import budget_of, with_pins
from policies.decision.cut import Cut, choose_cut, least_kept, target_tokens
from policies.settings import PolicySettings
from tests.support.conversations import Json, assistant, conversation, rounds, system, tool, user

POLICY = PolicySettings(keep_recent_messages=0)
ROOMY = budget_of(1_000_000, 1_000_000)


def turns(number: int, size: int = 40) -> list[Json]:
    return [m for i in range(number) for m in (user(f"q{i}".ljust(size, "q")), assistant(f"a{i}".ljust(size, "a")))]


def chosen(
    messages: list[Json], target: int, *, covered: int = 0, policy: PolicySettings = POLICY, usable: int = 1
) -> Cut | None:
    budget = budget_of(usable, usable)
    return choose_cut(conversation(messages), budget, policy, covered=covered, target=target)


@pytest.mark.requirement("R0 1.3 L0", "R0 1.3 L1", "R0 2.2 counts", "R0 2.2 strategy", "R0 3.2 half", "R0 3.3 back")
def test_half_of_the_units_stay_when_all_fits() -> None:
    cut = chosen([user("task"), *rounds(6)], 100_000)
    assert cut is not None
    assert (cut.level, cut.strategy, cut.fallback_reason) == ("L1", "round-boundary", "single-turn-only")
    assert (cut.units_total, cut.units_kept) == (7, 4)
    ten = chosen(turns(10), 100_000)
    assert ten is not None
    assert (ten.level, ten.strategy, ten.position) == ("L0", "turn-boundary", 10)
    assert (ten.units_total, ten.units_kept) == (20, 10)


@pytest.mark.requirement("R0 1.2 turns", "R0 3.3 back")
def test_the_cut_moves_back_to_the_start_of_its_turn() -> None:
    messages = [*turns(3), user("long"), *rounds(4)]
    cut = chosen(messages, 100_000)
    assert cut is not None
    assert (cut.position, cut.adjustment) == (4, "adjusted-to-turn-start")
    assert cut.adjustment_delta == 1


@pytest.mark.requirement("R0 3.3 back", "R0 3.3 forward")
def test_the_cut_moves_newer_until_what_stays_fits() -> None:
    messages = turns(10, size=400)  # 104 tokens a message
    cut = chosen(messages, 450)
    assert cut is not None
    assert cut.position == 16
    assert cut.adjustment == "adjusted-to-turn-end"
    assert cut.kept <= 450


def test_pinned_texts_stand_beside_the_record_and_leave_the_tail_less() -> None:
    messages, budget = turns(10, size=400), budget_of(1, 1)
    plain = choose_cut(conversation(messages), budget, POLICY, covered=0, target=650)
    pinned = choose_cut(conversation(messages), with_pins(budget, 200, 1_000), POLICY, covered=0, target=650)
    assert plain is not None
    assert pinned is not None
    assert plain.kept - pinned.kept == 208


@pytest.mark.parametrize(("tokens", "ratio", "room"), [(100, 0.15, 100), (1_000, 0.15, 135), (1_000, 0, 0)])
def test_pinned_texts_have_a_share_of_the_room(tokens: int, ratio: float, room: int) -> None:
    budget = with_pins(budget_of(1_000, 1_000, 100), tokens, ratio)
    assert (budget.pins, budget.replacing - budget.injected) == (room, room)
    assert budget.with_fixed(100).pins == room


@pytest.mark.requirement("R0 1.2 turns", "R0 9.1 one turn")
def test_one_turn_of_many_rounds_is_cut_between_rounds_and_its_task_is_the_anchor() -> None:
    view = conversation([user("task"), *rounds(50)])
    cut = choose_cut(view, budget_of(1, 1), POLICY, covered=0, target=1000)
    assert cut is not None
    assert cut.level == "L1"
    assert view.anchors(cut.position) == [0]
    assert cut.kept <= 1000


@pytest.mark.requirement("R0 1.3 L1", "R0 3.2 overlap")
def test_when_nothing_fits_one_unit_is_kept() -> None:
    cut = chosen([user("task"), *rounds(5, size=4000)], 100)
    assert cut is not None
    assert (cut.strategy, cut.position, cut.units_kept) == ("best-effort", 9, 1)


@pytest.mark.requirement("R0 2.2 strategy")
def test_a_late_turn_boundary_that_would_leave_next_to_nothing_gives_way_to_a_round() -> None:
    messages = [user("task"), *rounds(30), user("and now?")]
    cut = chosen(messages, 2000)
    assert cut is not None
    assert cut.strategy == "round-boundary"
    assert cut.kept > 1000


@pytest.mark.requirement("R1 4.1 keep", "R3 3.1 keepRecentMessages")
def test_the_newest_messages_a_policy_asks_for_are_kept_while_they_fit() -> None:
    asked = PolicySettings(keep_recent_messages=14)
    roomy = chosen(turns(10), 100_000, policy=asked)
    tight = chosen(turns(10, size=400), 900, policy=asked)
    assert roomy is not None
    assert tight is not None
    assert roomy.position == 6
    assert tight.position == 12


@pytest.mark.requirement("R0 1.3 L2", "R0 3.1", "R0 6.2", "R0 9.1 three rounds")
def test_a_standing_checkpoint_is_never_cut_again() -> None:
    cut = chosen(turns(10), 100_000, covered=10)
    assert cut is not None
    assert cut.position > 10
    assert chosen(turns(2), 100_000, covered=2) is None


@pytest.mark.requirement("R0 1.3 L3")
@pytest.mark.parametrize(
    "messages", [[], [user("x")], [system()], [user("x"), assistant(None, "a")], [user("a"), user("b")]]
)
def test_there_may_be_nothing_to_cut(messages: list[Json]) -> None:
    assert chosen(messages, 100) is None


@pytest.mark.requirement("R0 1.3 L1", "R0 9.1 three rounds")
def test_fewer_than_four_units_use_rounds() -> None:
    cut = chosen([user("a"), assistant(None, "x"), tool("x"), user("b")], 100_000)
    assert cut is not None
    assert cut.level == "L1"


def test_the_target_is_lowered_where_fewer_than_eight_rounds_would_fit_before_the_next_trigger() -> None:
    many_small = conversation([user("x"), *rounds(50, size=40)])
    few_large = conversation([user("x"), *rounds(5, size=4000)])
    budget = budget_of(8192, 7000)
    assert target_tokens(many_small, budget, POLICY) == int(0.45 * 7000)
    assert target_tokens(few_large, budget, POLICY) == int(0.40 * 7000)


def test_the_target_counts_tools_and_head_as_they_stay_whatever_is_cut() -> None:
    messages = conversation([user("x"), *rounds(50, size=40)])
    budget = budget_of(8192, 7000, 2000)
    assert target_tokens(messages, budget, POLICY) == 2000 + int(0.45 * 5000)


@pytest.mark.parametrize(
    ("room", "most", "target"),
    [
        (7_000, None, 3_150),
        (28_000, None, 8_366),
        (112_000, None, 16_733),
        (900_000, None, 47_434),
        (112_000, 20_000, 20_000),
        (28_000, 20_000, 12_600),
        (900_000, 80_000, 80_000),
    ],
)
def test_what_stays_grows_with_the_root_of_the_room(room: int, most: int | None, target: int) -> None:
    policy = PolicySettings(max_target=most)
    found = target_tokens(conversation([user("x"), *rounds(50, size=40)]), budget_of(room, room), policy)
    assert found == pytest.approx(target, abs=1)


@given(
    rooms=st.tuples(st.integers(1_000, 2_000_000), st.integers(0, 500_000)),
    root=st.integers(5, 500),
    ratio=st.floats(0.1, 0.7),
    size=st.integers(10, 20_000),
)
def test_a_larger_room_leaves_no_less(rooms: tuple[int, int], root: int, ratio: float, size: int) -> None:
    policy = PolicySettings(target_root=root, target_ratio=ratio, min_target_ratio=min(ratio, 0.4))
    messages = conversation([user("x"), *rounds(20, size=size)])
    least, more = rooms
    left = [target_tokens(messages, budget_of(room, room), policy) for room in (least, least + more)]
    assert left[0] <= left[1]
    assert left[1] <= ratio * (least + more)


@pytest.mark.parametrize(
    ("room", "target", "least"),
    [
        (7_000, 0.45, 1_400),
        (16_000, 0.45, 2_810),
        (56_000, 0.45, 6_573),
        (56_000, 0.55, 5_378),
        (56_000, 0.25, 6_573),
        (175_000, 0.45, 11_620),
    ],
)
def test_the_least_tail_falls_with_a_target_below_the_usual_one(room: int, target: float, least: int) -> None:
    policy = PolicySettings(target_ratio=target, min_target_ratio=0.2)
    assert least_kept(budget_of(room, room), policy) == pytest.approx(least, abs=1)


@pytest.mark.requirement("R0 2.2 fallback")
@pytest.mark.parametrize(
    ("messages", "target", "reason"),
    [
        ([user("task"), *rounds(2)], 100_000, "not-enough-rounds"),
        ([user("task"), *rounds(40)], 3_000, "single-turn-only"),
        ([*turns(1), user("second"), *rounds(60)], 3_000, "turns-do-not-fit"),
        ([user("task"), *rounds(200), assistant("Done."), user("what now?")], 6_000, "turn-keeps-too-little"),
        (turns(20), 100_000, None),
    ],
)
def test_a_cut_at_no_turn_says_why(messages: list[Json], target: int, reason: str | None) -> None:
    cut = chosen(messages, target)
    assert cut is not None
    assert (cut.level, cut.fallback_reason) == ("L0" if reason is None else "L1", reason)


@pytest.mark.requirement("R0 3.2 overlap")
@pytest.mark.parametrize(("overlap", "kept"), [(1, 2), (3, 4)])
def test_a_policy_says_how_many_units_stay_at_least(overlap: int, kept: int) -> None:
    policy = PolicySettings(min_overlap=overlap, min_rounds=overlap + 1, keep_recent_messages=0)
    for number in (3, 4, 5):
        cut = chosen(turns(number), 100_000, policy=policy)
        assert cut is not None
        assert cut.units_kept >= kept


def test_a_cut_between_rounds_that_had_to_fit_is_no_adjustment() -> None:
    for messages, target in (([user("task"), *rounds(50)], 1_000), ([user("task"), *rounds(5, size=4_000)], 100)):
        cut = chosen(messages, target)
        assert cut is not None
        assert cut.strategy != "turn-boundary"
        assert (cut.adjustment, cut.adjustment_delta) == ("exact", 0)
