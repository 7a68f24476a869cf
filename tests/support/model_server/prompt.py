"""Requests of each dialect as chat completions, and what OpenAI refuses in one.

Nothing here is shared with the proxy's reader, so that a mistake in one cannot hide in the other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from proxy.cli.demo.prompt import Chat, PromptMessage

T = TypeVar("T")
# Every stream of the other APIs tells its usage.
WITH_USAGE = {"include_usage": True}


_HALVES = re.compile(rb"\\u[dD][89a-fA-F]")


def read(body: bytes) -> Chat | None:
    """The request, or None where the body is none."""
    return decode_as(body, Chat)


def decode_as(body: bytes, kind: type[T]) -> T | None:
    """None where it is none of these. Halves of surrogate pairs are read, as most servers read them."""
    try:
        return msgspec.json.decode(body if _HALVES.search(body) is None else _whole(body), type=kind)
    except (ValueError, msgspec.DecodeError, RecursionError):
        return None


def function_tool(tool: Mapping[str, object], schema_key: str) -> msgspec.Raw:
    """A tool of another API as chat declares it."""
    rest = {key: value for key, value in tool.items() if key != schema_key}
    declared = {"name": tool.get("type"), **rest, "parameters": tool.get(schema_key) or {}}
    return msgspec.Raw(msgspec.json.encode({"function": declared}))


def _whole(body: bytes) -> bytes:
    """The same JSON with something else in the place of halves."""
    return json.dumps(json.loads(body), ensure_ascii=False).encode("utf-8", "replace")


def defects(messages: Sequence[PromptMessage]) -> Iterator[str]:
    """What is wrong between tool calls and their answers, in OpenAI's words."""
    caller: PromptMessage | None = None
    open_calls: set[str] = set()
    for index, message in enumerate(messages):
        if message.role != "tool":
            yield from _unanswered_calls(open_calls)
            caller = message
            open_calls = {call.id for call in message.tool_calls or ()}
        elif (reason := _wrong_answer(index, message.tool_call_id or "", caller, open_calls)) is not None:
            yield reason
        else:
            open_calls.discard(message.tool_call_id or "")
    yield from _unanswered_calls(open_calls)


def _unanswered_calls(calls: set[str]) -> Iterator[str]:
    if calls:
        yield (
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            "'tool_call_id'. The following tool_call_ids did not have response messages: " + ", ".join(sorted(calls))
        )


def _wrong_answer(index: int, answered: str, caller: PromptMessage | None, open_calls: set[str]) -> str | None:
    if answered in open_calls:
        return None
    if caller is None or not caller.tool_calls:
        return (
            "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
        )
    if any(call.id == answered for call in caller.tool_calls):
        return f"Duplicate value for 'tool_call_id' of '{answered}' in message[{index}]."
    return f"Invalid parameter: 'tool_call_id' of '{answered}' not found in 'tool_calls' of previous message."
