"""What of a chat message is in its digest, and what is not."""

from __future__ import annotations

import pytest

from proxy.dialects.chat.canonical import message_digest
from tests.support.conversations import Json, assistant, user

SAME = {
    "a string and one text part": (user("hi"), {"role": "user", "content": [{"type": "text", "text": "hi"}]}),
    "cache_control on a part": (
        {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
        user("hi"),
    ),
    "reasoning dropped from an old turn": (
        {"role": "assistant", "content": "x", "reasoning_content": "because"},
        assistant("x"),
    ),
    "a thinking part": (
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "x"}]},
        assistant("x"),
    ),
    "null content and none": ({"role": "assistant", "content": None}, {"role": "assistant"}),
    "empty content and null": ({"role": "assistant", "content": ""}, {"role": "assistant", "content": None}),
    "formatting and key order of arguments": (
        assistant(None, "a", arguments='{"b": 1, "a": [1, 2]}'),
        assistant(None, "a", arguments='{"a":[1,2],"b":1}'),
    ),
    "another id": (assistant(None, "a"), assistant(None, "b")),
}

DIFFERENT = {
    "one character": (user("port 8080"), user("port 8081")),
    "case": (user("Never"), user("never")),
    "white space": (user("a  b"), user("a b")),
    "unicode form": (user("é"), user("e\u0301")),
    "role": (user("x"), assistant("x")),
    "name": (user("x"), {**user("x"), "name": "eve"}),
    "tool name": (assistant(None, "a", name="rm"), assistant(None, "a", name="ls")),
    "an argument": (assistant(None, "a", arguments='{"p":"x"}'), assistant(None, "a", arguments='{"p":"y"}')),
    "a big integer argument": (
        assistant(None, "a", arguments='{"n":12345678901234567890123}'),
        assistant(None, "a", arguments='{"n":12345678901234567890124}'),
    ),
    "arguments that do not parse": (assistant(None, "a", arguments="{"), assistant(None, "a", arguments="{{")),
    "where text is split": (
        {"role": "user", "content": [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "bc"}]},
    ),
    "an image": (
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:a"}}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:b"}}]},
    ),
    "a refusal": ({"role": "assistant", "refusal": "no"}, {"role": "assistant", "refusal": "never"}),
}


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME.keys())
def test_what_means_the_same_has_the_same_digest(one: Json, other: Json) -> None:
    assert message_digest(one) == message_digest(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_what_differs_has_another_digest(one: Json, other: Json) -> None:
    assert message_digest(one) != message_digest(other)


@pytest.mark.parametrize("kind", [["text"], {"a": 1}, None, 7])
def test_a_part_of_no_known_type_is_digested_too(kind: object) -> None:
    assert message_digest({"role": "user", "content": [{"type": kind, "text": "x"}]}) != message_digest(user("x"))
