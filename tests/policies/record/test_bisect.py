"""Bisection: splitting, shrinking and merging, driven by a summarizer that overflows to order (invariant 15)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.record.bisect import BisectOutcome, Call, MergeCall, Overflow, Result, SummarizeCall
from policies.settings import BisectSettings
from tests.support.bisection import DEFAULT, Model, block, blocks, run
from tests.support.conversations import count


@pytest.mark.requirement("R1 5.2 first")
def test_what_fits_takes_one_call() -> None:
    model = Model(1000)
    outcome = run(blocks(10, 10, 10), model.answer)
    assert outcome == BisectOutcome("<0><1><2>", calls=1, chunk_count=1, max_depth=0, truncated=False)


@pytest.mark.requirement("R1 2.2")
def test_an_overflow_splits_at_the_token_midpoint_and_merges_in_order() -> None:
    model = Model(60)
    outcome = run(blocks(10, 10, 10, 10, 10, 30), model.answer)
    assert outcome == BisectOutcome("<0><1><2><3>+<4><5>", calls=4, chunk_count=2, max_depth=1, truncated=False)


@pytest.mark.requirement("R1 5.2 first")
def test_what_cannot_fit_by_the_estimate_is_split_without_a_call() -> None:
    model = Model(60)
    outcome = run(blocks(*[10] * 12), model.answer, capacity=60)
    assert outcome.calls == 3
    assert not any(isinstance(model.answer(call), Overflow) for call in list(model.calls))


@pytest.mark.requirement("R1 9.2")
def test_a_stated_limit_spares_further_overflows() -> None:
    model = Model(500, states_limit=True)
    assert run(blocks(*[100] * 16), model.answer).text is not None
    overflows = [
        call for call in model.calls if isinstance(call, SummarizeCall) and sum(b.tokens for b in call.blocks) > 500
    ]
    assert overflows == [SummarizeCall(tuple(blocks(*[100] * 16)), depth=0)]


@pytest.mark.requirement("R1 4.3 pairs", "R1 4.4")
def test_a_round_is_never_split() -> None:
    pair = [block(0, 10), block(1, 50, cut_before=False), block(2, 10), block(3, 50, cut_before=False), block(4, 1)]
    model = Model(70)
    run(pair, model.answer)
    for call in model.calls:
        if isinstance(call, SummarizeCall):
            assert call.blocks[0].cut_before


@pytest.mark.requirement("R1 4.1 truncated", "R1 5.2 single")
def test_a_single_message_that_is_too_large_is_shrunk_head_and_tail() -> None:
    model = Model(3_000)
    outcome = run(blocks(10_000), model.answer)
    assert outcome.text == "<0>"
    assert outcome.truncated


@pytest.mark.requirement("R1 5.2 single")
def test_a_part_that_no_call_can_take_is_extracted_not_dropped() -> None:
    model = Model(100)
    outcome = run([*blocks(10, 10, 10, 10), block(4, 50_000)], model.answer)
    assert outcome.text is not None
    assert "<4>" in outcome.text
    assert outcome.truncated


@pytest.mark.requirement("R1 5.2 end")
def test_no_text_when_every_part_overflows() -> None:
    outcome = run(blocks(10, 10), lambda _: Overflow())
    assert outcome.text is None


@pytest.mark.requirement("R1 5.2 pairs", "R1 5.2 end")
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


@pytest.mark.requirement("R1 5.3")
def test_any_other_error_is_raised_unchanged_and_ends_it() -> None:
    calls = 0

    def refuse(_: Call) -> Result:
        nonlocal calls
        calls += 1
        raise PermissionError("401")

    with pytest.raises(PermissionError, match="401"):
        run(blocks(10, 10), refuse)
    assert calls == 1


@pytest.mark.requirement("R1 4.1 parts", "R1 5.2 end")
def test_splitting_ends_at_the_depth_that_is_set() -> None:
    model = Model(60)
    outcome = run(blocks(*[100] * 32), model.answer, settings=BisectSettings(max_depth=2, max_calls=200))
    assert outcome.max_depth == 2
    assert outcome.chunk_count == 4


@pytest.mark.requirement("R1 3 switches")
def test_bisection_can_be_switched_off() -> None:
    model = Model(60)
    outcome = run(blocks(*[10] * 12), model.answer, settings=BisectSettings(enabled=False))
    assert outcome.chunk_count == 1
    assert outcome.truncated


sizes = st.lists(st.integers(1, 3_000), min_size=1, max_size=60)


@pytest.mark.requirement("R0 5.1", "R1 4.4", "R1 5.2 end")
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


def test_ordinary_messages_are_never_cut_whatever_the_calls_last_for() -> None:
    model = Model(1_000)
    given = blocks(*[40] * 518)
    outcome = run(given, model.answer, capacity=1_000)
    assert outcome.text is not None
    asked = [b for call in model.calls if isinstance(call, SummarizeCall) for b in call.blocks]
    assert set(asked) <= set(given)
    assert "<517>" in outcome.text
    assert outcome.truncated
    assert outcome.calls <= DEFAULT.max_calls


def test_what_the_calls_do_not_last_for_is_the_oldest_and_stands_as_one_part() -> None:
    model = Model(1_000)
    outcome = run(blocks(*[100] * 400), model.answer, capacity=1_000)
    (merge,) = [call for call in model.calls if isinstance(call, MergeCall)]
    assert merge.texts[0].startswith("<0>")
    assert "characters left out" in merge.texts[0]
    assert outcome.text is not None
    assert all(f"<{i}>" in outcome.text for i in range(290, 400))
    assert outcome.is_bounded


def test_small_parts_of_ordinary_messages_are_split_further_and_not_cut() -> None:
    model = Model(1_000)
    outcome = run(blocks(400, 400, 400, 400), model.answer, capacity=1_000)
    assert outcome.text == "<0><1>+<2><3>"
    assert not outcome.truncated


def test_one_large_message_among_small_ones_is_cut_and_costs_no_further_call() -> None:
    model = Model(1_000)
    outcome = run(blocks(10, 10, 5_000, 10), model.answer, capacity=1_000)
    assert (outcome.text, outcome.calls) == ("<0><1><2><3>", 1)
    assert outcome.truncated


@pytest.mark.requirement("R1 5.2 pairs")
def test_calls_are_kept_for_merging_pair_by_pair_to_one_text() -> None:
    def answer(call: Call) -> Result:
        if isinstance(call, MergeCall) and len(call.texts) > 2:
            return Overflow()
        return "merged".ljust(200) if isinstance(call, MergeCall) else "part".ljust(200)

    outcome = run(blocks(*[50] * 60), answer, capacity=100, length=50)
    assert outcome.text is not None
    assert outcome.text.startswith("merged")
    assert outcome.text.count("merged") == 1
    assert outcome.calls <= DEFAULT.max_calls


def test_parts_that_are_too_many_for_one_merge_are_merged_by_as_many_as_fit() -> None:
    texts = 0

    def answer(call: Call) -> Result:
        nonlocal texts
        if isinstance(call, MergeCall):
            texts += 1
            assert sum(map(count, call.texts)) <= 100
            return "m".ljust(100, "m")
        return "s".ljust(100, "s")

    outcome = run(blocks(*[50] * 16), answer, capacity=100, length=25)
    assert outcome.text == "m" * 100
    assert (outcome.calls, texts) == (8 + 3, 3)


def test_a_depth_that_is_used_up_is_not_paid_twice() -> None:
    model = Model(60)
    outcome = run(blocks(*[50] * 32), model.answer, settings=BisectSettings(max_depth=2, max_calls=200))
    asked = [call for call in model.calls if isinstance(call, SummarizeCall)]
    assert len({call.blocks for call in asked}) == len(asked)
    assert outcome.max_depth == 2
    assert outcome.is_bounded


def test_calls_that_a_merge_does_not_need_read_older_parts() -> None:
    """The length asked for lets two texts into a merge; these summaries are short, so one merge takes all."""
    model = Model(1_000)
    outcome = run(blocks(*[100] * 140), model.answer, capacity=1_000, length=500)
    assert outcome.text is not None
    assert all(f"<{i}>" in outcome.text for i in range(140))
    assert not outcome.truncated
    assert outcome.calls == DEFAULT.max_calls - 1


def test_an_unknown_window_is_found_by_one_refused_call_after_another() -> None:
    model = Model(1_000)
    outcome = run(blocks(*[100] * 80), model.answer)
    asked = [sum(b.tokens for b in call.blocks) for call in model.calls if isinstance(call, SummarizeCall)]
    assert asked[0] == 8_000
    assert [tokens > 1_000 for tokens in asked[:4]] == [True, True, True, False]
    assert sum(tokens > 1_000 for tokens in asked) <= 5
    assert outcome.calls <= DEFAULT.max_calls
    assert outcome.text is not None
    assert all(f"<{i}>" in outcome.text for i in range(80))


def test_a_window_that_was_told_wrong_costs_half_of_the_calls_at_most() -> None:
    model = Model(1_000)
    outcome = run(blocks(*[100] * 100), model.answer, capacity=1_500)
    assert outcome.calls <= DEFAULT.max_calls
    assert outcome.text is not None
    assert all(f"<{i}>" in outcome.text for i in range(75, 100))


def test_what_no_call_is_left_to_read_does_not_use_up_the_depth() -> None:
    model = Model(100)
    outcome = run(blocks(*[20] * 2_000), model.answer, capacity=100, length=25)
    assert outcome.text is not None
    assert all(f"<{i}>" in outcome.text for i in range(1_960, 2_000))


def test_a_depth_that_is_known_to_be_too_little_asks_for_the_newest_that_fit() -> None:
    model = Model(100)
    given = blocks(*[40] * 32)
    outcome = run(given, model.answer, capacity=100, settings=BisectSettings(max_depth=1, max_calls=200))
    asked = [call for call in model.calls if isinstance(call, SummarizeCall)]
    assert [len(call.blocks) for call in asked] == [2, 2]
    assert asked[1].blocks == tuple(given[30:])
    assert outcome.text is not None
    assert outcome.is_bounded


def test_a_part_whose_one_message_no_call_takes_is_the_summarizers_affair() -> None:
    outcome = run(blocks(10), lambda _: Overflow())
    assert outcome.text is None
    assert not outcome.is_bounded


@pytest.mark.requirement("R1 5.2 end")
@given(st.lists(st.integers(1, 200), min_size=1, max_size=120), st.integers(200, 2_000), st.integers(1, 16), st.data())
def test_no_message_that_fits_a_call_is_cut(
    given_sizes: list[int], capacity: int, max_calls: int, data: st.DataObject
) -> None:
    span = blocks(*given_sizes)
    model = Model(capacity)
    settings = BisectSettings(max_calls=max_calls, min_messages=data.draw(st.integers(2, 8)))
    outcome = run(span, model.answer, capacity=capacity, settings=settings, length=data.draw(st.integers(0, 500)))
    asked = [b for call in model.calls if isinstance(call, SummarizeCall) for b in call.blocks]
    assert set(asked) == set(span[len(span) - len(asked) :])
    assert outcome.calls <= max_calls
    assert outcome.text is not None
