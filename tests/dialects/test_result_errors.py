"""What the protocols' own fields say of a result: that it is an error, that it is none, or nothing."""

from __future__ import annotations

import pytest

from proxy.dialects.table import CHAT, MESSAGES, RESPONSES

of_responses = RESPONSES.items.utterances

of_messages = MESSAGES.items.utterances

of_chat = CHAT.items.utterances

EXITS = [{"stdout": "", "stderr": "", "outcome": {"type": "exit", "exit_code": code}} for code in (0, 2)]
TIMEOUT = {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}}


@pytest.mark.parametrize(
    ("block", "error"),
    [
        ({"type": "tool_result", "tool_use_id": "a", "content": "x", "is_error": True}, True),
        ({"type": "tool_result", "tool_use_id": "a", "content": "x", "is_error": False}, False),
        ({"type": "tool_result", "tool_use_id": "a", "content": "x"}, None),
        ({"type": "tool_result", "tool_use_id": "a", "content": "x", "is_error": None}, None),
        (
            {
                "type": "bash_code_execution_tool_result",
                "content": {"type": "bash_code_execution_result", "return_code": 1},
            },
            True,
        ),
        (
            {
                "type": "bash_code_execution_tool_result",
                "content": {"type": "bash_code_execution_result", "return_code": 0},
            },
            False,
        ),
        (
            {"type": "web_search_tool_result", "content": {"type": "web_search_tool_result_error", "error_code": "x"}},
            True,
        ),
        ({"type": "web_search_tool_result", "content": []}, None),
    ],
)
def test_messages_says_it_of_a_block(block: dict[str, object], error: bool | None) -> None:
    (said,) = of_messages({"role": "user", "content": [block]}, 0, ["t"])
    assert said.error is error


@pytest.mark.parametrize(
    ("item", "error"),
    [
        ({"type": "function_call_output", "call_id": "a", "output": "x"}, None),
        ({"type": "function_call_output", "call_id": "a", "output": "x", "status": "completed"}, None),
        ({"type": "function_call_output", "call_id": "a", "output": "x", "status": "incomplete"}, True),
        ({"type": "apply_patch_call_output", "call_id": "a", "output": "x", "status": "completed"}, False),
        ({"type": "apply_patch_call_output", "call_id": "a", "output": "x", "status": "failed"}, True),
        ({"type": "shell_call_output", "call_id": "a", "output": EXITS[:1]}, False),
        ({"type": "shell_call_output", "call_id": "a", "output": EXITS}, True),
        ({"type": "shell_call_output", "call_id": "a", "output": [TIMEOUT]}, True),
        ({"type": "mcp_call", "id": "a", "name": "t", "arguments": "{}", "error": "boom", "output": None}, True),
        ({"type": "mcp_call", "id": "a", "name": "t", "arguments": "{}", "output": "x", "status": "completed"}, False),
        ({"type": "mcp_call", "id": "a", "name": "t", "arguments": "{}", "output": "x"}, None),
        ({"type": "code_interpreter_call", "id": "a", "code": "x", "outputs": [], "status": "failed"}, True),
        ({"type": "custom_tool_call_output", "call_id": "a", "output": "x"}, None),
    ],
)
def test_responses_says_it_of_an_item(item: dict[str, object], error: bool | None) -> None:
    assert of_responses(item, 0, ["t"])[-1].error is error


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({}, None),
        ({"is_error": True}, True),
        ({"is_error": False}, False),
        ({"status": "error"}, True),
        ({"status": "success"}, None),
    ],
)
def test_chat_says_nothing_but_what_clients_add(more: dict[str, object], error: bool | None) -> None:
    (said,) = of_chat({"role": "tool", "tool_call_id": "a", "content": "x", **more}, 0, ["t"])
    assert said.error is error
