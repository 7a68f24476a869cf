"""Write the demo's session as requests of each dialect."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from proxy.cli.demo.story import TOOLS, histories
from tests.support.model_server import MODELS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.support.conversations import Json

_OUTPUT = 256
_FUNCTIONS: list[Json] = [tool["function"] for tool in TOOLS]  # type: ignore[misc]


def story_requests(dialect: str) -> list[bytes]:
    """Return the bodies of the session's requests in order."""
    return [json.dumps({"model": MODELS[0], **_BODIES[dialect](history)}).encode() for history in histories()]


def _chat_body(messages: Sequence[Json]) -> Json:
    return {"messages": messages, "tools": TOOLS}


def _responses_body(messages: Sequence[Json]) -> Json:
    system, *rest = messages
    tools = [{"type": "function", **function} for function in _FUNCTIONS]
    items = [item for message in rest for item in _items(message)]
    return {"instructions": system["content"], "input": items, "tools": tools}


def _items(message: Json) -> Iterator[Json]:
    if message["role"] == "tool":
        yield {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
        return
    yield {"role": message["role"], "content": message["content"]}
    for call in message.get("tool_calls", ()):
        yield {"type": "function_call", "call_id": call["id"], **call["function"]}


def _messages_body(messages: Sequence[Json]) -> Json:
    system, *rest = messages
    tools = [
        {"name": function["name"], "description": function["description"], "input_schema": function["parameters"]}
        for function in _FUNCTIONS
    ]
    written = [_message(message) for message in rest]
    return {"system": system["content"], "messages": written, "tools": tools, "max_tokens": _OUTPUT}


def _message(message: Json) -> Json:
    if message["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
        return {"role": "user", "content": [result]}
    text = {"type": "text", "text": message["content"]}
    return {"role": message["role"], "content": [text, *map(_tool_use, message.get("tool_calls", ()))]}


def _tool_use(call: Json) -> Json:
    function = call["function"]
    return {"type": "tool_use", "id": call["id"], "name": function["name"], "input": json.loads(function["arguments"])}


_BODIES: Mapping[str, Callable[[Sequence[Json]], Json]] = {
    "chat": _chat_body,
    "responses": _responses_body,
    "messages": _messages_body,
}
