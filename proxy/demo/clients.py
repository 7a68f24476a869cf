"""The demo's client, in each dialect: how it writes the story's messages, and what it reads of an answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from proxy.demo.answers import Json
from proxy.demo.story import TOOLS, Message

_OUTPUT = 256
_OF_BOTH = "input length and `max_tokens` "


@dataclass(frozen=True, slots=True)
class Client:
    """How one dialect is spoken.

    path:    to send to.
    setting: what makes a program use a proxy at `{address}`.
    body:    a request, but for its model.
    refusal: what a decoded error is known by.
    """

    path: str
    setting: str
    body: Callable[[Sequence[Message]], Json]
    refusal: Callable[[object], str]


class _ClientFunction(msgspec.Struct):
    name: str
    arguments: str = ""
    description: str = ""
    parameters: dict[str, object] = {}


class _ClientCall(msgspec.Struct):
    id: str
    function: _ClientFunction


class _StoryMessage(msgspec.Struct):
    """A message of the story."""

    role: str
    content: str
    tool_calls: list[_ClientCall] = []
    tool_call_id: str = ""


class _ClientTool(msgspec.Struct):
    function: _ClientFunction


class _Text(msgspec.Struct):
    text: str = ""


class _ClientText(msgspec.Struct):
    content: str | list[_Text] | None = None


class _ClientChoice(msgspec.Struct):
    message: _ClientText


class _ClientAnswer(msgspec.Struct):
    """What is read of an answer: a chat's choices, a response's output, a message's content."""

    choices: list[_ClientChoice] = []
    output: list[_ClientText] = []
    content: list[_Text] = []


class _Error(msgspec.Struct):
    message: str = ""
    code: str | None = None


class _Refusal(msgspec.Struct):
    error: _Error = msgspec.field(default_factory=_Error)


def _called_tools(messages: Sequence[Message]) -> list[_StoryMessage]:
    return msgspec.convert(messages, list[_StoryMessage])


def _functions() -> Iterator[_ClientFunction]:
    return (tool.function for tool in msgspec.convert(TOOLS, tuple[_ClientTool, ...]))


def _chat_body(messages: Sequence[Message]) -> Json:
    return {"messages": messages, "tools": TOOLS}


def _responses_body(messages: Sequence[Message]) -> Json:
    system, *rest = _called_tools(messages)
    declared = (msgspec.to_builtins(function) for function in _functions())
    tools = [{"type": "function", **function} for function in declared]
    return {"instructions": system.content, "input": [item for told in rest for item in _items(told)], "tools": tools}


def _items(told: _StoryMessage) -> Iterator[Json]:
    if told.role == "tool":
        yield {"type": "function_call_output", "call_id": told.tool_call_id, "output": told.content}
        return
    yield {"role": told.role, "content": told.content}
    for call in told.tool_calls:
        function: Json = {"name": call.function.name, "arguments": call.function.arguments}
        yield {"type": "function_call", "call_id": call.id, **function}


def _messages_body(messages: Sequence[Message]) -> Json:
    system, *rest = _called_tools(messages)
    tools = [
        {"name": function.name, "description": function.description, "input_schema": function.parameters}
        for function in _functions()
    ]
    written = [_message(told) for told in rest]
    return {"system": system.content, "messages": written, "tools": tools, "max_tokens": _OUTPUT}


def _message(told: _StoryMessage) -> Json:
    if told.role == "tool":
        result = {"type": "tool_result", "tool_use_id": told.tool_call_id, "content": told.content}
        return {"role": "user", "content": [result]}
    uses: list[Json] = [
        {
            "type": "tool_use",
            "id": call.id,
            "name": call.function.name,
            "input": json.loads(call.function.arguments),
        }
        for call in told.tool_calls
    ]
    text: Json = {"type": "text", "text": told.content}
    return {"role": told.role, "content": [text, *uses]}


def answer_text(answer: object) -> str:
    """The text of a decoded answer in any dialect."""
    read = msgspec.convert(answer, _ClientAnswer)
    contents = [*(choice.message.content for choice in read.choices), *(item.content for item in read.output)]
    texts = (
        content if isinstance(content, str) else _join_texts(content or ()) for content in [*contents, read.content]
    )
    return "".join(texts)


def _join_texts(parts: Sequence[_Text]) -> str:
    return "".join(part.text for part in parts)


def _code(answer: object) -> str:
    return msgspec.convert(answer, _Refusal).error.code or ""


def _words(answer: object) -> str:
    """Anthropic's errors have no code: they are known by how their message begins."""
    return msgspec.convert(answer, _Refusal).error.message.partition(":")[0].removeprefix(_OF_BOTH)


_OPENAI = "OPENAI_BASE_URL={address}/v1"
CLIENTS: dict[str, Client] = {
    "chat": Client("/v1/chat/completions", _OPENAI, _chat_body, _code),
    "responses": Client("/v1/responses", _OPENAI, _responses_body, _code),
    "messages": Client("/v1/messages", "ANTHROPIC_BASE_URL={address}", _messages_body, _words),
}
