"""One message: what is counted of it, what links it to others, its text for a transcript, and a shorter copy."""

from __future__ import annotations

import base64
import json
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.conversation.message import Call, Role
from policies.conversation.transcript import ToolCall
from proxy.dialects.blocks import CALL_OVERHEAD
from proxy.dialects.chat.messages import MESSAGE_OVERHEAD
from proxy.dialects.table import CHAT
from tests.support.conversations import ANYTHING, Json, assistant, count, tool, user

describe = CHAT.items.describe
shorten = CHAT.items.shorten
utterances = CHAT.items.utterances
with_texts = CHAT.items.with_texts

LONG = "word " * 400
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + struct.pack(">II", 512, 512)).decode()
ODD = {"type": "tool_result", "content": "x" * 40}
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


def tokens(message: object) -> int:
    described = describe(message, count)
    assert described is not None
    return described.tokens - MESSAGE_OVERHEAD


def call(**function: object) -> Json:
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", **function}]}


@pytest.mark.requirement("R1 4.3 count", "R3 4.1 tokens", "R3 7.1 four")
@pytest.mark.parametrize(
    ("message", "expected", "reason"),
    [
        (user("x" * 40), 10, "text by the tokenizer"),
        ({"role": "user"}, 0, "nothing said"),
        ({"role": "user", "content": None}, 0, "null"),
        ({"role": "user", "content": ["x" * 40, "x" * 40]}, 20, "texts as strings in a list"),
        ({"role": "user", "content": [{"type": "text", "text": "x" * 40}]}, 10, "text parts"),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "x" * 40}]}, 10, "refusal parts"),
        ({"role": "assistant", "content": [{"type": "thinking", "thinking": "x" * 40}]}, 10, "thinking parts"),
        ({"role": "assistant", "content": None, "refusal": "x" * 40}, 10, "a refusal beside the content"),
        ({"role": "assistant", "content": "", "reasoning_content": "x" * 40}, 10, "reasoning that is sent back"),
        ({"role": "user", "name": "x" * 8, "content": "x" * 40}, 12, "names"),
        (call(function={"name": "bash", "arguments": "x" * 40}), CALL_OVERHEAD + 11, "name and arguments of a call"),
        (call(function={"name": "bash", "arguments": {"a": "x" * 34}}), CALL_OVERHEAD + 12, "arguments as an object"),
        (call(custom={"name": "edit", "input": "x" * 40}), CALL_OVERHEAD + 11, "custom tools"),
        (call(), CALL_OVERHEAD, "a call without anything"),
        (call(function="bash"), CALL_OVERHEAD, "a call of a wrong shape"),
        ({"role": "assistant", "tool_calls": ["x", None]}, 2 * CALL_OVERHEAD, "calls of a wrong shape"),
        ({"role": "assistant", "tool_calls": "bash"}, 0, "calls that are no list"),
        (
            {"role": "assistant", "function_call": {"name": "bash", "arguments": "x" * 40}},
            CALL_OVERHEAD + 11,
            "the legacy function call",
        ),
        ({"role": "function", "name": "bash", "content": "x" * 40}, 11, "the legacy result"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a/b", "detail": "low"}}]},
            85,
            "an image in low detail",
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": f"data:image/png;base64,{PNG}"}]},
            85 + 170,
            "an image whose size its own bytes tell, one tile",
        ),
        ({"role": "user", "content": [{"type": "image_url"}]}, 1105, "an image that says nothing is a screenshot"),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "x" * 16_000}}]}, 30, "audio"),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": 1}]}, 600, "audio that cannot be seen"),
        ({"role": "assistant", "content": None, "audio": {"id": "a"}}, 300, "an answer in audio, by its id"),
        ({"role": "assistant", "content": "", "reasoning": "x" * 40}, 10, "reasoning, as others call it"),
        (
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": "x" * 40,
                "thinking_blocks": [{"type": "thinking", "thinking": "x" * 48, "signature": "s"}, 1],
            },
            12,
            "the same thinking in two fields, once",
        ),
        (
            {"role": "assistant", "content": "", "reasoning_details": [{"data": "x" * 50}, {"summary": "x" * 40}]},
            20,
            "encrypted reasoning and its summary",
        ),
        ({"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}, 4_000, "a file"),
        ({"role": "user", "content": [ODD]}, 19, "an unknown part is not free"),
        (
            {"role": "user", "content": [{"type": "text", "text": {"value": "x" * 40}}]},
            19,
            "nor is text of a new shape",
        ),
        ({"role": "user", "content": [17, None, ["x"]]}, 0, "parts that no server takes"),
        ({"role": "user", "content": {"text": "x" * 40}}, 10, "a part without a list"),
    ],
)
def test_a_message_weighs_what_is_sent_of_it(message: Json, expected: int, reason: str) -> None:
    assert tokens(message) == expected, reason


