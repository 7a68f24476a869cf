"""One item: what is counted of it, what links it to others, its text for a transcript, and a shorter copy."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.conversation.conversation import Conversation
from policies.conversation.message import Call, Message
from policies.conversation.transcript import ToolCall
from policies.decision.legal_cuts import legal_cuts
from proxy.dialects.blocks import CALL_OVERHEAD
from proxy.dialects.responses.items import ITEM_OVERHEAD
from proxy.dialects.table import RESPONSES
from tests.support.conversations import ANYTHING, Json, count

describe = RESPONSES.items.describe
shorten = RESPONSES.items.shorten
utterances = RESPONSES.items.utterances
with_texts = RESPONSES.items.with_texts

LONG = "word " * 400
X40 = "x" * 40
IMAGE = {"type": "input_image", "image_url": "https://a/b", "detail": "low"}
KINDS = st.sampled_from(
    [
        *("message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "computer_call"),
        *("computer_call_output", "local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output"),
        *("apply_patch_call", "apply_patch_call_output", "tool_search_call", "tool_search_output", "mcp_list_tools"),
        *("mcp_call", "mcp_approval_request", "mcp_approval_response", "web_search_call", "image_generation_call"),
        *("code_interpreter_call", "item_reference", "compaction", "compaction_trigger", "additional_tools", "program"),
        *("program_output", "new_call", "new_call_output", "", "input_image"),
    ]
)


def said(content: object, role: str = "user") -> Json:
    return {"role": role, "content": content}


def item(kind: str, **fields: object) -> Json:
    return {"type": kind, **fields}


def seen(value: object) -> Message:
    described = describe(value, count)
    assert described is not None
    return described


@pytest.mark.parametrize(
    ("value", "expected", "reason"),
    [
        (said(X40), ITEM_OVERHEAD + 10, "text by the tokenizer"),
        (said([{"type": "input_text", "text": X40}] * 2), ITEM_OVERHEAD + 20, "text parts"),
        (said([{"type": "refusal", "refusal": X40}], "assistant"), ITEM_OVERHEAD + 10, "a refusal"),
        (said(None), ITEM_OVERHEAD, "nothing said"),
        (said([IMAGE]), ITEM_OVERHEAD + 85, "an image by its formula"),
        (said([{"type": "input_file", "file_id": "f"}]), ITEM_OVERHEAD + 4_000, "a file"),
        (item("function_call", name="bash", arguments=X40), CALL_OVERHEAD + 11, "name and arguments"),
        (item("function_call", name="bash", arguments={"a": "x" * 34}), CALL_OVERHEAD + 12, "arguments as an object"),
        (item("custom_tool_call", name="edit", input=X40), CALL_OVERHEAD + 11, "a custom tool's input"),
        (item("function_call", call_id="x" * 400), CALL_OVERHEAD, "ids are free"),
        (item("function_call_output", output=X40), ITEM_OVERHEAD + 10, "a result"),
        (item("function_call_output", output=[{"type": "input_text", "text": X40}, IMAGE]), ITEM_OVERHEAD + 95, "both"),
        (item("reasoning", summary=[{"type": "summary_text", "text": X40}]), ITEM_OVERHEAD + 10, "a thought in short"),
        (item("reasoning", encrypted_content="x" * 5_000, summary=[]), ITEM_OVERHEAD + 1_000, "a sealed thought"),
        (item("reasoning", content=[{"type": "reasoning_text", "text": X40}]), ITEM_OVERHEAD + 10, "an open one"),
        (item("compaction", encrypted_content="x" * 5_000), ITEM_OVERHEAD + 1_000, "a provider's compaction"),
        (item("item_reference", id="x" * 400), ITEM_OVERHEAD, "what lies with the provider"),
        (item("image_generation_call", result="x" * 90_000), CALL_OVERHEAD + 1_105 + 12, "an image that was made"),
        (item("computer_call_output", output={"type": "computer_screenshot"}), ITEM_OVERHEAD + 1_105 + 8, "a screen"),
        (item("shell_call", action={"commands": [X40]}), CALL_OVERHEAD + 22, "an action, as its JSON"),
        (item("new", words=X40), ITEM_OVERHEAD + 17, "an unknown item is not free"),
    ],
)
def test_an_item_weighs_what_is_sent_of_it(value: Json, expected: int, reason: str) -> None:
    assert seen(value).tokens == expected, reason


CALLED = {
    "function_call": ({"call_id": "c", "name": "bash"}, ("c", "bash")),
    "custom_tool_call": ({"call_id": "c", "name": "edit"}, ("c", "edit")),
    "computer_call": ({"call_id": "c", "id": "i"}, ("c", "computer")),
    "shell_call": ({"call_id": "c"}, ("c", "shell")),
    "apply_patch_call": ({"call_id": "c"}, ("c", "apply_patch")),
    "local_shell_call": ({"call_id": "c", "id": "i"}, ("c", "local_shell")),
    "tool_search_call": ({"call_id": None}, ("tool_search", "tool_search")),
    "program": ({"call_id": "c", "id": "i"}, ("c", "program")),
    "mcp_approval_request": ({"id": "a", "name": "delete"}, ("a", "delete")),
    "new_call": ({"call_id": "c"}, ("c", "new")),
}


@pytest.mark.parametrize(("kind", "fields", "call"), [(kind, *row) for kind, row in CALLED.items()], ids=CALLED)
def test_a_call_is_the_models_and_waits_for_its_result(kind: str, fields: Json, call: tuple[str, str]) -> None:
    found = seen(item(kind, **fields))
    assert (found.role, found.continues, found.joins, found.results) == ("assistant", True, False, ())
    assert found.calls == (Call(*call),)


HOLDING = ("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call")


@pytest.mark.parametrize("kind", [*HOLDING, "mcp_list_tools", "new_call", "new_item", "item_reference", "reasoning"])
def test_what_nobody_has_to_answer_is_no_open_call(kind: str) -> None:
    found = seen(item(kind, id="i"))
    assert (found.role, found.continues, found.calls, found.results) == ("assistant", True, (), ())


ANSWERED = {
    "function_call_output": {"call_id": "c"},
    "custom_tool_call_output": {"call_id": "c"},
    "computer_call_output": {"call_id": "c", "id": "i"},
    "shell_call_output": {"call_id": "c"},
    "apply_patch_call_output": {"call_id": "c"},
    "tool_search_output": {"call_id": "c", "execution": "client"},
    "local_shell_call_output": {"id": "c"},
    "mcp_approval_response": {"approval_request_id": "c", "id": "i"},
    "new_call_output": {"call_id": "c"},
    "new_answer": {"call_id": "c"},
}


@pytest.mark.parametrize(("kind", "fields"), ANSWERED.items(), ids=ANSWERED)
def test_a_result_stays_behind_its_call(kind: str, fields: Json) -> None:
    found = seen(item(kind, **fields))
    assert (found.role, found.joins, found.continues, found.calls) == ("tool", True, False, ())
    assert found.results == ("c",)


@pytest.mark.parametrize("value", [item("tool_search_output", tools=[]), item("program_output", call_id="c")])
def test_what_the_provider_answers_itself_goes_on_with_the_models_answer(value: Json) -> None:
    found = seen(value)
    assert (found.role, found.continues, found.joins, len(found.results)) == ("assistant", True, False, 1)


@pytest.mark.parametrize(
    ("value", "role"),
    [
        (said("x", "system"), "system"),
        (said("x", "developer"), "developer"),
        (said("x", "assistant"), "assistant"),
        (said("x", "critic"), "user"),
        (item("agent_message", role="assistant", content="x"), "assistant"),
        (item("agent_message", role="user", content="x"), "user"),
        ({"content": "x"}, "user"),
        (item("additional_tools", role="developer", tools=[]), "developer"),
    ],
)
def test_what_has_a_role_is_read_by_it(value: Json, role: str) -> None:
    assert seen(value).role == role


def test_what_else_the_cuts_need_to_know() -> None:
    assert (seen(item("reasoning")).silent, seen(item("reasoning")).signed) == (True, "sealed")
    assert (seen(item("item_reference", id="i")).stored, seen({"id": "i"}).stored) == (True, True)
    assert (seen(item("compaction")).barrier, seen(item("compaction_trigger")).bypass) == (True, "provider_compaction")
    tools = [{"type": "function", "name": "a"}, {"type": "web_search"}, 7]
    assert seen(item("additional_tools", role="developer", tools=tools)).loads == ("a", "web_search")
    assert seen(item("additional_tools", role="developer", tools=[])).loads == ("additional_tools",)
    assert seen(item("tool_search_output", call_id="c", tools=tools)).loads == ("a", "web_search")
    assert seen(item("mcp_list_tools", server_label="s", tools=tools)).loads == ("s.a", "s.web_search")


@pytest.mark.parametrize(
    ("value", "media"),
    [
        (said("x"), False),
        (said([{"type": "input_text", "text": "x"}]), False),
        (said([IMAGE]), True),
        (said([{"type": "input_audio", "input_audio": {"data": "x"}}]), True),
        (item("function_call_output", output="x"), False),
        (item("function_call_output", output=[{"type": "input_text", "text": "x"}, IMAGE]), True),
        (item("shell_call_output", output=[{"stdout": "x", "stderr": ""}]), True),
        (item("computer_call_output", output={"type": "computer_screenshot"}), True),
        (item("tool_search_output", call_id="c", tools=[]), True),
        (item("image_generation_call", result="x"), True),
        (item("function_call", arguments="{}"), False),
    ],
)
def test_what_is_more_than_text_is_noticed(value: Json, media: bool) -> None:
    assert seen(value).media is media


@pytest.mark.parametrize(
    "value",
    [None, 1, "text", ["role"], {"role": ["user"]}, {"role": 1}, {"type": 1}, {"type": ["message"], "role": "user"},
     {"role": "user", "content": [{"type": ["input_text"]}]}, item("function_call_output", output={"type": []})],
)  # fmt: skip
def test_what_is_no_item_is_left_to_the_upstream(value: object) -> None:
    assert describe(value, count) is None


@given(KINDS, ANYTHING, ANYTHING)
def test_no_value_breaks_the_description_of_an_item(kind: str, value: object, other: object) -> None:
    keys = ("content", "output", "arguments", "input", "action", "operation", "tools", "summary", "result", "call_id")
    for found in (
        value,
        {"type": kind, **dict.fromkeys(keys, value), "id": other},
        item(kind, output=value, name=other),
    ):
        if (described := describe(found, count)) is None:
            continue
        assert described.tokens >= ITEM_OVERHEAD
        utterances(found, 0, ())
        for changed in (shorten(msgspec.json.encode(found), 0.1), with_texts(msgspec.json.encode(found), ["short"])):
            after = describe(msgspec.json.decode(changed), count)
            assert after is not None
            assert (after.role, after.calls, after.results) == (described.role, described.calls, described.results)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (said([{"type": "input_text", "text": "see"}, IMAGE]),
         [("user", "see", (), ""), ("user", "[input_image]", (), "")]),
        (item("function_call", call_id="c", name="bash", arguments="{}"),
         [("assistant", "", (ToolCall("bash", "{}", "c"),), "")]),
        (item("custom_tool_call", call_id="c", name="edit", input="+ x"),
         [("assistant", "", (ToolCall("edit", "+ x", "c"),), "")]),
        (item("shell_call", call_id="c", action={"commands": ["ls"]}),
         [("assistant", "", (ToolCall("shell", '{"commands":["ls"]}', "c"),), "")]),
        (item("apply_patch_call", call_id="c", operation={"type": "create_file", "path": "a"}),
         [("assistant", "", (ToolCall("apply_patch", '{"type":"create_file","path":"a"}', "c"),), "")]),
        (item("function_call_output", call_id="c", output=[{"type": "input_text", "text": "ok"}]),
         [("tool", "ok", (), "")]),
        (item("shell_call_output", call_id="c", output=[{"stdout": "a", "stderr": "b", "outcome": {}}]),
         [("tool", "a\nb", (), "")]),
        (item("computer_call_output", call_id="c", output={"type": "computer_screenshot", "image_url": "x"}),
         [("tool", "[computer_screenshot]", (), "")]),
        (item("mcp_approval_response", approval_request_id="c", approve=False),
         [("tool", '{"approve":false}', (), "")]),
        (item("tool_search_output", call_id="c", tools=[{"name": "a"}, {"name": "b"}]), [("tool", "a, b", (), "")]),
        (item("mcp_call", id="c", name="find", arguments="{}", output="found"),
         [("assistant", "", (ToolCall("find", "{}", "c"),), ""), ("tool", "found", (), "")]),
        (item("image_generation_call", id="c", result="x" * 9_000),
         [("assistant", "", (ToolCall("image_generation", "{}", "c"),), ""), ("tool", "[image]", (), "")]),
        (item("reasoning", summary=[{"type": "summary_text", "text": "because"}]), [("assistant", "", (), "because")]),
        (item("reasoning", encrypted_content="x", summary=[]), []),
        (item("new_item", content=[{"type": "output_text", "text": "so"}]), [("assistant", "so", (), "")]),
        (item("compaction", encrypted_content="x"), [("assistant", "[compaction]", (), "")]),
    ],
)  # fmt: skip
def test_a_transcript_has_what_is_said_called_and_answered(value: Json, expected: list[object]) -> None:
    found = utterances(value, 3, ["bash"])
    assert [(one.role, one.text, one.calls, one.reasoning) for one in found] == expected
    assert all(one.position == 3 for one in found)


def short(value: Json) -> Json:
    decoded: Json = json.loads(shorten(json.dumps(value).encode(), 0.1))
    return decoded


@pytest.mark.parametrize(
    "value",
    [
        said(LONG),
        said([{"type": "input_text", "text": LONG}]),
        item("function_call", call_id="c", name="write", arguments=json.dumps({"path": "a.py", "text": LONG})),
        item("custom_tool_call", call_id="c", name="edit", input=LONG),
        item("apply_patch_call", call_id="c", operation={"type": "create_file", "path": "a", "diff": LONG}),
        item("function_call_output", call_id="c", output=LONG),
        item("custom_tool_call_output", call_id="c", output=[{"type": "input_text", "text": LONG}]),
        item("shell_call_output", call_id="c", output=[{"stdout": LONG, "stderr": "", "outcome": {"type": "exit"}}]),
        item("mcp_call", id="c", name="find", arguments="{}", output=LONG),
    ],
)
def test_a_shortened_item_is_a_fraction_and_keeps_all_that_links_it(value: Json) -> None:
    before, after = seen(value), seen(short(value))
    assert after.tokens < before.tokens / 4
    assert (after.role, after.calls, after.results) == (before.role, before.calls, before.results)
    assert short(value).keys() == value.keys()


def test_shortened_arguments_are_still_json() -> None:
    arguments = {"path": "a.py", "line": 3, "deep": {"x": [1]}, "text": LONG}
    made = json.loads(str(short(item("function_call", arguments=json.dumps(arguments)))["arguments"]))
    assert {**made, "text": LONG} == arguments
    assert short(item("function_call", arguments="not json")) == item("function_call", arguments="not json")


def test_media_become_a_note_and_what_is_sealed_or_defines_tools_stays() -> None:
    note = {"type": "input_text", "text": "[input_image left out]"}
    assert short(said([IMAGE]))["content"] == [note]
    assert short(item("image_generation_call", id="i", result="x"))["result"] is None
    for value in (
        item("reasoning", summary=[{"type": "summary_text", "text": LONG}], encrypted_content=LONG),
        item("compaction", encrypted_content=LONG),
        item("mcp_list_tools", server_label="s", tools=[{"name": "a", "description": LONG}]),
        item("computer_call_output", call_id="c", output={"type": "computer_screenshot", "image_url": LONG}),
    ):
        assert short(value) == value


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (LONG, "short"),
        ([{"type": "input_text", "text": LONG}], [{"type": "input_text", "text": "short"}]),
        ([{"type": "input_text", "text": LONG}, IMAGE], [{"type": "input_text", "text": "short"}]),
        (
            [{"type": "input_text", "text": LONG, "prompt_cache_breakpoint": {"mode": "explicit"}}],
            [{"type": "input_text", "text": "short", "prompt_cache_breakpoint": {"mode": "explicit"}}],
        ),
        ([{"stdout": LONG, "stderr": ""}], None),
        ({"type": "computer_screenshot"}, None),
    ],
)
def test_a_text_takes_the_place_of_text_alone(output: object, expected: object) -> None:
    value = item("function_call_output", id="i", call_id="c", output=output, status="completed")
    raw = json.dumps(value).encode()
    changed = with_texts(raw, ["short"])
    assert json.loads(changed) == {**value, "output": output if expected is None else expected}
    assert with_texts(raw, [None]) == raw


def call(name: str) -> Json:
    return item("function_call", call_id=name, name="bash", arguments="{}")


def result(name: str) -> Json:
    return item("function_call_output", call_id=name, output="ok")


GO = said("go")
THOUGHT = item("reasoning", summary=[])
TEXT = said("so", "assistant")
SEARCH = item("web_search_call", id="ws", action={"type": "search"})
CUTS = {
    "one answer of several items is one round": ([GO, SEARCH, TEXT, call("a"), result("a"), TEXT, GO], [5, 6]),
    "outputs reversed": ([GO, call("a"), call("b"), result("b"), result("a"), TEXT, GO], [5, 6]),
    "outputs between calls": ([GO, call("a"), result("a"), call("b"), result("b"), TEXT, GO], [3, 5, 6]),
    "calls that overlap": ([GO, call("a"), call("b"), result("a"), call("c"), result("b"), result("c"), TEXT], [7]),
    "a late output": ([GO, call("a"), TEXT, GO, TEXT, result("a"), TEXT, GO], [6, 7]),
    "a search for tools at the provider": (
        [GO, item("tool_search_call"), item("tool_search_output", tools=[]), call("a"), result("a"), TEXT, GO],
        [5, 6],
    ),
    "a program": (
        [GO, item("program", call_id="p"), call("a"), result("a"), item("program_output", call_id="p"), TEXT, GO],
        [6],
    ),
    "what lies with the provider": ([GO, TEXT, GO, {"id": "msg_1"}, GO, TEXT, GO], [2]),
    "behind a provider's compaction": ([GO, TEXT, item("compaction"), GO, TEXT, GO, TEXT, GO], [2, 4]),
}


@pytest.mark.parametrize(("items", "cuts"), CUTS.values(), ids=CUTS)
def test_where_a_conversation_of_items_may_be_cut(items: list[Json], cuts: list[int]) -> None:
    assert legal_cuts(Conversation([*map(seen, items)])) == cuts
