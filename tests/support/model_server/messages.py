"""The Messages API as the model server speaks it: what it reads, refuses and answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import msgspec

from proxy.cli.demo.prompt import Chat, ContentPart, Function, PromptCall, PromptMessage
from tests.support.model_server.answers import Answer, Json, ReplyUsage, events, named_event, plain, words
from tests.support.model_server.prompt import WITH_USAGE, decode_as, function_tool
from tests.support.model_server.replies import Reply

_KINDS = {401: "authentication_error", 500: "api_error"}
_RESULT = "tool_result"


class _ContentBlock(msgspec.Struct):
    type: str = "text"
    text: str | None = None
    id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"{}")
    tool_use_id: str = ""
    content: object = None
    thinking: str | None = None


class _MessageText(msgspec.Struct):
    role: str
    content: str | list[_ContentBlock]


class _MessagesBody(msgspec.Struct):
    messages: list[_MessageText]
    model: str = ""
    system: str | list[_ContentBlock] = ""
    stream: bool = False
    tools: list[dict[str, object]] = []
    max_tokens: int | None = None


def read(body: bytes) -> Chat | None:
    """The request, or None where the body is none."""
    asked = decode_as(body, _MessagesBody)
    if asked is None:
        return None
    system = [PromptMessage("instructions", _content(asked.system))] if asked.system else []
    return Chat(
        messages=[*system, *(message for said in asked.messages for message in _messages(said))],
        model=asked.model,
        stream=asked.stream,
        tools=[function_tool(tool, "input_schema") for tool in asked.tools],
        stream_options=WITH_USAGE,
        max_tokens=asked.max_tokens,
    )


def _messages(said: _MessageText) -> Iterator[PromptMessage]:
    """Its results one by one, and what stands between them, in the order in which they stand."""
    if isinstance(said.content, str) or not said.content:
        yield PromptMessage(said.role, said.content if isinstance(said.content, str) else [])
        return
    for is_result, blocks in groupby(said.content, key=lambda block: block.type == _RESULT):
        if is_result:
            yield from (
                PromptMessage("tool", _result(block.content), tool_call_id=block.tool_use_id) for block in blocks
            )
            continue
        together = list(blocks)
        calls = [block for block in together if block.type == "tool_use"]
        made = [PromptCall(call.id, Function(call.name, bytes(call.input).decode())) for call in calls]
        content = [_part(block) for block in together if block.type != "tool_use"] or None
        yield PromptMessage(said.role, content, tool_calls=made or None)


def _content(value: str | list[_ContentBlock]) -> str | list[ContentPart]:
    return value if isinstance(value, str) else [_part(block) for block in value]


def _part(block: _ContentBlock) -> ContentPart:
    """Thinking is read as it stands; without text it counts like an image, as all that is no text."""
    return ContentPart(block.type, (block.thinking or None) if block.type == "thinking" else block.text)


def _result(content: object) -> str | list[ContentPart]:
    return _content(msgspec.convert(content or "", str | list[_ContentBlock]))


def defects(messages: Sequence[PromptMessage]) -> Iterator[str]:
    """What is wrong with its messages, in Anthropic's words: results stand right behind their calls, and come first."""
    said = [message for message in messages if message.role != "instructions"]
    if not said or said[0].role != "user":
        yield "messages: first message must use the user role"
    open_calls: set[str] = set()
    before = ""
    for message in said:
        if message.content == [] or (message.content == "" and message.role != "tool"):
            yield "messages: all messages must have non-empty content"
        if isinstance(message.content, list) and any(part.text == "" for part in message.content):
            yield "messages: text content blocks must be non-empty"
        if message.role == "tool":
            yield from _wrong_result(message.tool_call_id or "", open_calls)
        elif message.role != "assistant" or before != "assistant":
            yield from _unanswered_calls(open_calls)
            open_calls = set()
        yield from _misplaced_items(before, message.role)
        open_calls |= {call.id for call in message.tool_calls or ()}
        before = message.role
    yield from _unanswered_calls(open_calls)


def _wrong_result(call: str, open_calls: set[str]) -> Iterator[str]:
    if call not in open_calls:
        yield f"messages: unexpected `tool_use_id` found in `tool_result` blocks: {call}."
    open_calls.discard(call)


def _unanswered_calls(calls: set[str]) -> Iterator[str]:
    if calls:
        listed = ", ".join(sorted(calls))
        yield f"messages: `tool_use` ids were found without `tool_result` blocks immediately after: {listed}."


def _misplaced_items(before: str, role: str) -> Iterator[str]:
    if role == "system" and before not in ("user", "tool", "system"):
        yield "messages: role 'system' must follow a user message"
    if before == "system" and role not in ("assistant", "system"):
        yield "messages: role 'system' must come before an assistant message or last"


def too_long(window: int, prompt: int, output: int) -> Answer:
    """Anthropic's literal answer to a request that does not fit the context window."""
    if prompt > window:
        return refusal(400, f"prompt is too long: {prompt} tokens > {window} maximum")
    sizes = f"{prompt} + {output} > {window}"
    way_out = "decrease input length or `max_tokens` and try again"
    return refusal(400, f"input length and `max_tokens` exceed context limit: {sizes}, {way_out}")


def refusal(status: int, message: str, *, code: str | None = None) -> Answer:
    error = {"type": _KINDS.get(status, "invalid_request_error"), "message": message}
    return plain(status, {"type": "error", "error": error, "request_id": "req_demo"})


def token_count(tokens: int) -> Answer:
    return plain(200, {"input_tokens": tokens})


def whole(reply: Reply, model: str, number: int, usage: ReplyUsage) -> Answer:
    """A message in one piece."""
    billed = _usage(usage, usage.completion)
    return plain(200, _message(model, number, [_block(reply)], _stop_reason(reply), billed))


def stream(reply: Reply, model: str, number: int, usage: ReplyUsage | None) -> Answer:
    """A message event by event."""
    usage = usage or ReplyUsage(0, 0)
    if reply.call is None:
        begun: Json = {"type": "text", "text": ""}
        deltas: list[Json] = [{"type": "text_delta", "text": word} for word in words(reply.text)]
    else:
        begun = {**_block(reply), "input": {}}
        pieces = words(reply.call.function.arguments)
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    told: list[Json] = [
        {"type": "message_start", "message": _message(model, number, [], None, _usage(usage, 1))},
        {"type": "content_block_start", "index": 0, "content_block": begun},
        {"type": "ping"},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": _stop_reason(reply), "stop_sequence": None},
            "usage": _usage(usage, usage.completion),
        },
        {"type": "message_stop"},
    ]
    return events(*map(named_event, told))


def _block(reply: Reply) -> Json:
    if reply.call is None:
        return {"type": "text", "text": reply.text}
    function = reply.call.function
    return {"type": "tool_use", "id": reply.call.id, "name": function.name, "input": msgspec.Raw(function.arguments)}


def _stop_reason(reply: Reply) -> str:
    return "end_turn" if reply.call is None else "tool_use"


def _message(model: str, number: int, content: list[Json], reason: str | None, usage: Json) -> Json:
    said: Json = {"id": f"msg_{number:08d}", "type": "message", "role": "assistant", "model": model}
    return {**said, "content": content, "stop_reason": reason, "stop_sequence": None, "usage": usage}


def _usage(usage: ReplyUsage, output: int) -> Json:
    """What a cache has read is told apart from the rest of the prompt."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": output,
    }
