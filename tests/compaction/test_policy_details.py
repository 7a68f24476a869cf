"""Details of the policies that a mutation run found untested."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import msgspec
import pytest

from policies.conversation.transcript import ToolCall, Utterance, render
from policies.decision.budget import budget_of, usable_input
from policies.decision.large_results import short_form, zone_of
from policies.decision.overflow_retries import StatedLimit, next_rung, refused_budget
from policies.decision.plan import ActiveCheckpoint, Compact, Reuse, decide, decide_ahead, limits_of
from policies.record.actions import file_changes, key_actions
from policies.record.bisect import SummarizeCall
from policies.record.lineage import Lineage, after_compaction, after_failure, after_showing
from policies.record.prompting import Continuity, fill
from policies.record.record import Segment
from policies.record.texts import language_of, texts_for
from policies.settings import DEFAULTS, BisectSettings
from proxy.dialects.chat.canonical import message_digest
from proxy.wiring import read_prompts
from tests.support.bisection import Model, blocks, run
from tests.support.conversations import conversation, count, rounds, system, user
from tests.support.cool_zone import LARGE, WINDOW, loop, policy, replaced, result
from tests.support.records import generation, made


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


def test_the_floor_of_short_forms_is_a_share_of_what_tools_leave() -> None:
    messages = loop(*[LARGE] * 6, *[50] * 8)
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
    standing = ActiveCheckpoint(len(view.body) - 1, 600)
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
    limits = limits_of(budget_of(8_192, 7_000), DEFAULTS, 0)
    standing = ActiveCheckpoint(9, 300)
    plan = decide_ahead(view, limits, DEFAULTS, standing)
    assert plan is not None
    assert plan.standing == standing
    floor = conversation([user("task"), *rounds(40)], tools_tokens=6_000)
    assert decide_ahead(floor, limits_of(budget_of(8_192, 7_000), DEFAULTS, 6_000), DEFAULTS, None) is None


@pytest.mark.requirement("R2 Format list")
@pytest.mark.parametrize("parts", [1, 3])
def test_a_prompt_says_how_long_the_answer_may_be_and_of_a_part_nothing_but_its_content(parts: int) -> None:
    said = tuple(render([Utterance(0, "user", "fix it")], count))
    continuity = Continuity("what stood before", (Segment("It began.", ("a leak", "a lock")),), ("[1] Never push.",))
    prompt = fill(read_prompts(), SummarizeCall(said, 0, parts), continuity, texts_for("en"), 777)
    assert "777" in prompt.system
    assert ("<timeline>\n- It began.\n  Insights: a leak; a lock\n</timeline>" in prompt.user) == (parts == 1)
    assert ("This is one part" in prompt.user) == (parts > 1)
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
    assert record.segments == ()


FRESH = Lineage(first_seen=0.0)


def searching(name: str, query: str) -> dict[str, object]:
    return calling({"id": name, "type": "search", "query": query})


def calling(call: object) -> dict[str, object]:
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (
            {"role": "assistant", "function_call": {"name": "f", "arguments": '{"a": 1}'}},
            {"role": "assistant", "function_call": {"name": "f", "arguments": '{"a": 2}'}},
            False,
        ),
        (
            {"role": "assistant", "function_call": {"name": "f", "arguments": '{"a": 1}'}},
            {"role": "assistant", "function_call": {"name": "f", "arguments": '{ "a":1}'}},
            True,
        ),
        ({"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}, {"role": "assistant"}, False),
        (
            calling({"id": "1", "type": "custom", "custom": {"name": "sh", "input": "ls"}}),
            calling({"id": "1", "type": "custom", "custom": {"name": "sh", "input": "rm"}}),
            False,
        ),
        (
            calling({"id": "1", "type": "search", "query": "a"}),
            calling({"id": "1", "type": "search", "query": "b"}),
            False,
        ),
        (
            calling({"id": "1", "type": "search", "query": "a"}),
            calling({"id": "2", "type": "search", "query": "a"}),
            True,
        ),
        (
            calling({"id": "1", "function": {"name": "f", "arguments": {"a": [1, {"b": 2}]}}}),
            calling({"id": "1", "function": {"name": "f", "arguments": {"a": [1, {"b": 3}]}}}),
            False,
        ),
        (
            user([{"type": "image_url", "image_url": {"url": "data:1"}}]),  # type: ignore[arg-type]
            user([{"type": "image_url", "image_url": {"url": "data:2"}}]),  # type: ignore[arg-type]
            False,
        ),
        (
            user([{"type": "x", "list": ["a", {"b": 1}]}]),  # type: ignore[arg-type]
            user([{"type": "x", "list": ["a", {"b": 2}]}]),  # type: ignore[arg-type]
            False,
        ),
        (
            user([{"type": "x", "text": "a", "cache_control": {"type": "ephemeral"}, "none": None}]),  # type: ignore[arg-type]
            user([{"type": "x", "text": "a"}]),  # type: ignore[arg-type]
            True,
        ),
    ],
)
def test_what_a_message_says_is_in_its_digest_and_nothing_else(
    one: dict[str, object], other: dict[str, object], same: bool
) -> None:
    assert (message_digest(one) == message_digest(other)) == same


def test_results_answer_the_calls_with_their_ids_whatever_stands_between() -> None:
    calls = tuple(ToolCall(name, "{}", f"id of {name}") for name in ("one", "two", "three", "late"))
    span = [
        Utterance(7, "assistant", "", calls),
        Utterance(8, "tool", "ok", answers="id of three"),
        Utterance(9, "tool", "Error: no", answers="id of two"),
        Utterance(10, "tool", "ok", answers="id of one"),
        Utterance(11, "tool", "Error: nobody asked", answers="id of one"),
        Utterance(11, "tool", "Error: whose?", answers="id of nobody"),
        Utterance(12, "user", "Error: says the user"),
        Utterance(13, "assistant", "", (ToolCall("four", '{"text": "a\\nb"}', "id of four"),)),
        Utterance(14, "tool", "Error: no", answers="id of late"),
        Utterance(14, "tool", "ok", answers="id of four"),
    ]
    told = [(action.tool, action.ok, action.position) for action in key_actions(span)]
    assert told == [("one", True, 7), ("two", False, 7), ("three", True, 7), ("late", False, 7), ("four", True, 13)]


def test_of_calls_that_share_an_id_the_newest_message_has_the_result_and_in_it_the_first() -> None:
    span = [
        Utterance(1, "assistant", "", (ToolCall("old", "{}", "call_0"),)),
        Utterance(2, "assistant", "", (ToolCall("one", "{}", "call_0"), ToolCall("two", "{}", "call_0"))),
        Utterance(3, "tool", "ok", answers="call_0"),
        Utterance(4, "tool", "Error: no", answers="call_0"),
    ]
    assert [(action.tool, action.ok) for action in key_actions(span)] == [("old", None), ("one", True), ("two", False)]


def test_long_arguments_are_shown_in_one_short_line() -> None:
    (action,) = key_actions([Utterance(0, "assistant", "", (ToolCall("f", "a\n  b " + "x" * 9_000),))])
    assert action.arguments.startswith("a b x")
    assert "\n" not in action.arguments
    assert len(action.arguments) < 1_000


@pytest.mark.parametrize(
    ("names", "action"),
    [
        (("write_file",), "created"),
        (("edit_file", "write_file"), "modified"),
        (("write_file", "write_file"), "created"),
        (("write_file", "edit_file"), "modified"),
        (("remove_file", "write_file"), "created"),
        (("write_file", "remove_file"), "deleted"),
        (("read_file",), None),
    ],
)
def test_what_happened_to_a_file_is_told_by_the_last_tool_that_changed_it(
    names: tuple[str, ...], action: str | None
) -> None:
    span = [Utterance(i, "assistant", "", (ToolCall(name, '{"path": "a.py"}'),)) for i, name in enumerate(names)]
    pathless = Utterance(9, "assistant", "", (ToolCall("write_file", '{"text": "x"}'),))
    assert [change.action for change in file_changes((), [*span, pathless])] == ([] if action is None else [action])


def test_a_failure_counts_one_and_a_record_is_judged_once_however_it_went() -> None:
    assert after_failure(after_failure(FRESH)).failures == 2
    judge = partial(after_showing, threshold=0.8, history_tokens=50_000, now=1.0)
    helped = judge(msgspec.structs.replace(FRESH, ineffective=1), "a", share=0.5)
    assert (helped.judged, helped.ineffective, judge(helped, "a", share=0.9)) == ("a", 0, helped)
    vain = judge(FRESH, "b", share=0.9)
    assert (vain.judged, vain.ineffective, vain.ineffective_at) == ("b", 1, (1.0, 50_000))
    assert judge(vain, "b", share=0.9) == vain
    assert judge(vain, "c", share=0.8).ineffective == 2


def test_a_compaction_is_remembered_with_what_it_was() -> None:
    record = made(generation(0))
    (entry,) = after_compaction(FRESH, record, messages=50, now=7.0).history
    making = record.making
    assert (entry.at, entry.algorithm, entry.generation, entry.calls) == (7.0, making.algorithm, 1, making.calls)


def test_what_is_kept_behind_a_cut_has_its_anchors_and_the_instructions_before_it() -> None:
    messages = [system(), user("task " * 10), *rounds(2), system("inner " * 20), *rounds(2), user("more"), *rounds(1)]
    found = conversation(messages)
    body = found.body
    assert found.first_spoken() == 0
    sizes = [message.tokens for message in body]
    inner = next(i for i, message in enumerate(body) if message.role == "system")
    more = next(i for i, message in enumerate(body) if i and message.role == "user")
    for cut in range(1, len(body)):
        anchors = [0, more] if cut > more else [0]
        assert found.anchors(cut) == anchors
        kept = sum(sizes[cut:]) + (sizes[inner] if inner < cut else 0) + sum(sizes[anchor] for anchor in anchors)
        assert found.kept_tokens(cut) == kept
    assert found.anchors(0) == found.anchors(len(body)) == []


def test_a_plan_says_what_it_was_made_from() -> None:
    budget = budget_of(8_192, 7_000)
    messages = conversation([user("task"), *rounds(55)])
    plan = decide(messages, limits_of(budget, DEFAULTS, 0), DEFAULTS, None)
    assert isinstance(plan, Compact)
    assert (replace(plan.budget, names=0), plan.tokens_before, plan.standing) == (budget, messages.total_tokens, None)
    ahead = decide_ahead(messages, limits_of(budget, DEFAULTS, 0), DEFAULTS, None)
    assert ahead is not None
    assert (replace(ahead.budget, names=0), ahead.tokens_before, ahead.trigger, ahead.must) == (
        budget,
        messages.total_tokens,
        "background",
        False,
    )


def test_some_foreign_words_do_not_change_a_conversations_language() -> None:
    assert language_of(["请把" + "the deployment of the gateway " * 4]) == "en"
    assert language_of(["请把发票总额改成以分为单位 totals.py"]) == "zh"
    assert language_of(["12345"]) == "en"


def test_what_stands_is_sent_on_where_nothing_better_can_be_made() -> None:
    limits = limits_of(budget_of(8_192, 7_000), DEFAULTS, 0)
    floor = conversation([user("task"), *rounds(20), user("x" * 4 * 6_000)])
    standing = ActiveCheckpoint(covered=len(floor.body) - 1, record_tokens=200)
    assert decide(floor, limits, DEFAULTS, standing) == Reuse(standing, "nothing_to_compact")
    standing = ActiveCheckpoint(covered=len(floor.body) - 5, record_tokens=200)
    assert decide(floor, limits, DEFAULTS, standing) == Reuse(standing, "irreducible")
    grown = conversation([user("task"), *rounds(90)])
    standing = ActiveCheckpoint(covered=80, record_tokens=300)
    plan = decide_ahead(grown, limits, DEFAULTS, standing)
    assert plan is not None
    assert (plan.standing, plan.tokens_before) == (standing, 300 + grown.kept_tokens(80))
    assert plan.cut.position > 80


def test_unmeasured_requests_count_by_messages_that_no_record_covers() -> None:
    limits = limits_of(None, DEFAULTS, 0)
    messages = conversation([user("task"), *rounds(80)])
    assert isinstance(decide(messages, limits, DEFAULTS, None), Compact)
    covering = ActiveCheckpoint(covered=len(messages.body) - 49, record_tokens=9_000)
    assert decide(messages, limits, DEFAULTS, covering) == Reuse(covering, "below_threshold")
