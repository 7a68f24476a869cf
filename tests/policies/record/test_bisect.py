"""Bisection: splitting, shrinking and merging, driven by a summarizer that overflows to order (invariant 15)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.record.bisect import Call, MergeCall, Outcome, Overflow, Result, SummarizeCall
from policies.settings import BisectSettings
from tests.support.bisection import Model, block, blocks, run


def test_what_fits_takes_one_call() -> None:
    model = Model(1000)
    outcome = run(blocks(10, 10, 10), model.answer)
    assert outcome == Outcome("<0><1><2>", calls=1, chunk_count=1, max_depth=0, truncated=False)


def test_an_overflow_splits_at_the_token_midpoint_and_merges_in_order() -> None:
    model = Model(60)
    outcome = run(blocks(10, 10, 10, 10, 10, 30), model.answer)
    assert outcome == Outcome("<0><1><2><3>+<4><5>", calls=4, chunk_count=2, max_depth=1, truncated=False)


def test_what_cannot_fit_by_the_estimate_is_split_without_a_call() -> None:
    model = Model(60)
    outcome = run(blocks(*[10] * 12), model.answer, capacity=60)
    assert outcome.calls == 3
    assert not any(isinstance(model.answer(call), Overflow) for call in list(model.calls))


def test_a_stated_limit_spares_further_overflows() -> None:
    model = Model(500, states_limit=True)
    assert run(blocks(*[100] * 16), model.answer).text is not None
    overflows = [
        call for call in model.calls if isinstance(call, SummarizeCall) and sum(b.tokens for b in call.blocks) > 500
    ]
    assert overflows == [SummarizeCall(tuple(blocks(*[100] * 16)), depth=0)]


def test_a_round_is_never_split() -> None:
    pair = [block(0, 10), block(1, 50, cut_before=False), block(2, 10), block(3, 50, cut_before=False), block(4, 1)]
    model = Model(70)
    run(pair, model.answer)
    for call in model.calls:
        if isinstance(call, SummarizeCall):
            assert call.blocks[0].cut_before


def test_a_single_message_that_is_too_large_is_shrunk_head_and_tail() -> None:
    model = Model(3_000)
    outcome = run(blocks(10_000), model.answer)
    assert outcome.text == "<0>"
    assert outcome.truncated


def test_a_part_that_no_call_can_take_is_extracted_not_dropped() -> None:
    model = Model(100)
    outcome = run([*blocks(10, 10, 10, 10), block(4, 50_000)], model.answer)
    assert outcome.text is not None
    assert "<4>" in outcome.text
    assert outcome.truncated


def test_no_text_when_every_part_overflows() -> None:
    outcome = run(blocks(10, 10), lambda _: Overflow())
    assert outcome.text is None


def test_a_merge_that_overflows_goes_pairwise() -> None:
    model = Model(20, merge_window=7)
    outcome = run(blocks(*[10] * 8), model.answer, settings=BisectSettings(min_messages=2, max_calls=64))
    assert outcome.text is not None
    assert sum(isinstance(call, MergeCall) for call in model.calls) > 1
    positions = [outcome.text.index(f"<{i}>") for i in range(8)]
    assert positions == sorted(positions)


def test_the_previous_summary_joins_the_merge_as_its_oldest_part() -> None:
    model = Model(60)
    outcome = run(blocks(*[10] * 12), model.answer, previous="before", capacity=60)
    assert outcome.text is not None
    assert outcome.text.startswith("before+")


def test_any_other_error_is_raised_unchanged_and_ends_it() -> None:
    calls = 0

    def refuse(_: Call) -> Result:
        nonlocal calls
        calls += 1
        raise PermissionError("401")

    with pytest.raises(PermissionError, match="401"):
        run(blocks(10, 10), refuse)
    assert calls == 1


def test_splitting_ends_at_the_depth_that_is_set() -> None:
    model = Model(60)
    outcome = run(blocks(*[100] * 32), model.answer, settings=BisectSettings(max_depth=2, max_calls=200))
    assert outcome.max_depth == 2
    assert outcome.chunk_count == 4


def test_bisection_can_be_switched_off() -> None:
    model = Model(60)
    outcome = run(blocks(*[10] * 12), model.answer, settings=BisectSettings(enabled=False))
    assert outcome.chunk_count == 1
    assert outcome.truncated


sizes = st.lists(st.integers(1, 3_000), min_size=1, max_size=60)


@given(sizes, st.integers(5, 5_000), st.sampled_from([None, 50, 500]), st.integers(1, 16), st.data())
def test_leaves_are_the_input_in_order_and_all_bounds_hold(
    given_sizes: list[int], window: int, capacity: int | None, max_calls: int, data: st.DataObject
) -> None:
    cuts = data.draw(st.lists(st.booleans(), min_size=len(given_sizes), max_size=len(given_sizes)))
    span = [block(i, size, cut_before=cut) for i, (size, cut) in enumerate(zip(given_sizes, cuts, strict=True))]
    model = Model(window, merge_window=data.draw(st.integers(1, 400)), states_limit=data.draw(st.booleans()))
    settings = BisectSettings(max_calls=max_calls)
    outcome = run(span, model.answer, capacity=capacity, settings=settings)
    assert outcome.calls == len(model.calls) <= max_calls
    assert outcome.max_depth <= settings.max_depth
    for call in model.calls:
        if isinstance(call, SummarizeCall):
            numbers = [int(b.text[1 : b.text.index(">")]) for b in call.blocks]
            assert numbers
            assert numbers == list(range(numbers[0], numbers[-1] + 1))
            assert numbers[0] == 0 or call.blocks[0].cut_before
            assert call.depth <= settings.max_depth
