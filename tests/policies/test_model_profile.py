"""What refusals, successes and bills teach of a model."""

from __future__ import annotations

import msgspec
import pytest

from policies.decision.overflow_retries import StatedLimit
from policies.model_profile import (
    FIRST_CEILING_TTL,
    LEARNED_TTL,
    ModelProfile,
    after_bill,
    after_larger_prompt,
    after_overflow,
    after_smaller_retry,
    after_success,
    was_cut_off,
)

NOTHING = ModelProfile()


def learned(*limits: int, kind: str = "window", now: float = 0) -> ModelProfile:
    known = NOTHING
    for limit in limits:
        known = after_overflow(known, StatedLimit(limit, kind=kind), 10_000, now)  # type: ignore[arg-type]
    return known


def test_what_was_learned_holds_for_a_day() -> None:
    known = learned(8_192, now=100)
    assert known.limit_at(100 + LEARNED_TTL - 1) == 8_192
    assert known.limit_at(100 + LEARNED_TTL) is None


def test_the_newest_lesson_holds_and_nonsense_teaches_nothing() -> None:
    assert learned(8_192, 4_096, 0, -1).limit == 4_096


@pytest.mark.parametrize(
    ("stated", "limit", "ratios"),
    [
        (StatedLimit(8_192, 12_000), 8_192, (1.2,)),
        (StatedLimit(8_192), 8_192, ()),
        (StatedLimit(None, 12_000), None, (1.2,)),
        (StatedLimit(8_192, 12_000, learnable=False), None, (1.2,)),
        (StatedLimit(8_192, 12_000, is_lower_bound=True), 8_192, ()),
        (StatedLimit(), None, ()),
    ],
)
def test_a_refusal_teaches_what_it_states_and_no_more(
    stated: StatedLimit, limit: int | None, ratios: tuple[float, ...]
) -> None:
    known = after_overflow(NOTHING, stated, 10_000, now=1)
    assert (known.limit, known.ratios) == (limit, ratios)


@pytest.mark.parametrize(
    ("kind", "prompt", "output", "holds"),
    [
        ("window", 8_192, 0, True),
        ("window", 8_193, 0, False),
        ("window", 8_000, 192, True),
        ("window", 8_000, 193, False),
        ("input", 8_000, 500, True),
        ("input", 8_193, 0, False),
    ],
)
def test_an_answer_that_the_limit_would_not_have_let_through_disproves_it(
    kind: str, prompt: int, output: int, holds: bool
) -> None:
    known = learned(8_192, kind=kind)
    assert after_success(known, prompt, output, now=1).limit_at(1) == (8_192 if holds else None)


@pytest.mark.requirement("R3 7.1 four")
@pytest.mark.parametrize(
    ("observed", "factor"),
    [
        ([], 1.0),
        ([(1000, 1300)], 1.3),
        ([(1000, 1300), (1000, 1100)], 1.3),
        ([(1000, 700)], 1.0),
        ([(1000, 90_000)], 6.0),
        ([(50, 90)], 1.0),
        ([(0, 90), (1000, 0), (-5, -5)], 1.0),
        ([(1000, 2000)] * 2 + [(1000, 1100)] * 14, 2.0),
        ([(1000, 2000)] * 2 + [(1000, 1100)] * 15, 1.1),
        ([(1000, 5000)] + [(1000, 1100)] * 3, 1.1),
        ([(1000, 5000)] + [(1000, 1100)] * 2, 5.0),
    ],
)
def test_estimates_are_corrected_by_the_worst_of_what_was_lately_seen_but_one(
    observed: list[tuple[int, int]], factor: float
) -> None:
    known = NOTHING
    for estimated, real in observed:
        known = after_bill(known, estimated, real, "session")
    assert known.calibration_for("session") == pytest.approx(factor)
    assert known.highest_calibration >= factor


@pytest.mark.parametrize(
    ("observed", "factor"),
    [
        ({"a": [1.1]}, 1.1),
        ({"a": [5.0] * 16}, 1.25),
        ({"a": [5.0], "b": [1.1, 1.1]}, 1.1),
        ({"a": [5.0], "b": [4.0]}, 4.0),
        ({"a": [5.0], "b": [1.0], "c": [1.0]}, 1.0),
        ({"a": [5.0], "b": [6.0], "c": [1.0]}, 5.0),
        ({"": [1.8], "a": [1.0]}, 1.8),
    ],
)
def test_what_one_session_alone_was_billed_holds_for_others_only_within_a_bound(
    observed: dict[str, list[float]], factor: float
) -> None:
    known = NOTHING
    for session, ratios in observed.items():
        for ratio in ratios:
            known = after_bill(known, 1_000, int(1_000 * ratio), session)
    assert known.calibration == known.calibration_for("new") == pytest.approx(factor)
    assert known.highest_calibration >= factor


def test_what_a_release_without_sessions_has_learned_is_believed() -> None:
    known = ModelProfile(ratios=(2.0, 1.0))
    assert known.calibration == known.calibration_for("new") == 2.0
    assert after_bill(known, 1_000, 1_000, "s").calibration_for("new") == 2.0


