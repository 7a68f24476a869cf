"""What a request for a response says beside its items, and the requests that are ours."""

from __future__ import annotations

import json

import pytest

from policies.record.prompting import Prompt
from proxy.dialects import json_array
from proxy.dialects.base import RequestSettings
from proxy.dialects.responses import questions
from proxy.dialects.table import RESPONSES
from tests.support.conversations import Json
from tests.support.strict_responses import defects

GO: Json = {"role": "user", "content": "go"}


def body_of(**fields: object) -> bytes:
    return json.dumps({"model": "gpt-5", "input": [GO], **fields}).encode()


def parsed(body: bytes) -> json_array.Parsed:
    found = json_array.parse(body, RESPONSES.array)
    assert found is not None
    return found


def settings(**fields: object) -> RequestSettings:
    return RESPONSES.settings(parsed(body_of(**fields)).envelope.fields)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ("gpt-5", False, None)),
        ({"model": ["gpt-5"]}, ("", False, None)),
        ({"stream": True, "max_output_tokens": 7}, ("gpt-5", True, 7)),
        ({"stream": "true", "max_output_tokens": "7"}, ("gpt-5", False, None)),
        ({"max_tokens": 7, "max_output_tokens": 0}, ("gpt-5", False, None)),
    ],
)
def test_wrong_types_are_taken_as_absent(fields: Json, expected: tuple[str, bool, int | None]) -> None:
    found = settings(**fields)
    assert (found.model, found.stream, found.max_output) == expected
    assert (found.output_key, found.least_output, found.usage_fields) == ("max_output_tokens", 16, {})
    assert (found.order.thinking, found.order.instructions) == ("free", "before")


@pytest.mark.parametrize(
    ("fields", "passthrough", "reactive"),
    [
        ({"store": True, "background": True, "truncation": "auto", "prompt": {"id": "p"}}, None, None),
        ({"previous_response_id": "resp_1"}, "previous_response_id", None),
        ({"previous_response_id": None, "conversation": None}, None, None),
        ({"conversation": "conv_1"}, "conversation", None),
        ({"conversation": {"id": "conv_1"}}, "conversation", None),
        ({"conversation": "c", "previous_response_id": "r"}, "previous_response_id", None),
        ({"context_management": [{"type": "compaction", "compact_threshold": 9}]}, None, "provider_context_management"),
        ({"context_management": [{"type": "other"}]}, None, None),
        ({"context_management": {"type": "compaction"}}, None, None),
        ({"context_management": []}, None, None),
    ],
)
def test_what_lies_with_the_provider_is_left_to_it(fields: Json, passthrough: str | None, reactive: str | None) -> None:
    found = settings(**fields)
    assert (found.passthrough, found.reactive) == (passthrough, reactive)
    assert found.is_partial == (passthrough is not None or reactive is not None or "prompt" in fields)


@pytest.mark.parametrize(
    ("fields", "label"),
    [
        ({"prompt_cache_key": "k", "metadata": {"session_id": "s"}}, "k"),
        ({"metadata": {"session_id": "s", "user_id": "u"}}, "s"),
        ({"metadata": {"user_id": "u"}}, "u"),
        ({"prompt_cache_key": 7}, ""),
    ],
)
def test_a_session_is_called_what_the_client_calls_it(fields: Json, label: str) -> None:
    assert settings(**fields).label == label


def test_instructions_tools_and_formats_are_sent_to_the_model() -> None:
    found = settings(instructions="Be brief.", tools=[{"type": "web_search"}], text={"format": {"type": "text"}})
    assert [json.loads(bytes(raw)) for raw in found.definitions] == [
        "Be brief.",
        [{"type": "web_search"}],
        {"format": {"type": "text"}},
    ]


@pytest.mark.parametrize("given", ["", None, {}, 7, []])
def test_what_is_no_array_is_relayed(given: object) -> None:
    assert json_array.parse(body_of(input=given), RESPONSES.array) is None


@pytest.mark.parametrize("temperature", [None, 0.2])
def test_a_question_is_one_users_item_and_nothing_of_it_is_kept(temperature: float | None) -> None:
    asked = json.loads(questions.ask("m", Prompt("Be brief.", "Sum it up."), ("max_output_tokens", 400), temperature))
    assert defects(asked) == []
    assert asked.pop("input") == [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Sum it up."}]}
    ]
    expected = {"model": "m", "instructions": "Be brief.", "max_output_tokens": 400, "store": False}
    assert asked == expected | ({} if temperature is None else {"temperature": temperature})


def test_thought_has_room_beside_the_answer() -> None:
    assert (questions.room(1), questions.room(500)) == (16, 2_000)


def test_a_clients_request_made_ours_keeps_its_prompt_and_its_place_in_the_cache() -> None:
    kept: Json = {
        "instructions": "x",
        "tools": [{"type": "function", "name": "f"}],
        "prompt_cache_key": "k",
        "reasoning": {},
    }
    kept["text"] = {"verbosity": "low"}
    theirs: Json = {"stream": True, "include": [], "background": True, "truncation": "auto", "store": True}
    body = body_of(**kept, **theirs, context_management=[], max_output_tokens=9, tool_choice="auto")
    fields = parsed(body).envelope.fields
    ours = {"max_output_tokens": 400, "store": False, "tool_choice": "none"}
    assert json.loads(questions.continuation(body, fields, ("max_output_tokens", 400)) or b"") == {
        "model": "gpt-5", "input": [GO], **kept, **ours
    }  # fmt: skip
    without = questions.continuation(body_of(), parsed(body_of()).envelope.fields, ("max_output_tokens", 400), 0.2)
    asked = json.loads(without or b"")
    assert ("tool_choice" in asked, asked["temperature"]) == (False, 0.2)


def test_what_was_asked_for_with_a_schema_is_not_asked_for_without() -> None:
    body = body_of(text={"format": {"type": "json_schema", "name": "x", "schema": {}}})
    assert questions.continuation(body, parsed(body).envelope.fields, ("max_output_tokens", 400)) is None
