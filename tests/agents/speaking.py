"""How a model server answers in the dialects of agents: one text or tool call, whole or streamed, and its refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tests.support import strict_messages, strict_responses
from tests.support.conversations import Json, pairing_defects


@dataclass(frozen=True)
class Said:
    """What a model says: a text, or a call of a tool; and what it thought before, where it was asked to."""

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

    def answer(self, said: Said, tokens: int) -> Json:
        """A whole answer to a prompt of so many tokens."""

    def events(self, said: Said, tokens: int) -> Iterator[Json]:
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

    def answer(self, said: Said, tokens: int) -> Json:
        return self._message(said, [*_thought(said), _block(said)], _reason(said), tokens)

    def events(self, said: Said, tokens: int) -> Iterator[Json]:
        yield {"type": "message_start", "message": self._message(said, [], None, tokens)}
        for index, block in enumerate([*_thought(said), _block(said)]):
            empty, deltas = _parts(block)
            yield {"type": "content_block_start", "index": index, "content_block": empty}
            for delta in deltas:
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        end = {"stop_reason": _reason(said), "stop_sequence": None}
        yield {"type": "message_delta", "delta": end, "usage": {"output_tokens": 60}}
        yield {"type": "message_stop"}

    def _message(self, said: Said, content: list[Json], reason: str | None, tokens: int) -> Json:
        usage = {"input_tokens": tokens, "output_tokens": 60}
        usage |= {"cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
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


def _block(said: Said) -> Json:
    if said.tool:
        return {"type": "tool_use", "id": said.call, "name": said.tool, "input": said.arguments}
    return {"type": "text", "text": said.text}


def _reason(said: Said) -> str:
    return "tool_use" if said.tool else "end_turn"


class Responses:
    path = "/v1/responses"
    array = "input"
    frame = staticmethod(_named)

    def answer(self, said: Said, tokens: int) -> Json:
        return self._response("completed", [_item(said)], tokens)

    def events(self, said: Said, tokens: int) -> Iterator[Json]:
        item = _item(said)
        yield {"type": "response.created", "response": self._response("in_progress", [], None)}
        yield {"type": "response.output_item.added", "output_index": 0, "item": {**item, "status": "in_progress"}}
        if said.text:
            delta: Json = {"item_id": item["id"], "output_index": 0, "content_index": 0, "delta": said.text}
            yield {"type": "response.output_text.delta", **delta}
        yield {"type": "response.output_item.done", "output_index": 0, "item": item}
        yield {"type": "response.completed", "response": self._response("completed", [item], tokens)}

    def _response(self, status: str, output: list[Json], tokens: int | None) -> Json:
        details: Json = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        usage = tokens and {"input_tokens": tokens, "output_tokens": 60, "total_tokens": tokens + 60, **details}
        fields: Json = {"id": "resp_1", "object": "response", "created_at": 1, "status": status, "error": None}
        return {**fields, "incomplete_details": None, "model": "m", "output": output, "usage": usage}

    def too_long(self, tokens: int, window: int) -> Json:
        message = "Your input exceeds the context window of this model. Please adjust your input and try again."
        return self.refusal(message, code="context_length_exceeded")

    def refusal(self, message: str, code: str | None = None) -> Json:
        return {"error": {"message": message, "type": "invalid_request_error", "param": "input", "code": code}}

    def defects(self, body: Json) -> Sequence[str]:
        return strict_responses.defects(body)


def _item(said: Said) -> Json:
    if said.tool:
        called: Json = {"call_id": said.call, "name": said.tool, "arguments": json.dumps(said.arguments)}
        return {"type": "function_call", "id": f"fc_{said.number}", "status": "completed", **called}
    part = {"type": "output_text", "text": said.text, "annotations": []}
    return {
        "type": "message",
        "id": f"msg_{said.number}",
        "status": "completed",
        "role": "assistant",
        "content": [part],
    }


class Chat:
    path = "/v1/chat/completions"
    array = "messages"

    def answer(self, said: Said, tokens: int) -> Json:
        choice = {"index": 0, "message": _message_of(said), "finish_reason": "tool_calls" if said.tool else "stop"}
        return {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [choice],
            **_usage(tokens),
        }

    def events(self, said: Said, tokens: int) -> Iterator[Json]:
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
            f"This model's maximum context length is {window} tokens. However, your messages resulted in {tokens}."
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
        "content": None,
        "tool_calls": [{"id": said.call, "type": "function", "function": function}],
    }


def _usage(tokens: int) -> Json:
    return {"usage": {"prompt_tokens": tokens, "completion_tokens": 60, "total_tokens": tokens + 60}}
