"""The state of a conversation's compactions, and when models are left alone."""

from __future__ import annotations

import msgspec
import pytest

from policies.decision.budget import budget_of
from policies.record.lineage import (
    HISTORY,
    Lineage,
    after_compaction,
    after_failure,
    after_showing,
    may_ask_model,
    may_gain,
    may_rebuild,
    without_gain,
)
from policies.record.record import WrittenSummary
from tests.support.records import NONSENSE, generation, made

BUDGET = budget_of(10_000, 10_000)
NOW = 1_700_000_000.0


def vain(lineage: Lineage, tokens: int = 50_000, now: float = NOW) -> Lineage:
    digest = str(lineage.ineffective)
    return after_showing(lineage, digest, share=0.85, threshold=0.8, history_tokens=tokens, now=now)


@pytest.mark.requirement("R3 4.1 resetState")
@pytest.mark.parametrize(
    ("vain_ones", "grown", "waited", "may"),
    [
        (0, 0, 0, True),
        (1, 0, 0, True),
        (2, 0, 0, False),
        (2, 1_499, 599, False),
        (2, 1_500, 0, True),
        (2, 0, 600, True),
        (3, 2_999, 1_199, False),
        (3, 3_000, 0, True),
        (3, 0, 1_200, True),
        (40, 1_500 * 1024 - 1, 600 * 1024 - 1, False),
        (4_000, 1_500 * 1024, 0, True),
    ],
)
def test_after_two_compactions_in_vain_models_are_left_alone_for_a_while(
    vain_ones: int, grown: int, waited: int, may: bool
) -> None:
    lineage = Lineage(first_seen=NOW)
    for _ in range(vain_ones):
        lineage = vain(lineage)
    assert may_ask_model(lineage, BUDGET, history_tokens=50_000 + grown, now=NOW + waited) == may


def test_one_compaction_that_helped_ends_the_count() -> None:
    lineage = after_showing(vain(vain(Lineage(NOW))), "third", share=0.79, threshold=0.8, history_tokens=1, now=NOW)
    assert lineage.ineffective == 0


def test_a_record_is_judged_once() -> None:
    once = vain(Lineage(NOW))
    assert after_showing(once, once.judged, share=0.1, threshold=0.8, history_tokens=1, now=NOW) == once


@pytest.mark.requirement("R3 3.2 state", "R3 3.2 history", "R3 3.3 messages", "R3 4.1 stats")
@pytest.mark.parametrize("written", [NONSENSE, None])
def test_the_state_counts_what_r3_counts(written: WrittenSummary | None) -> None:
    record = made(generation(0), written=written)
    state = after_compaction(after_failure(Lineage(first_seen=NOW)), record, messages=30, now=NOW + 5)
    assert (state.compactions, state.last_compaction, state.failures) == (1, NOW + 5, 0)
    assert state.calls == (0 if written is None else 1)
    (entry,) = state.history
    assert (entry.messages_before, entry.messages_after) == (30, 30 - record.covered + 1)
    assert (entry.tokens_before, entry.tokens_after) == (6_000, record.making.tokens.after)
    assert (entry.trigger, entry.digest) == ("proactive", record.digest)


@pytest.mark.requirement("R3 3.2 history")
def test_the_history_is_bounded() -> None:
    state = Lineage(first_seen=NOW)
    for number in range(HISTORY + 20):
        record = msgspec.structs.replace(made(generation(0)), digest=str(number))
        state = after_compaction(state, record, messages=9, now=NOW)
    assert (len(state.history), state.history[-1].digest, state.compactions) == (HISTORY, "119", 120)


@pytest.mark.parametrize(
    ("history", "made_so_far", "calls", "may"),
    [(8_000, 9, 1, True), (25_500, 3, 2, False), (25_500, 2, 2, True), (25_500, 0, 5, False), (100_000, 5, 9, True)],
)
def test_a_rebuild_keeps_the_promised_price(history: int, made_so_far: int, calls: int, may: bool) -> None:
    lineage = Lineage(first_seen=NOW, calls=made_so_far)
    assert may_rebuild(lineage, BUDGET, 0.8, history_tokens=history, calls=calls) == may


@pytest.mark.parametrize(
    ("noted", "tokens", "may"),
    [(0, 0, True), (0, 9_000, True), (1_000, 1_000, False), (1_000, 1_099, False), (1_000, 1_100, True),
     (1_000, 999, True)],
)  # fmt: skip
def test_a_record_that_gained_nothing_is_not_made_again_until_the_history_has_grown(
    noted: int, tokens: int, may: bool
) -> None:
    assert may_gain(without_gain(Lineage(NOW), noted), tokens) == may
