"""The Responses API as the model server speaks it: what it reads, refuses and answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from proxy.cli.demo.prompt import Chat, ContentPart, Function, PromptCall, PromptMessage
from tests.support.model_server.answers import Answer, Json, ReplyUsage, events, named_event, plain, words
from tests.support.model_server.prompt import WITH_USAGE, decode_as, function_tool
from tests.support.model_server.replies import Reply

_CREATED = 1_750_000_000
_INVALID, _SERVERS = "invalid_request_error", 500
_TOO_LONG = "Your input exceeds the context window of this model. Please adjust your input and try again."
# What lies with the provider, which only looks as if it were not there.
_STORED = "item_reference"


class _ResponsesBody(msgspec.Struct):
    input: str | list[dict[str, object]]
    model: str = ""
    instructions: str | None = None
    stream: bool | None = None
    tools: list[dict[str, object]] | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    conversation: object = None


def read(body: bytes) -> Chat | None:
    """The request, or None where the body is none."""
    asked = decode_as(body, _ResponsesBody)
    if asked is None:
        return None
    text = asked.input
    items: list[Json] = [{"role": "user", "content": text}] if isinstance(text, str) else text
    messages = [PromptMessage("instructions", asked.instructions)] if asked.instructions else []
    if asked.previous_response_id or asked.conversation:
        messages.append(PromptMessage(_STORED))
    return Chat(
        messages=[*messages, *map(_message, items)],
        model=asked.model,
        stream=bool(asked.stream),
        tools=[function_tool(tool, "parameters") for tool in asked.tools or ()],
        stream_options=WITH_USAGE,
        max_tokens=asked.max_output_tokens,
    )


def _message(item: Json) -> PromptMessage:
    kind = str(item.get("type") or ("message" if "role" in item else _STORED))
    name = item.get("call_id") or item.get("approval_request_id")
    call = str(name or item.get("id"))
    if kind == "message":
        return PromptMessage(str(item.get("role")), _content(item.get("content")))
    if kind == "reasoning":
        return PromptMessage(kind, [ContentPart(kind)])
    if (kind.endswith("_output") and name) or kind == "mcp_approval_response":
        return PromptMessage("tool", _content(item.get("output")), tool_call_id=call)
    if kind in ("function_call", "custom_tool_call"):
        function = Function(str(item.get("name")), str(item.get("arguments") or item.get("input") or ""))
        return PromptMessage("assistant", tool_calls=[PromptCall(call, function)])
    if name or kind == "mcp_approval_request":
        return PromptMessage(
            "assistant", tool_calls=[PromptCall(call, Function(kind, msgspec.json.encode(item).decode()))]
        )
    return PromptMessage(kind, msgspec.json.encode(item).decode())


def _content(value: object) -> str | list[ContentPart]:
    if not isinstance(value, list):
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()
    parts = [part if isinstance(part, dict) else {} for part in value]
    return [
        ContentPart(str(part.get("type")), text if isinstance(text := part.get("text"), str) else None)
        for part in parts
    ]


def defects(messages: Sequence[PromptMessage]) -> Iterator[str]:
    """What is wrong with its items, in OpenAI's words: results are found by the ids of calls, wherever they stand."""
    stored = any(message.role == _STORED for message in messages)
    open_calls: set[str] = set()
    answered: set[str] = set()
    for at, message in enumerate(messages):
        yield from _of_texts(at, message)
        open_calls.update(call.id for call in message.tool_calls or ())
        if message.role == "reasoning" and not _goes_on(messages[at + 1 :]):
            yield f"Item {at} of type 'reasoning' was provided without its required following item."
        if message.role != "tool":
            continue
        call = message.tool_call_id or ""
        if call in answered or not (call in open_calls or stored):
            yield f"No tool call found for function call output with call_id {call}."
        answered.add(call)
    for call in sorted(open_calls - answered):
        yield f"No tool output found for function call {call}."