@pytest.mark.parametrize(
    ("role", "seen"),
    [
        ("system", "system"),
        ("developer", "developer"),
        ("user", "user"),
        ("assistant", "assistant"),
        ("tool", "tool"),
        ("function", "tool"),
        ("critic", "user"),
        ("", "user"),
        (None, "user"),
    ],
)
def test_an_unknown_role_is_treated_as_a_users_which_is_never_dropped(role: str | None, seen: Role) -> None:
    described = describe({"role": role, "content": "x"}, count)
    assert described is not None
    assert described.role == seen


@pytest.mark.parametrize(
    "message",
    [
        None,
        1,
        "text",
        ["role", "user"],
        {"role": ["user"], "content": "x"},
        {"role": {"is": "user"}},
        {"role": 1},
        {"role": "user", "content": [{"type": ["text"], "text": "x"}]},
        {"role": "user", "content": [{"type": {}}]},
        {"role": "user", "content": {"type": []}},
    ],
)
def test_what_is_no_message_is_left_to_the_upstream(message: object) -> None:
    assert describe(message, count) is None


@given(ANYTHING)
def test_no_value_breaks_the_description_of_a_message(value: object) -> None:
    for message in (value, {"role": "assistant", "content": value, "tool_calls": value, "function_call": value}):
        described = describe(message, count)
        assert described is None or described.tokens >= MESSAGE_OVERHEAD
        if described is not None:
            assert {said.role for said in utterances(message, 0, ())} == {described.role}
            assert describe(msgspec.json.decode(shorten(msgspec.json.encode(message), 0.1)), count) is not None
            assert describe(msgspec.json.decode(with_texts(msgspec.json.encode(message), ["short"])), count) is not None


def test_calls_and_results_are_linked_by_id_and_by_name_where_there_is_none() -> None:
    calling = describe(assistant(None, "a", "b"), count)
    answering = describe(tool("b"), count)
    legacy = describe({"role": "assistant", "function_call": {"name": "bash", "arguments": "{}"}}, count)
    result = describe({"role": "function", "name": "bash", "content": "ok"}, count)
    assert calling
    assert answering
    assert legacy
    assert result
    assert (calling.calls, answering.results) == ((Call("a", "bash"), Call("b", "bash")), ("b",))
    assert [call.id for call in legacy.calls] == [*result.results]


def test_ids_that_carry_a_whole_signature_are_remembered_by_their_hash() -> None:
    long = "call_" + "s" * 5_000
    calling, answering = describe(assistant(None, long), count), describe(tool(long), count)
    assert calling
    assert answering
    [call] = calling.calls
    assert [call.id] == [*answering.results]
    assert (len(call.id), call.tool) == (64, "bash")


