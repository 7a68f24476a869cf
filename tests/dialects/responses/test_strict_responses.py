"""The validator that tests believe finds every defect it is there for, and nothing in what is right."""

from __future__ import annotations

import pytest

from tests.support.conversations import Json
from tests.support.strict_responses import defects, parted, repeated_ids

GO: Json = {"role": "user", "content": "go"}
SO: Json = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]}
THOUGHT: Json = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
CALL: Json = {"type": "function_call", "call_id": "a", "name": "bash", "arguments": "{}"}
RESULT: Json = {"type": "function_call_output", "call_id": "a", "output": "ok"}
MARKED: Json = {"type": "input_text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit"}}


def said(*parts: object, role: str = "user") -> Json:
    return {"role": role, "content": [*parts]}


RIGHT: dict[str, object] = {
    "a text": "go",
    "one item": [GO],
    "a round": [GO, THOUGHT, CALL, RESULT, THOUGHT, SO, GO],
    "parallel calls, answered in another order": [
        GO, CALL, {**CALL, "call_id": "b"}, {**RESULT, "call_id": "b"}, RESULT, SO
    ],
    "a local shell's result by its id": [
        GO, {"type": "local_shell_call", "id": "l"}, {"type": "local_shell_call_output", "id": "l", "output": "x"}
    ],
    "an approval": [
        {"type": "mcp_approval_request", "id": "m"}, {"type": "mcp_approval_response", "approval_request_id": "m"}
    ],
    "what the provider does itself": [GO, {"type": "web_search_call", "id": "w"}, {"type": "mcp_call", "id": "m"}, SO],
    "tools found by the provider": [GO, {"type": "tool_search_call"}, {"type": "tool_search_output", "tools": []}, SO],
    "a result whose call lies with the provider": [{"id": "fc_1"}, RESULT],
    "four marks": [said(MARKED, MARKED), said(MARKED, MARKED)],
}  # fmt: skip
WRONG: dict[str, tuple[object, str]] = {
    "nothing": (None, "no input"),
    "an empty text": ("", "an empty input"),
    "no item": ([], "no input"),
    "no object": ([GO, "x"], "no object"),
    "an unknown type": ([GO, {"type": "new"}], "unknown type"),
    "an unknown role": ([{"role": "tool", "content": "x"}], "unknown role"),
    "no content": ([said()], "no content"),
    "a part of chat": ([said({"type": "text", "text": "x"})], "unknown part"),
    "a user's output": ([said({"type": "output_text", "text": "x"})], "other side"),
    "a model's input": ([said({"type": "input_text", "text": "x"}, role="assistant")], "other side"),
    "an empty part": ([said({"type": "input_text", "text": ""})], "empty text"),
    "a result without a call": ([GO, RESULT], "No tool call found"),
    "a result before its call": ([GO, RESULT, CALL], "No tool call found"),
    "a call without a result": ([GO, CALL, SO], "No tool output found"),
    "two results": ([GO, CALL, RESULT, RESULT], "second output"),
    "one id for two calls": ([GO, CALL, CALL, RESULT], "call id twice"),
    "a result that says nothing": ([GO, CALL, {**RESULT, "output": None}], "no output"),
    "arguments as an object": ([GO, {**CALL, "arguments": {}}, RESULT], "no text"),
    "reasoning at the end": ([GO, THOUGHT], "required following item"),
    "reasoning before a user": ([THOUGHT, GO], "required following item"),
    "reasoning before a result": ([GO, CALL, THOUGHT, RESULT], "required following item"),
    "five marks": ([said(MARKED, MARKED, MARKED), said(MARKED, MARKED)], "cache breakpoints"),
}


@pytest.mark.parametrize("items", RIGHT.values(), ids=RIGHT)
def test_what_is_right_has_no_defect(items: object) -> None:
    assert defects({"input": items}) == []


@pytest.mark.parametrize(("items", "defect"), WRONG.values(), ids=WRONG)
def test_every_defect_is_found(items: object, defect: str) -> None:
    assert any(defect in found for found in defects({"input": items}))


def test_an_answer_is_there_whole_or_not_at_all() -> None:
    before = [GO, THOUGHT, SO, CALL, RESULT, {**SO, "id": "last"}]
    assert parted(before, before) == parted(before, [GO, before[-1]]) == []
    assert parted([GO, THOUGHT, CALL, RESULT], [CALL, RESULT]) == ["an answer of 2 items, of which 1 are there"]


def test_items_of_one_id_are_found() -> None:
    shell: Json = {"type": "local_shell_call_output", "id": "rs_1", "output": "x"}
    assert repeated_ids([GO, THOUGHT, SO, GO, shell]) == []
    assert repeated_ids([THOUGHT, SO, THOUGHT, SO]) == ["Duplicate item found with id rs_1."]
