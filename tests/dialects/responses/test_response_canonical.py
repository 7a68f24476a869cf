"""What of an item is in its digest, and what is not."""

from __future__ import annotations

import pytest

from proxy.dialects.responses.canonical import item_digest
from proxy.dialects.responses.kinds import kind_of
from tests.support.conversations import Json

MARK = {"prompt_cache_breakpoint": {"mode": "explicit"}}


def digest(item: Json) -> bytes:
    return item_digest(item, kind_of(item))


def said(content: object, role: str = "user", **fields: object) -> Json:
    return {"role": role, "content": content, **fields}


def call(arguments: object = "{}", name: str = "bash", **fields: object) -> Json:
    return {"type": "function_call", "call_id": "c", "name": name, "arguments": arguments, **fields}


def result(output: object, kind: str = "function_call_output", **fields: object) -> Json:
    return {"type": kind, "call_id": "c", "output": output, **fields}


SAME = {
    "a string and one text part": (said("hi"), said([{"type": "input_text", "text": "hi"}])),
    "with and without a type": (said("hi"), said("hi", type="message")),
    "ids and status": (said("x", "assistant"), said("x", "assistant", id="msg_1", status="completed")),
    "a cache's mark on a part": (said("hi"), said([{"type": "input_text", "text": "hi", **MARK}])),
    "a cache's mark on an item": (said("hi"), said("hi", cache_control={"type": "ephemeral"})),
    "what a server adds to a text, empty": (
        said("x", "assistant"),
        said([{"type": "output_text", "text": "x", "annotations": [], "logprobs": []}], "assistant"),
    ),
    "nulls": (said("hi"), said("hi", phase=None)),
    "nulls further in": (
        {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"], "timeout_ms": None}},
        {"type": "shell_call", "call_id": "d", "action": {"commands": ["ls"]}},
    ),
    "formatting and key order of arguments": (call('{"b": 1, "a": [1, 2]}'), call('{"a":[1,2],"b":1}')),
    "another id of a call": (call(), {**call(), "call_id": "d", "id": "fc_1"}),
    "a result as a string and as a list": (result("ok"), result([{"type": "input_text", "text": "ok"}])),
    "the time in a result": (result("at 2024-05-06 07:08:09Z"), result("at 2025-06-07 08:09:10Z")),
    "all of a thought": (
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
        {"type": "reasoning", "id": "rs_2", "summary": [{"type": "summary_text", "text": "because"}]},
    ),
}

DIFFERENT = {
    "one character": (said("port 8080"), said("port 8081")),
    "white space": (said("a  b"), said("a b")),
    "role": (said("x"), said("x", "assistant")),
    "phase": (said("x", "assistant", phase="commentary"), said("x", "assistant", phase="final_answer")),
    "the time that a user says": (said("at 2024-05-06 07:08:09Z"), said("at 2025-06-07 08:09:10Z")),
    "name of a tool": (call(name="rm"), call(name="ls")),
    "its namespace": (call(namespace="a"), call(namespace="b")),
    "an argument": (call('{"p":"x"}'), call('{"p":"y"}')),
    "an argument that is named like an id": (call('{"id":"x"}'), call('{"id":"y"}')),
    "arguments that do not parse": (call("{"), call("{{")),
    "the input of a custom tool": (
        {"type": "custom_tool_call", "call_id": "c", "name": "edit", "input": "a"},
        {"type": "custom_tool_call", "call_id": "c", "name": "edit", "input": "b"},
    ),
    "type of a call": (call(), {**call(), "type": "custom_tool_call"}),
    "where text is split": (
        said([{"type": "input_text", "text": "ab"}, {"type": "input_text", "text": "c"}]),
        said([{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "bc"}]),
    ),
    "an image": (
        said([{"type": "input_image", "image_url": "data:a"}]),
        said([{"type": "input_image", "image_url": "data:b"}]),
    ),
    "a file at the provider": (
        said([{"type": "input_file", "file_id": "a"}]),
        said([{"type": "input_file", "file_id": "b"}]),
    ),
    "what a citation names": (
        said([{"type": "output_text", "text": "x", "annotations": [{"url": "a"}]}], "assistant"),
        said([{"type": "output_text", "text": "x", "annotations": [{"url": "b"}]}], "assistant"),
    ),
    "a shell's environment": (
        {"type": "local_shell_call", "action": {"env": {"id": "a"}}},
        {"type": "local_shell_call", "action": {"env": {"id": "b"}}},
    ),
    "an unknown field": (said("x", tone="low"), said("x", tone="high")),
    "an unknown type": ({"type": "new", "x": 1}, {"type": "newer", "x": 1}),
    "what is referred to": ({"type": "item_reference", "id": "a"}, {"type": "item_reference", "id": "b"}),
    "a provider's compaction": (
        {"type": "compaction", "encrypted_content": "a"},
        {"type": "compaction", "encrypted_content": "b"},
    ),
    "content that is no content": (said(7), said(8)),
}
# Under these, records lie in stores.
PINNED = {
    "a user's words": (said("Fix the build."), "7d04f92b5f83742285217f68ac5c505111400419b2300f2252f1b77791940b5e"),
    "a call": (call('{"path": "a.py"}'), "ea0e96149da9b123bcb6debc295ff37de4cba66c734578a175fb5be00d96e4b0"),
    "its result": (result("ok"), "4239ecff1dcd5d85ad84172ca2b90c5d98df21435fbe3ef2e8b3d7e327af6f9c"),
}


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME.keys())
def test_what_means_the_same_has_the_same_digest(one: Json, other: Json) -> None:
    assert digest(one) == digest(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_what_differs_has_another_digest(one: Json, other: Json) -> None:
    assert digest(one) != digest(other)


@pytest.mark.parametrize(("item", "expected"), PINNED.values(), ids=PINNED.keys())
def test_digests_never_change_or_stored_records_are_lost(item: Json, expected: str) -> None:
    assert digest(item).hex() == expected