@pytest.mark.parametrize(
    ("estimated", "real", "cut_off"),
    [(5_000, 2_050, True), (5_000, 2_500, False), (900, 100, False), (5_000, 0, False), (5_000, 6_000, False)],
)
def test_a_prompt_that_was_billed_at_less_than_half_was_not_read_whole(
    estimated: int, real: int, cut_off: bool
) -> None:
    assert was_cut_off(estimated, real) == cut_off
    assert after_bill(NOTHING, estimated, real).cut_off == cut_off


def test_it_survives_being_stored() -> None:
    known = msgspec.structs.replace(
        learned(8_192, kind="input", now=5), shape="merge", tells_usage=False, ratios=(1.5,)
    )
    assert msgspec.json.decode(msgspec.json.encode(known), type=ModelProfile) == known


UNSTATED = StatedLimit(learnable=False)


def refused(*sizes: int, now: float = 0, known: ModelProfile = NOTHING) -> ModelProfile:
    for size in sizes:
        known = after_smaller_retry(known, UNSTATED, size, now)
    return known


def test_what_was_refused_without_a_number_is_a_ceiling_for_an_hour_and_for_a_day_where_it_was_refused_again() -> None:
    once = refused(40_000, now=100)
    assert once.ceiling_at(100 + FIRST_CEILING_TTL - 1) == 36_000
    assert once.ceiling_at(100 + FIRST_CEILING_TTL) is None
    again = refused(41_000, now=10_000, known=once)
    assert again.ceiling_at(10_000 + LEARNED_TTL - 1) == 36_900
    assert again.ceiling_at(10_000 + LEARNED_TTL) is None


def test_of_several_ceilings_the_lowest_holds_and_a_calibration_goes_with_it() -> None:
    assert refused(40_000, 30_000).ceiling_at(1) == 27_000
    assert refused(30_000, 90_000).ceiling_at(1) == 27_000
    assert after_bill(refused(40_000), 1_000, 1_500).ceiling_at(1) == 54_000


def test_a_refusal_that_states_its_limit_makes_no_ceiling() -> None:
    assert after_smaller_retry(NOTHING, StatedLimit(8_192, kind="window"), 40_000, 0) == NOTHING
    assert after_smaller_retry(NOTHING, StatedLimit(8_192, kind="pool", learnable=False), 40_000, 0) == NOTHING


@pytest.mark.parametrize(
    ("estimated", "real", "ceiling"),
    [
        (36_000, 36_000, 36_000),
        (36_500, 36_500, 36_500),
        (39_900, 39_900, 39_900),
        (40_001, 40_001, None),
        (90_000, 90_000, None),
        (90_000, 4_096, 36_000),
    ],
    ids=["no larger", "a little larger", "just below", "as large as refused", "much larger", "cut off unread"],
)
def test_a_larger_prompt_that_is_answered_lifts_the_ceiling(estimated: int, real: int, ceiling: int | None) -> None:
    assert after_larger_prompt(refused(40_000), estimated, real).ceiling == ceiling


def test_replicas_of_the_version_before_read_what_is_shared_and_their_own_is_read_here() -> None:
    class Before(msgspec.Struct, frozen=True, omit_defaults=True):
        limit: int | None = None
        learned_at: float = 0.0

    raw = msgspec.json.encode(refused(40_000, known=learned(8_192, now=5)))
    assert msgspec.json.decode(raw, type=Before) == Before(8_192, 5)
    assert msgspec.json.decode(msgspec.json.encode(Before(8_192, 5)), type=ModelProfile).limit == 8_192


def test_a_larger_prompt_is_tried_again_after_minutes_and_later_after_every_refusal() -> None:
    known, now = learned(8_192, now=1_000.0), 1_000.0
    for wait in (300, 600, 1_200, 2_400):
        assert not known.is_trial_due(now + wait - 1)
        assert known.is_trial_due(now + wait)
        now += wait
        known = after_overflow(known, StatedLimit(8_192), 10_000, now)
    for _ in range(20):
        now += LEARNED_TTL - 1
        known = after_overflow(known, StatedLimit(8_192), 10_000, now)
    assert known.is_trial_due(now + LEARNED_TTL)


def test_refusals_while_a_lesson_holds_put_no_trial_off_twice() -> None:
    known = after_overflow(learned(8_192, now=0), StatedLimit(8_192), 10_000, 10)
    assert (known.trials, known.is_trial_due(310)) == (0, True)


def test_a_refusal_without_a_number_is_tried_again_likewise() -> None:
    known = after_smaller_retry(NOTHING, StatedLimit(), 146, 0)
    assert (known.ceiling, known.is_trial_due(299), known.is_trial_due(300)) == (131, False, True)
    known = after_smaller_retry(known, StatedLimit(), 20_000, 300)
    assert (known.is_trial_due(899), known.is_trial_due(900)) == (False, True)


def test_a_larger_prompt_that_is_taken_ends_the_waiting() -> None:
    known = after_overflow(learned(8_192, now=0), StatedLimit(8_192), 10_000, 300)
    assert known.trials == 1
    known = after_success(known, 9_000, 10, 1_000)
    assert (known.limit, known.trials) == (None, 0)


def test_what_was_learned_before_trials_were_counted_is_tried_at_once() -> None:
    known = msgspec.json.decode(b'{"limit": 132, "learned_at": 1700000000}', type=ModelProfile)
    assert known.is_trial_due(1_700_000_001)
