"""What of a message is in its digest, and what is not."""

from __future__ import annotations

from functools import partial

import pytest

from proxy.dialects.messages.canonical import instruction_digest, message_digest
from tests.support.conversations import Json
from tests.support.message_blocks import MARK, call, result, said, text, thought

user, model = partial(said, "user"), partial(said, "assistant")
REMINDER = "<system-reminder>be kind</system-reminder>"
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aaaa"}}
TOOL = {"type": "server_tool_use", "name": "x", "input": {}}

SAME: dict[str, tuple[Json, Json]] = {
    "a string and one block": ({"role": "user", "content": "hi"}, user("hi")),
    "a mark on a block": (user(text("hi", **MARK)), user("hi")),
    "a mark on a result": (user(result("a", "x", **MARK)), user(result("a", "x"))),
    "a mark in a result": (user(result("a", [text("x", **MARK)])), user(result("a", "x"))),
    "a mark on a call": (model(call("a") | MARK), model(call("a"))),
    "another id": (model(call("a")), model(call("b"))),
    "a result of another id": (user(result("a")), user(result("b"))),
    "thinking": (model(thought(), "x"), model("x")),
    "redacted thinking": (model({"type": "redacted_thinking", "data": "d"}, "x"), model("x")),
    "a signature": (model({**text("x"), "signature": "s"}), model("x")),
    "a caller": (model(call("a") | {"caller": {"type": "direct"}}), model(call("a"))),
    "nulls": (model(text("x", citations=None)), model("x")),
    "nulls further in": (user({**IMAGE, "title": {"a": None}}), user({**IMAGE, "title": {}})),
    "no content and null": ({"role": "user", "content": None}, {"role": "user"}),
    "key order of an input": (model(call("a", x=1, y=2)), model(call("a", y=2, x=1))),
    "the time in a result": (user(result("a", "at 10:42:07")), user(result("a", "at 10:43:11"))),
}
DIFFERENT: dict[str, tuple[Json, Json]] = {
    "one character": (user("port 8080"), user("port 8081")),
    "white space": (user("a  b"), user("a b")),
    "role": (user("x"), model("x")),
    "an instruction": ({"role": "system", "content": "x"}, user("x")),
    "the time in a user's words": (user("at 10:42:07"), user("at 10:43:11")),
    "where text is split": (user("ab", "c"), user("a", "bc")),
    "an empty block": (user("a", ""), user("a")),
    "order": (user("a", "b"), user("b", "a")),
    "a name": (model(call("a", "rm")), model(call("a", "ls"))),
    "an argument": (model(call("a", p="x")), model(call("a", p="y"))),
    "a null argument": (model(call("a", p=None)), model(call("a"))),
    "an argument that is called like an id": (model(call("a", id=1)), model(call("a", id=2))),
    "a big integer argument": (
        model(call("a", n=12345678901234567890123)),
        model(call("a", n=12345678901234567890124)),
    ),
    "whose tool": (model(call("a", "x")), model({**TOOL, "id": "a"})),
    "an error": (user(result("a", "x", is_error=True)), user(result("a", "x"))),
    "a result": (user(result("a", "x")), user(result("a", "y"))),
    "another block in a result": (user(result("a", [text("x"), IMAGE])), user(result("a", "x"))),
    "an image": (user(IMAGE), user({**IMAGE, "source": {**IMAGE["source"], "data": "bbbb"}})),  # type: ignore[dict-item]
    "an unknown field": (user(text("x", mood="good")), user("x")),
    "an unknown field of a message": ({**user("x"), "mood": "good"}, user("x")),
    "until when it holds": ({**user("x"), "clear_at": "next_user_message"}, user("x")),
    "an unknown block": (user({"type": "odd", "a": 1}), user({"type": "odd", "a": 2})),
    "content that is none": ({"role": "user", "content": 7}, {"role": "user", "content": 8}),
}


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME)
def test_what_means_the_same_has_the_same_digest(one: Json, other: Json) -> None:
    assert message_digest(one) == message_digest(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_what_differs_has_another_digest(one: Json, other: Json) -> None:
    assert message_digest(one) != message_digest(other)


def test_what_is_stored_is_found_by_later_versions() -> None:
    asked = user(result("toolu_1", "exit code 0", is_error=False), REMINDER, text("Go on.", **MARK))
    answer = model(thought(), "I look.", call("toolu_1", "read_file", path="a.py"))
    assert message_digest(asked).hex() == "e141acc199a658e5f763be63e6a2fa8a866954b0106e1755d32917ea3c0c1fdd"
    assert message_digest(answer).hex() == "d3c9d4c0cebabcf8910704fa3d568baec26c229a68b331f9a597bb040f3d042f"


def test_instructions_are_alike_but_for_digits() -> None:
    one, other = ({"role": "system", "content": f"{number} left"} for number in (9_120, 8_007))
    assert instruction_digest(one) == instruction_digest(other) != instruction_digest({**one, "content": "912 left"})
