"""Calls that a script at the provider makes are never cut from the script, however many rounds it takes."""

from __future__ import annotations

import pytest

from policies.conversation.conversation import Conversation, Order
from policies.decision.legal_cuts import legal_cuts
from proxy.dialects.base import Dialect
from proxy.dialects.table import MESSAGES, RESPONSES
from tests.support.conversations import Json

TASK = {"role": "user", "content": "Port the importer."}


def message_rounds(number: int, *, is_finished: bool) -> list[Json]:
    script = {"type": "server_tool_use", "id": "srv_1", "name": "code_execution", "input": {"code": "loop()"}}
    items: list[Json] = []
    for at in range(number):
        caller = {"type": "code_execution_20260120", "tool_id": "srv_1"}
        call = {"type": "tool_use", "id": f"c{at}", "name": "read", "input": {"at": at}, "caller": caller}
        items.append({"role": "assistant", "content": [*([] if at else [script]), call]})
        items.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"c{at}", "content": "ok"}]})
    done = {"type": "code_execution_tool_result", "tool_use_id": "srv_1", "content": {"stdout": "done"}}
    return (
        [*items, {"role": "assistant", "content": [done, {"type": "text", "text": "Done."}]}] if is_finished else items
    )


def response_rounds(number: int, *, is_finished: bool) -> list[Json]:
    items: list[Json] = [{"type": "program", "id": "prog_1", "call_id": "p1", "code": "loop()"}]
    for at in range(number):
        call = {"type": "function_call", "call_id": f"c{at}", "name": "read", "arguments": "{}"}
        items.append({**call, "caller": {"type": "program", "caller_id": "p1"}})
        items.append({"type": "function_call_output", "call_id": f"c{at}", "output": "ok"})
    done: list[Json] = [
        {"type": "program_output", "call_id": "p1", "output": "done"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]},
    ]
    return [*items, *done] if is_finished else items


@pytest.mark.parametrize("is_finished", [True, False])
@pytest.mark.parametrize(("dialect", "rounds"), [(MESSAGES, message_rounds), (RESPONSES, response_rounds)])
def test_no_cut_lies_inside_of_a_script(dialect: Dialect, rounds: object, is_finished: bool) -> None:
    before = [TASK, {"role": "assistant", "content": "I look."}, {"role": "user", "content": "Go on."}]
    script = rounds(5, is_finished=is_finished)  # type: ignore[operator]
    behind = [{"role": "user", "content": "Now the docs."}] if is_finished else []
    messages = [dialect.items.describe(item, len) for item in [*before, *script, *behind]]
    conversation = Conversation([message for message in messages if message is not None], order=Order())
    inside = range(len(before) + 1, len(before) + len(script))
    cuts = legal_cuts(conversation)
    assert cuts
    assert not [cut for cut in cuts if cut in inside]
