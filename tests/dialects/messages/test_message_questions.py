"""Questions of ours to a model, and its answers."""

from __future__ import annotations

import json
from functools import partial

import pytest

from policies.decision.assemble import Injected
from policies.record.prompting import Prompt
from proxy.dialects import json_array
from proxy.dialects.messages import questions
from proxy.dialects.table import MESSAGES
from tests.support.conversations import Json
from tests.support.message_blocks import LONG_MARK, MARK, call, result, said, text, thought
from tests.support.strict_messages import blocks, defects, marks

user, model = partial(said, "user"), partial(said, "assistant")
HISTORY = [user("Fix it."), model(thought(), call("a")), user(result("a"))]
SYSTEM = {"role": "system", "content": "9 left"}
ENABLED = {"type": "enabled", "budget_tokens": 2_000}


def continued(messages: list[Json], limit: int = 500, **fields: object) -> Json:
    """A client's request that ends with a question of ours, as it is asked."""
    body = json.dumps({"model": "m", "max_tokens": 32_000, "stream": True, "messages": messages, **fields}).encode()
    parsed = json_array.parse(body, MESSAGES.array)
    assert parsed is not None
    asked = MESSAGES.rebuild(body, parsed, [*range(len(messages)), Injected("Sum it up.")], {})  # type: ignore[list-item]
    question = questions.continuation(asked, parsed.envelope.fields, ("max_tokens", limit))
    assert question is not None
    found: Json = json.loads(question)
    assert defects(found) == []
    return found


def sent(body: Json) -> list[Json]:
    messages = body["messages"]
    assert isinstance(messages, list)
    return messages


def test_a_question_has_nothing_that_a_model_might_refuse() -> None:
    body = json.loads(questions.ask("m", Prompt("Be brief.", "Sum it up."), ("max_tokens", 4_096), 0.3))
    messages = [{"role": "user", "content": "Sum it up."}]
    assert body == {"model": "m", "system": "Be brief.", "messages": messages, "max_tokens": 4_096}
    assert questions.HEADERS == ((b"anthropic-version", b"2023-06-01"),)


@pytest.mark.parametrize(("tokens", "room"), [(1, 4_096), (1_024, 4_096), (2_000, 8_000)])
def test_thought_counts_as_an_answer(tokens: int, room: int) -> None:
    assert questions.room(tokens) == room


def test_the_prompt_stays_and_what_is_not_for_us_goes() -> None:
    kept = {"system": "You code.", "thinking": ENABLED, "temperature": 1}
    kept |= {"tools": [{"name": "bash"}], "tool_choice": {"type": "none"}}
    gone = {"metadata": {"user_id": "u"}, "stop_sequences": ["x"], "service_tier": "auto"}
    body = continued(HISTORY, output_config={"effort": "low", "task_budget": {"total": 9}}, **kept, **gone)
    assert sent(body) == [*HISTORY, user("Sum it up.")]
    assert body == {
        "model": "m", "max_tokens": 2_500, "messages": sent(body), "output_config": {"effort": "low"}, **kept,
    }  # fmt: skip


@pytest.mark.parametrize(
    "form",
    [
        {"output_format": {"type": "json_schema"}},
        {"output_config": {"effort": "low", "format": {"type": "json_schema"}}},
        {"tool_choice": {"type": "any"}},
        {"tool_choice": {"type": "tool", "name": "bash"}},
    ],
)
def test_where_no_text_may_be_answered_nothing_is_asked_behind_the_prompt(form: Json) -> None:
    body = json.dumps({"model": "m", "messages": [user("x")], **form}).encode()
    assert questions.continuation(body, MESSAGES.array.envelope(body).fields, ("max_tokens", 5)) is None


@pytest.mark.parametrize("config", [None, 7, [], {}, {"effort": "low"}])
def test_what_says_nothing_of_an_answers_form_stays(config: object) -> None:
    assert continued(HISTORY, output_config=config)["output_config"] == config


