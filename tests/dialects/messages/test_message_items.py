"""One message: what is counted of it, what links it to others, and its text for a transcript."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.conversation.message import Call, Message, Role
from policies.conversation.transcript import ToolCall
from proxy.dialects.blocks import CALL_OVERHEAD
from proxy.dialects.messages.items import BLOCK_OVERHEAD
from proxy.dialects.table import MESSAGES
from tests.support.conversations import ANYTHING, Json, count
from tests.support.message_blocks import call, result, said, text, thought

describe = MESSAGES.items.describe
utterances = MESSAGES.items.utterances

user, model, operator = partial(said, "user"), partial(said, "assistant"), partial(said, "system")
FORTY = "x" * 40
REMINDER = "<system-reminder>be kind</system-reminder>"
IMAGE = {"type": "image", "source": {"type": "url", "url": "https://a/b"}}
DOCUMENT = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": FORTY}}
REFERENCE = {"type": "tool_reference", "tool_name": "grep"}
SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}}
HIT = {"type": "web_search_result", "title": "Docs", "url": "https://d", "encrypted_content": "zzz"}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [HIT]}


def described(message: object) -> Message:
    found = describe(message, count)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("message", "tokens", "reason"),
    [
        ({"role": "user", "content": FORTY}, BLOCK_OVERHEAD + 10, "a string is one block"),
        (user(FORTY), BLOCK_OVERHEAD + 10, "a block"),
        (user(FORTY, FORTY), 2 * BLOCK_OVERHEAD + 20, "two blocks"),
        ({"role": "user", "content": [FORTY]}, BLOCK_OVERHEAD + 10, "texts as strings in a list"),
        ({"role": "user"}, BLOCK_OVERHEAD, "nothing said"),
        ({"role": "user", "content": 7}, BLOCK_OVERHEAD, "a number"),
        (model(call("c", cmd="x" * 30)), CALL_OVERHEAD + 1 + 10, "name and input of a call"),
        (model(call("c" * 400)), CALL_OVERHEAD + 1 + 1, "no id"),
        (model({"type": "tool_use", "id": "c"}), CALL_OVERHEAD + 1, "a call without anything"),
        (user(result("c", FORTY)), BLOCK_OVERHEAD + 10, "a result"),
        (user(result("c", [text(FORTY), text(FORTY)])), BLOCK_OVERHEAD + 20, "a result of several blocks"),
        (user(result("c", None)), BLOCK_OVERHEAD, "a result of nothing"),
        (user(result("c", FORTY), result("d", FORTY), FORTY), 3 * BLOCK_OVERHEAD + 30, "all that stands in a message"),
        (model(thought(FORTY, "s" * 500)), BLOCK_OVERHEAD + 10, "thinking by its text"),
        (model(thought("", "s" * 500)), BLOCK_OVERHEAD + 100, "thinking that is not shown by its signature"),
        (model({"type": "redacted_thinking", "data": "s" * 500}), BLOCK_OVERHEAD + 100, "redacted thinking"),
        (user(IMAGE), BLOCK_OVERHEAD + 1105, "an image"),
        (user(result("c", [IMAGE])), BLOCK_OVERHEAD + 1105, "an image in a result"),
        (user(DOCUMENT), BLOCK_OVERHEAD + 10, "a document of text"),
        (user({"type": "odd", "what": "x" * 20}), BLOCK_OVERHEAD + 11, "an unknown block is its JSON"),
        (operator(FORTY), BLOCK_OVERHEAD + 10, "an instruction"),
    ],
)
def test_a_message_weighs_what_is_sent_of_it(message: Json, tokens: int, reason: str) -> None:
    assert described(message).tokens == tokens, reason


def test_omitted_thinking_and_large_data_weigh_less_than_their_text() -> None:
    assert described(model(thought("", "s" * 50_000))).tokens < count("s" * 50_000)
    assert described(model(FOUND | {"content": [HIT | {"encrypted_content": "z" * 9_000}]})).tokens < 2_300


@pytest.mark.parametrize(
    ("role", "seen"),
    [("user", "user"), ("assistant", "assistant"), ("system", "system"), ("critic", "user"), (None, "user")],
)
def test_an_unknown_role_is_treated_as_a_users(role: str | None, seen: Role) -> None:
    assert described({"role": role, "content": "x"}).role == seen


@pytest.mark.parametrize(
    "message",
    [
        *(None, 1, "text", ["role", "user"], {"role": ["user"]}, {"role": 1}),
        {"role": "user", "content": [{"type": ["text"]}]},
        {"role": "user", "content": {"type": []}},
    ],
)
def test_what_is_no_message_is_left_to_the_upstream(message: object) -> None:
    assert describe(message, count) is None


USERS: list[tuple[str, Json, Json]] = [
    ("a user's words", user("hi"), {"role": "user", "joins": False, "results": (), "words": 0, "media": False}),
    ("an image", user("hi", IMAGE), {"role": "user", "media": True}),
    ("results", user(result("a"), result("b")), {"role": "tool", "joins": True, "results": ("a", "b"), "words": 0}),
    ("words beside", user(result("a"), FORTY), {"role": "tool", "words": BLOCK_OVERHEAD + 10, "results": ("a",)}),
    ("a harness beside", user(result("a"), REMINDER), {"role": "tool", "words": 0}),
    ("both beside", user(result("a"), REMINDER, FORTY), {"role": "tool", "words": BLOCK_OVERHEAD + 10}),
    ("a page beside", user(result("a"), DOCUMENT), {"role": "tool", "words": 0}),
    ("nothing beside", user(result("a"), "", " \n"), {"role": "tool", "words": 0}),
    (
        "words and an image",
        user(result("a"), IMAGE, FORTY),
        {"role": "tool", "words": BLOCK_OVERHEAD + 10, "media": False},
    ),
    ("an image in a result", user(result("a", [text("x"), IMAGE])), {"media": True, "loads": ()}),
    ("tools", user(result("a", [REFERENCE, {**REFERENCE, "tool_name": "sed"}])), {"loads": ("grep", "sed")}),
    ("a result without a call's id", user({"type": "tool_result"}), {"role": "tool", "results": ("",)}),
    ("a result of a kind to come", user({"type": "odd_tool_result", "tool_use_id": "a"}), {"results": ("a",)}),
]


@pytest.mark.parametrize(("message", "fields"), [case[1:] for case in USERS], ids=[case[0] for case in USERS])
def test_what_a_users_message_is(message: Json, fields: Json) -> None:
    found = described(message)
    assert {name: getattr(found, name) for name in fields} == fields


TOOLS_FOUND = {"type": "tool_search_tool_search_result", "tool_references": [REFERENCE]}
MODELS: list[tuple[str, Json, Json]] = [
    ("words", model("hi"), {"calls": (), "continues": True, "joins": False, "signed": "none", "silent": False}),
    ("calls", model("hi", call("a"), call("b", "sed")), {"calls": (Call("a", "bash"), Call("b", "sed"))}),
    ("a server's tool", model(SEARCH, FOUND, "so"), {"calls": (), "results": ()}),
    ("an MCP tool", model({"type": "mcp_tool_use", "id": "m"}, {"type": "mcp_tool_result", "tool_use_id": "m"}),
     {"calls": (), "results": ()}),
    ("a paused answer", model(SEARCH), {"calls": (Call("s1", "web_search"),), "results": ()}),
    ("what it goes on with", model(FOUND, "so"), {"calls": (), "results": ("s1",), "role": "assistant"}),
    ("a call of a kind to come", model({"type": "odd_tool_use", "id": "o", "name": "x"}), {"calls": (Call("o", "x"),)}),
    ("something else with an id", model({"type": "odd", "id": "o", "name": "x"}), {"calls": ()}),
    ("thinking", model(thought(), "so"), {"signed": "bound", "silent": False}),
    ("redacted thinking", model({"type": "redacted_thinking", "data": "x"}, "so"), {"signed": "bound"}),
    ("thinking alone", model(thought(), thought()), {"signed": "bound", "silent": True}),
    ("nothing", model(), {"signed": "none", "silent": False}),
    ("a compaction", model({"type": "compaction", "content": "All so far."}), {"barrier": True}),
    ("a sealed one", model({"type": "compaction", "content": None, "encrypted_content": "x"}), {"barrier": True}),
    ("one that failed", model({"type": "compaction", "content": None}, "so"), {"barrier": False}),
    ("tools that were searched", model({**FOUND, "type": "tool_search_tool_result", "content": TOOLS_FOUND}),
     {"loads": ("grep",)}),
]  # fmt: skip


@pytest.mark.parametrize(("message", "fields"), [case[1:] for case in MODELS], ids=[case[0] for case in MODELS])
def test_what_a_models_message_is(message: Json, fields: Json) -> None:
    found = described(message)
    assert {name: getattr(found, name) for name in fields} == fields


ADDED = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "grep"}}
REMOVED = {"type": "tool_removal", "tool": {"type": "mcp_toolset_reference", "server_name": "files"}}
DEFINED = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {"name": "sed"}}}


def test_an_instruction_is_like_another_that_differs_in_digits_alone() -> None:
    one, other = described(operator("9,120 tokens left")), described(operator("8,007 tokens left"))
    assert (one.joins, one.lapses, one.loads, one.role) == (True, False, (), "system")
    assert one.loose == other.loose is not None
    assert one.digest != other.digest
    assert one.loose != described(operator("9,120 tokens right")).loose


@pytest.mark.parametrize(
    ("message", "loads", "lapses"),
    [
        (operator("Use it.", ADDED), ("+grep",), False),
        (operator(REMOVED, DEFINED), ("-files", "+sed"), False),
        (operator({"type": "tool_addition", "tool": 7}), ("+",), False),
        ({**operator("x"), "output_config": {"effort": "low"}}, (), False),
    ],
)
def test_what_changes_more_than_words_is_like_no_other(message: Json, loads: tuple[str, ...], lapses: bool) -> None:
    found = described(message)
    assert (found.loads, found.lapses, found.loose) == (loads, lapses, None)


def test_an_instruction_may_hold_until_the_next_user_speaks() -> None:
    assert described({**operator("x"), "clear_at": "next_user_message"}).lapses
    assert not described({**operator("x"), "clear_at": "never"}).lapses


def test_ids_that_carry_a_whole_signature_are_remembered_by_their_hash() -> None:
    long = "toolu_" + "s" * 5_000
    (made,) = described(model(call(long))).calls
    assert described(user(result(long))).results == (made.id,)
    assert len(made.id) == 64


def heard(message: Json, *tools: str | None) -> list[tuple[str, str, str | None, str | None]]:
    return [(s.role, s.text, s.answers, s.tool) for s in utterances(message, 3, tools)]


def test_results_are_heard_before_every_other_block() -> None:
    message = user(result("a", "one"), result("b", [text("two"), IMAGE, text("three")]), REMINDER, "Stop.", "Now.")
    assert heard(message, "bash", None) == [
        ("tool", "one", "a", "bash"),
        ("tool", "two\n[image]\nthree", "b", None),
        ("user", REMINDER, None, None),
        ("user", "Stop.", None, None),
        ("user", "Now.", None, None),
    ]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (user("hi"), [("user", "hi", None, None)]),
        ({"role": "user", "content": "hi"}, [("user", "hi", None, None)]),
        (user(REMINDER), [("user", REMINDER, None, None)]),
        (user(f"{REMINDER} and more"), [("user", f"{REMINDER} and more", None, None)]),
        (user(IMAGE), [("user", "[image]", None, None)]),
        (user(), [("user", "", None, None)]),
        (user(result("a", [REFERENCE])), [("tool", "grep", "a", None)]),
        (operator(REMINDER), [("system", REMINDER, None, None)]),
    ],
)
def test_what_is_heard_of_other_messages(message: Json, expected: list[object]) -> None:
    assert heard(message) == expected


def test_a_model_is_heard_with_its_calls_and_apart_from_its_thoughts() -> None:
    (found,) = utterances(model(thought("because"), "I look.", call("a", path="x.py")), 2, ())
    assert (found.position, found.text, found.reasoning) == (2, "I look.", "because")
    assert found.calls == (ToolCall("bash", '{"path":"x.py"}', "a"),)


def test_what_a_providers_tool_found_follows_the_answer_that_holds_it() -> None:
    output = {"type": "code_execution_result", "stdout": "42", "stderr": "", "content": []}
    ran = {"type": "code_execution_tool_result", "tool_use_id": "s0", "content": output}
    found = utterances(model(ran, "I search.", SEARCH, FOUND, "So."), 2, ["code_execution"])
    assert [(s.role, s.text, s.answers, s.tool) for s in found] == [
        ("assistant", "I search.\nSo.", None, None),
        ("tool", "42", "s0", "code_execution"),
        ("tool", "Docs\nhttps://d", "s1", "web_search"),
    ]


@given(ANYTHING, st.sampled_from(["user", "assistant", "system"]))
def test_no_value_breaks_the_description_of_a_message(value: object, role: str) -> None:
    odd: list[object] = [
        {"type": kind, **dict.fromkeys(("text", "content", "input", "id", "tool_use_id", "thinking", "source"), value)}
        for kind in ("text", "tool_use", "tool_result", "thinking", "image", "document", "tool_addition", "compaction")
    ]
    for content in (value, [value], odd, [result("c", value)], [result("c", [value])]):
        message = {"role": role, "content": content}
        found = describe(message, count)
        assert found is None or found.tokens >= BLOCK_OVERHEAD
        if found is not None:
            assert utterances(message, 0, ())
            assert describe(msgspec.json.decode(msgspec.json.encode(message)), count) == found