def _of_texts(at: int, message: PromptMessage) -> Iterator[str]:
    if message.role not in ("tool", "reasoning") and isinstance(message.content, list):
        if not message.content:
            yield f"Invalid 'input[{at}].content': empty array."
        if any(part.text == "" for part in message.content):
            yield f"Invalid 'input[{at}].content': empty string."


def _goes_on(following: Sequence[PromptMessage]) -> bool:
    """Whether what was thought is followed by what it was thought for."""
    role = next((message.role for message in following if message.role != "reasoning"), None)
    return role not in (None, "user", "system", "developer", "tool")


def too_long(window: int, prompt: int, output: int) -> Answer:
    """OpenAI's literal answer to an input that does not fit the context window."""
    return refusal(400, _TOO_LONG, code="context_length_exceeded")


def refusal(status: int, message: str, *, code: str | None = None) -> Answer:
    kind = "server_error" if status >= _SERVERS else _INVALID
    param = "input" if kind == _INVALID else None
    return plain(status, {"error": {"message": message, "type": kind, "param": param, "code": code}})


def token_count(tokens: int) -> Answer:
    return plain(200, {"object": "response.input_tokens", "input_tokens": tokens})


def whole(reply: Reply, model: str, number: int, usage: ReplyUsage) -> Answer:
    """A response in one piece."""
    return plain(200, _response(model, number, "completed", [_item(reply, number)], usage))


def stream(reply: Reply, model: str, number: int, usage: ReplyUsage | None) -> Answer:
    """A response event by event."""
    begun = _response(model, number, "in_progress", [], None)
    item = _item(reply, number)
    done = _response(model, number, "completed", [item], usage)
    happening = _text_events(reply, item) if reply.call is None else _call_events(item)
    told: list[Json] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        *({"output_index": 0, **event} for event in happening),
        {"type": "response.completed", "response": done},
    ]
    return events(*(named_event({**event, "sequence_number": at}) for at, event in enumerate(told)))


def _text_events(reply: Reply, item: Json) -> Iterator[Json]:
    place: Json = {"item_id": item["id"], "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": []}
    yield {"type": "response.output_item.added", "item": {**item, "status": "in_progress", "content": []}}
    yield {"type": "response.content_part.added", **place, "part": part}
    for word in words(reply.text):
        yield {"type": "response.output_text.delta", **place, "delta": word}
    yield {"type": "response.output_text.done", **place, "text": reply.text}
    yield {"type": "response.content_part.done", **place, "part": {**part, "text": reply.text}}
    yield {"type": "response.output_item.done", "item": item}


def _call_events(item: Json) -> Iterator[Json]:
    arguments = str(item["arguments"])
    yield {"type": "response.output_item.added", "item": {**item, "status": "in_progress", "arguments": ""}}
    for piece in words(arguments):
        yield {"type": "response.function_call_arguments.delta", "item_id": item["id"], "delta": piece}
    yield {"type": "response.function_call_arguments.done", "item_id": item["id"], "arguments": arguments}
    yield {"type": "response.output_item.done", "item": item}


def _item(reply: Reply, number: int) -> Json:
    if reply.call is None:
        part = {"type": "output_text", "text": reply.text, "annotations": []}
        said: Json = {"type": "message", "id": f"msg_{number:08d}", "status": "completed"}
        return {**said, "role": "assistant", "content": [part]}
    called: Json = {"type": "function_call", "id": f"fc_{number:08d}", "status": "completed"}
    function = reply.call.function
    return {**called, "call_id": reply.call.id, "name": function.name, "arguments": function.arguments}


def _response(model: str, number: int, status: str, output: list[Json], usage: ReplyUsage | None) -> Json:
    fields: Json = {"id": f"resp_{number:08d}", "object": "response", "created_at": _CREATED, "status": status}
    rest: Json = {"error": None, "incomplete_details": None, "model": model, "output": output}
    return {**fields, **rest, "usage": usage and _usage(usage)}


def _usage(usage: ReplyUsage) -> Json:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt + usage.completion,
    }
