"""How a model server answers in the dialects of agents: one text or tool call, whole or streamed, and its refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from policies.price import Tokens
from tests.support import strict_messages, strict_responses
from tests.support.conversations import Json, pairing_defects


@dataclass(frozen=True)
class Said:
    """What a model says: a text, a call of a tool, or both; and what it thought before, where it was asked to."""

    number: int
    text: str = ""
    tool: str = ""
    arguments: Json | None = None
    thought: Json | None = None

    @property
    def call(self) -> str:
        return f"call_{self.number}"


class Speech(Protocol):
    """One dialect. `path` is of its requests; `array` where their items stand."""

    path: str
    array: str

    def answer(self, said: Said, tokens: Tokens) -> Json:
        """A whole answer to a call of so many tokens."""

    def events(self, said: Said, tokens: Tokens) -> Iterator[Json]:
        """The same as a stream."""

    def frame(self, event: Json) -> bytes:
        """One event as it is sent."""

    def too_long(self, tokens: int, window: int) -> Json:
        """The body of a refusal."""

    def refusal(self, message: str) -> Json:
        """The same in other words."""

    def defects(self, body: Json) -> Sequence[str]:
        """Why a request would be refused."""


def _named(event: Json) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


class Messages:
    path = "/v1/messages"
    array = "messages"
    frame = staticmethod(_named)

    def answer(self, said: Said, tokens: Tokens) -> Json:
        return self._message(said, [*_thought(said), *_blocks(said)], _reason(said), tokens)

    def events(self, said: Said, tokens: Tokens) -> Iterator[Json]:
        yield {"type": "message_start", "message": self._message(said, [], None, tokens)}
        for index, block in enumerate([*_thought(said), *_blocks(said)]):
            empty, deltas = _parts(block)
            yield {"type": "content_block_start", "index": index, "content_block": empty}
            for delta in deltas:
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        end = {"stop_reason": _reason(said), "stop_sequence": None}
        yield {"type": "message_delta", "delta": end, "usage": {"output_tokens": tokens.output}}
        yield {"type": "message_stop"}

    def _message(self, said: Said, content: list[Json], reason: str | None, tokens: Tokens) -> Json:
        written = {"ephemeral_5m_input_tokens": tokens.written, "ephemeral_1h_input_tokens": tokens.written_long}
        created = sum(written.values())
        usage: Json = {"input_tokens": tokens.prompt - tokens.cached - created, "output_tokens": tokens.output}
        usage |= {"cache_read_input_tokens": tokens.cached, "cache_creation_input_tokens": created}
        usage |= {"cache_creation": written}
        fields: Json = {"id": f"msg_{said.number}", "type": "message", "role": "assistant", "content": content}
        return {**fields, "model": "m", "stop_reason": reason, "stop_sequence": None, "usage": usage}

    def too_long(self, tokens: int, window: int) -> Json:
        return self.refusal(f"prompt is too long: {tokens} tokens > {window} maximum")

    def refusal(self, message: str) -> Json:
        return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}

    def defects(self, body: Json) -> Sequence[str]:
        return strict_messages.defects(body)


def _thought(said: Said) -> list[Json]:
    return [said.thought] if said.thought else []


def _parts(block: Json) -> tuple[Json, list[Json]]:
    """A block as it begins, and what is added to it."""
    match block["type"]:
        case "thinking":
            thought = {"type": "thinking_delta", "thinking": block["thinking"]}
            signed = {"type": "signature_delta", "signature": block["signature"]}
            return {**block, "thinking": "", "signature": ""}, [thought, signed]
        case "tool_use":
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
        case _:
            return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]


def _blocks(said: Said) -> list[Json]:
    text: Json = {"type": "text", "text": said.text}
    call: Json = {"type": "tool_use", "id": said.call, "name": said.tool, "input": said.arguments}
    return [*([text] if said.text else []), *([call] if said.tool else [])]


def _reason(said: Said) -> str:
    return "tool_use" if said.tool else "end_turn"


class Responses:
    path = "/v1/responses"
    array = "input"
    frame = staticmethod(_named)

    def answer(self, said: Said, tokens: Tokens) -> Json:
        return self._response(said, "completed", _items(said), tokens)

    def events(self, said: Said, tokens: Tokens) -> Iterator[Json]:
        yield {"type": "response.created", "response": self._response(said, "in_progress", [], None)}
        for index, item in enumerate(_items(said)):
            begun = {**item, "status": "in_progress"}
            yield {"type": "response.output_item.added", "output_index": index, "item": begun}
            if item["type"] == "message":
                delta: Json = {"item_id": item["id"], "output_index": index, "content_index": 0, "delta": said.text}
                yield {"type": "response.output_text.delta", **delta}
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
        yield {"type": "response.completed", "response": self._response(said, "completed", _items(said), tokens)}

    def _response(self, said: Said, status: str, output: list[Json], tokens: Tokens | None) -> Json:
        usage = tokens and {
            "input_tokens": tokens.prompt,
            "input_tokens_details": {"cached_tokens": tokens.cached},
            "output_tokens": tokens.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": tokens.prompt + tokens.output,
        }
        name = f"resp_{said.number}"
        fields: Json = {"id": name, "object": "response", "created_at": 1, "status": status, "error": None}
        return {**fields, "incomplete_details": None, "model": "m", "output": output, "usage": usage}

    def too_long(self, tokens: int, window: int) -> Json:
        message = "Your input exceeds the context window of this model. Please adjust your input and try again."
        return self.refusal(message, code="context_length_exceeded")

    def refusal(self, message: str, code: str | None = None) -> Json:
        return {"error": {"message": message, "type": "invalid_request_error", "param": "input", "code": code}}

    def defects(self, body: Json) -> Sequence[str]:
        items = body["input"]
        return [
            *strict_responses.defects(body),
            *(strict_responses.repeated_ids(items) if isinstance(items, list) else ()),
        ]


def _items(said: Said) -> list[Json]:
    items: list[Json] = []
    if said.text:
        part = {"type": "output_text", "text": said.text, "annotations": []}
        message: Json = {"type": "message", "id": f"msg_{said.number}", "status": "completed", "role": "assistant"}
        items.append({**message, "content": [part]})
    if said.tool:
        called: Json = {"call_id": said.call, "name": said.tool, "arguments": json.dumps(said.arguments)}
        items.append({"type": "function_call", "id": f"fc_{said.number}", "status": "completed", **called})
    return items


class Chat:
    path = "/v1/chat/completions"
    array = "messages"

    def answer(self, said: Said, tokens: Tokens) -> Json:
        choice = {"index": 0, "message": _message_of(said), "finish_reason": "tool_calls" if said.tool else "stop"}
        return {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [choice],
            **_usage(tokens),
        }

    def events(self, said: Said, tokens: Tokens) -> Iterator[Json]:
        message = _message_of(said)
        calls = [{**call, "index": 0} for call in message.get("tool_calls", ())]  # type: ignore[attr-defined]
        delta = {**message, "tool_calls": calls} if calls else message
        reason = "tool_calls" if said.tool else "stop"
        chunk: Json = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        yield {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        yield {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
        yield {**chunk, "choices": [], **_usage(tokens)}

    @staticmethod
    def frame(event: Json) -> bytes:
        done = b"data: [DONE]\n\n" if not event["choices"] else b""
        return f"data: {json.dumps(event)}\n\n".encode() + done

    def too_long(self, tokens: int, window: int) -> Json:
        message = (
            f"This model's maximum context length is {window} tokens. However, your messages resulted in {tokens} "
            "tokens. Please reduce the length of the messages."
        )
        return self.refusal(message, code="context_length_exceeded")

    def refusal(self, message: str, code: str | None = None) -> Json:
        return {"error": {"message": message, "type": "invalid_request_error", "code": code}}

    def defects(self, body: Json) -> Sequence[str]:
        return [*pairing_defects(body["messages"])]  # type: ignore[arg-type]


def _message_of(said: Said) -> Json:
    if not said.tool:
        return {"role": "assistant", "content": said.text}
    function = {"name": said.tool, "arguments": json.dumps(said.arguments)}
    return {
        "role": "assistant",
        "content": said.text or None,
        "tool_calls": [{"id": said.call, "type": "function", "function": function}],
    }


def _usage(tokens: Tokens) -> Json:
    usage: Json = {"prompt_tokens": tokens.prompt, "completion_tokens": tokens.output}
    usage |= {"total_tokens": tokens.prompt + tokens.output}
    return {"usage": usage | {"prompt_tokens_details": {"cached_tokens": tokens.cached}}}
