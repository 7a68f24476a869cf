"""What the bundled model server reads of a request: its size in tokens and its defects, by its own simple rules.

Nothing here is shared with the proxy's reader, so that a mistake in one cannot hide in the other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

T = TypeVar("T")
MESSAGE_TOKENS = 3
IMAGE_TOKENS = 85
# Every stream of the other APIs tells its usage.
WITH_USAGE = {"include_usage": True}


class Function(msgspec.Struct, frozen=True):
    """A called function; `arguments` is JSON text."""

    name: str = ""
    arguments: str = ""


class PromptCall(msgspec.Struct, frozen=True):
    """One tool call of an assistant message."""

    id: str = ""
    function: Function = Function()


class ContentPart(msgspec.Struct, frozen=True):
    """One part of a message's content; anything without text counts as an image."""

    type: str = "text"
    text: str | None = None


class PromptMessage(msgspec.Struct, frozen=True):
    """One message, as far as it is counted and checked."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[PromptCall] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """All its text, parts on lines of their own."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content if part.text)
        return self.content or ""

    @property
    def last_text(self) -> str:
        """That of its last part."""
        parts = self.content if isinstance(self.content, list) else ()
        return parts[-1].text or "" if parts else self.text


class Chat(msgspec.Struct, frozen=True):
    """A chat completion request; requests of the other APIs are read as one."""

    messages: list[PromptMessage]
    model: str = ""
    stream: bool = False
    stream_options: dict[str, bool] | None = None
    tools: list[msgspec.Raw] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None

    @property
    def output(self) -> int:
        """Tokens it asks for; 0 if it does not say."""
        return self.max_completion_tokens or self.max_tokens or 0

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.get("include_usage"))


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


def count_tokens(chat: Chat, count: Callable[[str], int]) -> int:
    """Tokens of messages and tools; every answer is primed with three more."""
    tools = sum(count(bytes(tool).decode()) for tool in chat.tools or ())
    return MESSAGE_TOKENS + tools + sum(_message_tokens(message, count) for message in chat.messages)


def _message_tokens(message: PromptMessage, count: Callable[[str], int]) -> int:
    texts = [message.role, message.text, message.name or "", message.tool_call_id or ""]
    for call in message.tool_calls or ():
        texts += [call.id, call.function.name, call.function.arguments]
    images = sum(1 for part in message.content if part.text is None) if isinstance(message.content, list) else 0
    return MESSAGE_TOKENS + IMAGE_TOKENS * images + sum(count(text) for text in texts if text)


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