def test_without_tools_nothing_is_said_of_them() -> None:
    assert "tool_choice" not in continued([user("x"), model("y")])


@pytest.mark.parametrize(
    ("thinking", "most", "limit"),
    [
        (None, 32_000, 500),
        ({"type": "adaptive"}, 32_000, 500),
        (ENABLED, 32_000, 2_500),
        (ENABLED, 2_100, 2_100),
        (ENABLED, None, 2_001),
    ],
)
def test_a_limit_exceeds_what_may_be_thought(thinking: object, most: object, limit: int) -> None:
    assert continued(HISTORY, thinking=thinking, max_tokens=most)["max_tokens"] == limit


@pytest.mark.parametrize(
    ("messages", "beside", "is_marked"),
    [
        ([user("x")], {}, False),
        ([user(text("x", **MARK))], {}, True),
        ([user("x")], {"system": [text("x", **MARK)]}, True),
        ([user(text("x", **MARK))], {"system": [text("x", **MARK), text("y", **MARK)]}, True),
        ([user(text("x", **MARK))], {"system": [text("x", **MARK)] * 3}, False),
        ([user(text("x", **LONG_MARK))], {}, True),
        ([user("x")], MARK, False),
        ([user("x"), {**said("system", text("y", **LONG_MARK))}], {}, True),
    ],
)
def test_one_mark_is_set_where_the_client_sets_any_and_there_is_room(
    messages: list[Json], beside: Json, is_marked: bool
) -> None:
    body = continued(messages, **beside)
    question = blocks(sent(body)[-1])[-1]
    assert question["text"] == "Sum it up."
    assert ("cache_control" in question) is is_marked
    before = marks({"messages": [message for message in messages if message["role"] != "system"], **beside})
    assert len(marks(body)) == len(before) + is_marked


def test_a_question_has_the_last_word_behind_instructions_which_only_an_answer_may_follow() -> None:
    rules = said("system", text("Answer in JSON."), {"type": "tool_removal", "tool": {"name": "x"}})
    body = continued([*HISTORY, SYSTEM, rules])
    assert sent(body) == [*HISTORY, user(text("9 left"), text("Answer in JSON."), text("Sum it up."))]


def test_half_of_an_emoji_is_asked_about_in_the_clients_bytes() -> None:
    asked = rb'{"role":"user","content":"\ud83d"},{"role":"user","content":[{"type":"text","text":"?"}]}'
    body = b'{"model":"m","messages":[' + asked + b"]}"
    fields = MESSAGES.array.envelope(b"{}").fields
    assert rb'"content":"\ud83d"' in (questions.continuation(body, fields, ("max_tokens", 5)) or b"")


def answer(*content: Json, **fields: object) -> bytes:
    return json.dumps({"type": "message", "role": "assistant", "content": content, **fields}).encode()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (answer(text("Fine."), stop_reason="end_turn"), ("Fine.", "stop", False)),
        (answer(thought("hm"), text("Fi"), text("ne."), stop_reason="stop_sequence"), ("Fine.", "stop", False)),
        (answer(text("Fi"), stop_reason="max_tokens"), ("Fi", "length", False)),
        (answer(stop_reason="refusal"), ("", "refusal", False)),
        (answer(text("x"), call("a"), stop_reason="tool_use"), ("x", "tool_use", True)),
        (answer(text("x"), call("a")), ("x", None, True)),
    ],
)
def test_an_answer_is_its_texts_and_why_it_ended(body: bytes, expected: tuple[object, ...]) -> None:
    found = questions.read(body)
    assert found is not None
    assert (found.text, found.finish_reason, found.tool_calls) == expected


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b'{"type":"error","error":{"message":"no"}}', b'{"content":"x"}']
)
def test_what_is_no_answer_is_none(body: bytes) -> None:
    assert questions.read(body) is None
