"""Details of the policies that a mutation run found untested (docs/mutation.md)."""

from __future__ import annotations

import pytest

from policies.bisect import SummarizeCall
from policies.budget import budget_of, usable_input
from policies.cool_zone import short_form, zone_of
from policies.ladder import StatedLimit, next_rung, refused_budget
from policies.plan import Standing, decide_ahead, limits_of
from policies.prompting import Continuity, fill
from policies.record import Segment
from policies.settings import DEFAULTS, BisectSettings
from policies.texts import texts_for
from policies.transcript import ToolCall, Utterance, render
from proxy.engine import read_prompts
from tests.conversations import conversation, count, rounds, system, user
from tests.test_bisect import Model, blocks, run
from tests.test_cool_zone import LARGE, WINDOW, loop, policy, replaced, result
from tests.test_record import generation, made


def test_a_part_without_a_partner_is_not_lost_when_pairs_are_merged() -> None:
    model = Model(60, merge_window=4)
    settings = BisectSettings(min_messages=2, max_calls=64)
    outcome = run(blocks(*[25] * 6), model.answer, previous="before", capacity=60, settings=settings)
    assert outcome.text is not None
    for part in ("before", *(f"<{i}>" for i in range(6))):
        assert outcome.text.count(part) == 1


def test_what_could_not_be_merged_counts_as_truncated() -> None:
    model = Model(60, merge_window=0)
    outcome = run(blocks(*[25] * 6), model.answer, capacity=60, settings=BisectSettings(min_messages=2, max_calls=5))
    assert outcome.truncated is True


def test_a_stated_limit_never_raises_a_capacity_that_was_lower() -> None:
    model = Model(100, states_limit=True)
    outcome = run(blocks(*[30] * 12), lambda call: model.answer(call), capacity=90)
    assert outcome.text is not None
    assert all(sum(b.tokens for b in c.blocks) <= 90 for c in model.calls if isinstance(c, SummarizeCall))


def test_an_estimate_leaves_a_wider_margin() -> None:
    assert usable_input(10_000, None, exact=True).usable == 10_000 - 1_000 - 300
    assert usable_input(10_000, None, exact=False).usable == 10_000 - 1_000 - 1_000


def test_tools_count_for_the_floor_of_short_forms() -> None:
    messages = loop(*[LARGE] * 5, *[50] * 8)
    assert zone_of(conversation(messages), WINDOW, policy()).batches == ()
    assert zone_of(conversation(messages, 8_000), WINDOW, policy()).batches


def test_a_task_that_is_the_newest_words_of_the_user_stays_whole() -> None:
    messages = [user("x" * 4 * LARGE), *loop(*[LARGE] * 10)[1:]]
    assert zone_of(conversation(messages), WINDOW, policy(roles=["user", "tool"], hot_rounds=1)).batches == ()
    assert zone_of(conversation(messages), WINDOW, policy(roles=["tool"], hot_rounds=1)).batches


def test_a_batch_ends_where_the_valve_is_relieved() -> None:
    zone = zone_of(conversation(loop(*[LARGE] * 7, 50)), WINDOW, policy(valve=0.6, hot_rounds=1))
    assert replaced(zone) == [result(i) for i in range(4)]


def test_a_text_of_just_head_and_tail_is_not_cut() -> None:
    assert short_form("a" * 800, None, None, 200).endswith("gateway]\n" + "a" * 800)


def test_a_refused_budget_names_the_window() -> None:
    budget = refused_budget(StatedLimit(8_192, 8_400), sent_tokens=8_400, window=None, max_output=None, exact=True)
    assert budget is not None
    assert budget.window == 8_192


def test_what_a_rung_leaves_for_the_rest_is_what_head_and_record_do_not_take() -> None:
    view = conversation([system(), user("task"), *rounds(6), user("x" * 80_000)])
    standing = Standing(len(view.body) - 1, 600)
    rung = next_rung(view, budget_of(8_192, 7_000), DEFAULTS, standing, attempt=0, smallest_sent=30_000)
    assert rung.cut is None
    assert rung.tail_tokens == rung.target - view.fixed_tokens - 600
    fits = next_rung(
        conversation([user("task"), *rounds(60)]),
        budget_of(8_192, 7_000),
        DEFAULTS,
        None,
        attempt=0,
        smallest_sent=8_000,
    )
    assert (fits.cut is None, fits.tail_tokens) == (False, None)


def test_what_is_made_ahead_continues_the_standing_record_and_nothing_irreducible() -> None:
    view = conversation([user("task"), *rounds(60)])
    limits = limits_of(budget_of(8_192, 7_000), DEFAULTS)
    standing = Standing(9, 300)
    plan = decide_ahead(view, limits, DEFAULTS, standing)
    assert plan is not None
    assert plan.standing == standing
    floor = conversation([user("task"), *rounds(40)], tools_tokens=6_000)
    assert decide_ahead(floor, limits, DEFAULTS, None) is None


@pytest.mark.parametrize(("part", "parts"), [(1, 1), (2, 3)])
def test_a_prompt_has_the_timeline_before_every_part_and_says_how_long_the_answer_may_be(part: int, parts: int) -> None:
    said = tuple(render([Utterance(0, "user", "fix it")], count))
    continuity = Continuity("what stood before", (Segment("It began.", ("a leak", "a lock")),), ("[1] Never push.",))
    prompt = fill(read_prompts(), SummarizeCall(said, 0, part, parts), continuity, texts_for("en"), 777)
    assert "777" in prompt.system
    assert "<timeline>\n- It began.\n  Insights: a leak; a lock\n</timeline>" in prompt.user
    assert (f"part {part} of {parts}" in prompt.user) == (parts > 1)
    assert ("what stood before" in prompt.user) == (parts == 1)
    assert ("<statements>\n[1] Never push.\n</statements>" in prompt.user) == (parts == 1)


def test_a_rendered_span_is_never_cut_before_a_result() -> None:
    said = [
        Utterance(0, "user", "fix it"),
        Utterance(1, "assistant", "", (ToolCall("bash", "{}"),)),
        Utterance(2, "tool", "ok"),
    ]
    assert [block.cut_before for block in render(said, count)] == [True, True, False]
    assert render(said, count)[1].text == "[1] assistant: \n  called bash({})"


def test_a_record_without_a_model_keeps_what_was_said_lately_as_it_is() -> None:
    said = "The cause is a missing lock around the cache. " * 5
    record = made([*generation(0), Utterance(5, "assistant", said)], written=None)
    assert said.strip() in record.summary
    assert record.segments[-1].text == "5 messages: 1 from the user, 1 tool calls."