@pytest.mark.parametrize(
    ("message", "signed"),
    [
        (assistant("plain"), False),
        ({**assistant("x"), "reasoning_content": "because"}, True),
        ({**assistant("x"), "reasoning_content": ""}, False),
        ({"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}, True),
        ({"role": "assistant", "content": [{"type": "text", "text": "x", "signature": "s"}]}, True),
        ({**assistant("x"), "provider_specific_fields": {"thought_signature": "s"}}, True),
    ],
)
def test_reasoning_that_a_provider_may_verify_is_noticed(message: Json, signed: bool) -> None:
    described = describe(message, count)
    assert described is not None
    assert described.signed == ("sealed" if signed else "none")


@pytest.mark.requirement("R0 5.1")
def test_a_transcript_has_text_and_calls_and_names_media_without_showing_them() -> None:
    parts = [
        {"type": "thinking", "thinking": "secret"},
        {"type": "text", "text": "see"},
        "this",
        {"type": "image_url", "image_url": {"url": "data:…"}},
    ]
    (said,) = utterances({**assistant(None, "c1"), "content": parts, "refusal": "no"}, 3, ())
    assert (said.position, said.text) == (3, "see\nthis\n[image_url]\nno")
    assert said.calls == (ToolCall("bash", "{}", "c1"),)
    assert [(said.tool, said.answers) for said in utterances(tool("c1", "done"), 4, ["bash"])] == [("bash", "c1")]
    assert [(said.tool, said.answers) for said in utterances(user("hi"), 4, ["bash"])] == [(None, None)]


def test_calls_keep_their_names_when_one_between_them_is_broken() -> None:
    message = assistant(None, "a", "b")
    calls = message["tool_calls"]
    assert isinstance(calls, list)
    calls[1]["function"]["name"] = "grep"
    calls.insert(1, "broken")
    described = describe(message, count)
    assert described is not None
    assert described.calls == (Call("a", "bash"), Call("", ""), Call("b", "grep"))


def short(message: object) -> Json:
    decoded: Json = json.loads(shorten(json.dumps(message).encode(), 0.1))
    return decoded


@pytest.mark.parametrize(
    "message",
    [
        user(LONG),
        {"role": "user", "content": [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": [LONG]},
        tool("c1", LONG),
        assistant(LONG, "c1"),
        assistant(None, "c1", arguments=json.dumps({"path": "a.py", "text": LONG})),
        call(custom={"name": "edit", "input": LONG}),
        {"role": "assistant", "function_call": {"name": "bash", "arguments": json.dumps({"text": LONG})}},
    ],
)
def test_a_shortened_message_is_a_tenth_and_keeps_all_that_links_it(message: Json) -> None:
    before, after = describe(message, count), describe(short(message), count)
    assert before
    assert after
    assert after.tokens < before.tokens / 4
    assert (after.role, after.calls, after.results) == (before.role, before.calls, before.results)


@pytest.mark.requirement("R1 4.3 shorten")
def test_shortened_arguments_are_still_json_and_keep_what_is_no_long_text() -> None:
    arguments = {"path": "a.py", "line": 3, "deep": {"x": [1]}, "text": LONG}
    shorter = short(assistant(None, "c1", arguments=json.dumps(arguments)))
    [made] = shorter["tool_calls"]  # type: ignore[misc, attr-defined]
    decoded = json.loads(made["function"]["arguments"])  # type: ignore[has-type]
    assert {key: decoded[key] for key in ("path", "line", "deep")} == {"path": "a.py", "line": 3, "deep": {"x": [1]}}
    assert len(decoded["text"]) < len(LONG) / 4


@pytest.mark.parametrize("arguments", ["not json", "[1, 2]", '"text"', "", "{"])
def test_arguments_that_are_no_object_stay_as_they_are(arguments: str) -> None:
    message = assistant(None, "c1", arguments=arguments)
    assert short(message) == message


def test_media_become_a_note() -> None:
    content = [{"type": "image_url", "image_url": {"url": "data:…"}}, {"type": "other", "data": "x"}]
    assert short({"role": "user", "content": content})["content"] == [
        {"type": "text", "text": "[image_url left out]"},
        {"type": "other", "data": "x"},
    ]


_MARK = {"cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("long " * 100, "short"),
        ([{"type": "text", "text": "long " * 100}], [{"type": "text", "text": "short"}]),
        ([{"type": "text", "text": "long " * 100, **_MARK}], [{"type": "text", "text": "short", **_MARK}]),
    ],
)
def test_only_the_text_of_a_message_changes_and_its_form_and_mark_stay(content: object, expected: object) -> None:
    message = {"x": 1, **tool("c1"), "content": content, "name": "bash"}
    changed = json.loads(with_texts(json.dumps(message).encode(), ["short"]))
    assert list(changed) == list(message)
    assert {**changed, "content": content} == message
    assert changed["content"] == expected


@pytest.mark.requirement("R2 Format thinking")
@pytest.mark.parametrize(
    ("fields", "reasoning"),
    [
        ({"reasoning_content": "because"}, "because"),
        ({"reasoning": "because"}, "because"),
        ({"content": [{"type": "thinking", "thinking": "because", "signature": "s"}, "so"]}, "because"),
        ({"content": "so"}, ""),
        ({"reasoning_content": 7}, ""),
    ],
)
def test_what_a_model_thought_is_told_apart_from_what_it_said(fields: Json, reasoning: str) -> None:
    (said,) = utterances({"role": "assistant", "content": "so", **fields}, 0, ())
    assert (said.text, said.reasoning) == ("so", reasoning)
