"""The judge of the other tests finds every defect that it is there for."""

from __future__ import annotations

from copy import deepcopy
from functools import partial

import pytest

from tests.support.conversations import Json
from tests.support.message_blocks import LONG_MARK, MARK, call, result, said, text, thought
from tests.support.strict_messages import Signer, defects

ENABLED = {"thinking": {"type": "enabled", "budget_tokens": 1_024}}
user, model = partial(said, "user"), partial(said, "assistant")
SYSTEM = {"role": "system", "content": "Be brief."}
SEARCH = {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srv", "content": []}
TAKEN = {
    "a talk": [user("a"), model("b"), user("c")],
    "users in a row": [user("a"), user("b"), model("c"), user("d")],
    "results first": [user("a"), model(call("1"), call("2")), user(result("2"), result("1"), "go on")],
    "results in two messages": [user("a"), model(call("1"), call("2")), user(result("1")), user(result("2"))],
    "a server's tool": [user("a"), model(SEARCH, FOUND, "b"), user("c")],
    "a paused answer": [user("a"), model(SEARCH), model(FOUND, "b"), user("c")],
    "a result that comes late": [user("a"), model(SEARCH, call("1")), user(result("1")), model(FOUND), user("c")],
    "an instruction behind results": [user("a"), model(call("1")), user(result("1")), SYSTEM, model("b")],
    "instructions at the end": [user("a"), SYSTEM, SYSTEM],
    "content as a string": [{"role": "user", "content": "a"}],
}
REFUSED = {
    "at least one message": [],
    "first message must use the user role": [model("a"), user("b")],
    "`tool_result` blocks must come first": [user("a"), model(call("1")), user("no", result("1"))],
    "`tool_use` ids were found without `tool_result`": [user("a"), model(call("1")), user("b"), model("c")],
    "without `tool_result` blocks immediately after: 1": [user("a"), model(call("1"))],
    "immediately after: 2": [user("a"), model(call("1"), call("2")), user(result("1"))],
    "unexpected `tool_use_id` found in `tool_result`": [user("a"), model("b"), user(result("1"))],
    "unexpected `tool_use_id`": [user(result("1"))],
    "found in `web_search_tool_result` blocks": [user("a"), model(FOUND)],
    "non-empty content": [user("a"), model(), user("b")],
    "text content blocks must be non-empty": [user("")],
    "messages.2.content.0: text content": [user("a"), model(call("1")), user(result("1", [text("")]))],
    "role 'system' must follow a user": [user("a"), model("b"), SYSTEM, user("c")],
    "messages.0: role 'system' must follow a user": [SYSTEM, user("a")],
    "must come before an assistant": [user("a"), SYSTEM, user("b")],
    "messages.2: role 'system'": [user("a"), model(call("1")), SYSTEM, user(result("1"))],
}


@pytest.mark.parametrize("messages", TAKEN.values(), ids=TAKEN)
def test_what_the_provider_takes_has_no_defect(messages: list[Json]) -> None:
    assert defects({"messages": messages}) == []


@pytest.mark.parametrize(("words", "messages"), REFUSED.items(), ids=REFUSED)
def test_every_defect_is_found(words: str, messages: list[Json]) -> None:
    assert any(words in found for found in defects({"messages": messages})), defects({"messages": messages})


def test_roles_take_turns_where_a_server_wants_it() -> None:
    body: Json = {"messages": TAKEN["users in a row"]}
    assert any("alternate" in found for found in defects(body, alternating=True))
    assert defects({"messages": TAKEN["a talk"]}, alternating=True) == []


@pytest.mark.parametrize(
    ("messages", "is_taken"),
    [
        ([user("a"), model(thought(), call("1")), user(result("1"))], True),
        ([user("a"), model(call("1")), user(result("1"))], False),
        ([user("a"), model(thought(), call("1")), user(result("1")), model(call("2")), user(result("2"))], True),
        ([user("a"), model(call("1")), user(result("1")), model("b"), user("c")], True),
        ([user("a"), model(call("1")), user(result("1"), "now stop")], True),
    ],
)
def test_the_last_tool_loop_begins_with_thinking_where_it_is_enabled(messages: list[Json], is_taken: bool) -> None:
    assert (defects({"messages": messages, **ENABLED}) == []) is is_taken
    assert defects({"messages": messages}) == []


MARKED_HEAD = {"system": [text("x", **MARK)], "tools": [{"name": "t"} | MARK]}


@pytest.mark.parametrize(
    ("beside", "marks", "words"),
    [
        ({}, [MARK] * 4, ""),
        ({}, [MARK] * 5, "maximum of 4"),
        (MARK, [MARK] * 4, "maximum of 4"),
        (MARKED_HEAD, [MARK] * 3, "maximum of 4"),
        ({}, [LONG_MARK, MARK], ""),
        ({}, [MARK, LONG_MARK], "must not come after"),
        ({"system": [text("x", **MARK)]}, [LONG_MARK], "must not come after"),
    ],
)
def test_marks_are_few_and_the_lasting_ones_come_first(beside: Json, marks: list[Json], words: str) -> None:
    found = defects({"messages": [user(*(text("x", **mark) for mark in marks))], **beside})
    assert (words in "".join(found)) if words else found == []


def thinking_session() -> tuple[Signer, Json]:
    """Three rounds, each signed over all before it."""
    signer, body = Signer(), Json(system="You code.", tools=[], messages=[user("Fix it.")])
    for number in range(3):
        signed = signer.sign(body, f"thought {number}")
        messages = body["messages"]
        assert isinstance(messages, list)
        messages += [model(signed, call(str(number))), user(result(str(number)))]
    return signer, body


def without(body: Json, *numbers: int) -> Json:
    """The body without some of its thoughts."""
    changed = deepcopy(body)
    for number in numbers:
        changed["messages"][1 + 2 * number]["content"].pop(0)  # type: ignore[index]
    return changed


def test_thinking_holds_behind_what_it_was_signed_over() -> None:
    signer, body = thinking_session()
    assert signer.refused(body) == []
    marked = deepcopy(body)
    marked["messages"][0]["content"][0] |= MARK  # type: ignore[index]
    assert signer.refused(marked) == []


@pytest.mark.parametrize("path", [("system",), ("tools",), ("messages", 0, "content"), ("messages", 2, "content")])
def test_thinking_behind_a_changed_byte_is_refused(path: tuple[str | int, ...]) -> None:
    signer, body = thinking_session()
    *way, last = path
    place: Json = body
    for step in way:
        place = place[step]  # type: ignore[assignment, index]
    place[last] = [text("another")]  # type: ignore[index]
    assert any("bound to a different conversation" in found for found in signer.refused(body))


@pytest.mark.parametrize(
    ("numbers", "is_taken"),
    [((0,), True), ((0, 1), True), ((0, 1, 2), True), ((1,), False), ((0, 2), True), ((2,), True)],
)
def test_thoughts_leave_as_a_run_from_the_first(numbers: tuple[int, ...], is_taken: bool) -> None:
    signer, body = thinking_session()
    assert (signer.refused(without(body, *numbers)) == []) is is_taken


def test_a_thought_that_has_left_may_not_come_back() -> None:
    signer, body = thinking_session()
    assert signer.refused(without(body, 0)) == []
    assert signer.refused(body) != []
    assert signer.refused(without(body, 0)) == []
