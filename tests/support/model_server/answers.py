"""Answers of the model server as bytes, and chat completions the way OpenAI writes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from tests.support.model_server.replies import Reply

Header = tuple[bytes, bytes]
Json = dict[str, object]

JSON: Header = (b"content-type", b"application/json")
EVENTS: Header = (b"content-type", b"text/event-stream; charset=utf-8")
DONE = b"data: [DONE]\n\n"

_INVALID, _SERVERS = 400, 500
_CREATED = 1_750_000_000
_WORD = re.compile(r"\S+\s*|\s+")


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP answer; several chunks are sent one by one, a single one with its length."""

    status: int
    headers: tuple[Header, ...]
    chunks: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class ReplyUsage:
    """Tokens of a prompt and of what was answered."""

    prompt: int
    completion: int

    @property
    def cached(self) -> int:
        """Half of every prompt is read from a cache, where that is reported at all."""
        return self.prompt // 2

    def as_json(self) -> dict[str, int]:
        total = self.prompt + self.completion
        return {"prompt_tokens": self.prompt, "completion_tokens": self.completion, "total_tokens": total}


def plain(status: int, value: object, *headers: Header) -> Answer:
    """Any value as JSON."""
    return Answer(status, (JSON, *headers), (msgspec.json.encode(value),))


def events(*chunks: bytes) -> Answer:
    """A stream of server-sent events."""
    return Answer(200, (EVENTS,), chunks)


def event(value: object) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def named_event(value: Json) -> bytes:
    """One server-sent event under the name of its type."""
    return b"event: " + str(value["type"]).encode() + b"\n" + event(value)


def words(text: str) -> list[str]:
    """The pieces in which a text is streamed."""
    return _WORD.findall(text)


def error(status: int, message: str, *, kind: str, param: str | None = None, code: str | None = None) -> Answer:
    """An error in OpenAI's shape; `kind` is its type."""
    return plain(status, {"error": {"message": message, "type": kind, "param": param, "code": code}})


def refused(status: int, message: str, *, code: str | None = None) -> Answer:
    kind = "server_error" if status >= _SERVERS else "invalid_request_error"
    return error(status, message, kind=kind, param="messages" if status == _INVALID else None, code=code)


def too_long(window: int, prompt: int, output: int) -> Answer:
    """OpenAI's literal answer to a request that does not fit the context window."""
    if prompt > window:
        asked = f"your messages resulted in {prompt} tokens. Please reduce the length of the messages."
    else:
        asked = (
            f"you requested {prompt + output} tokens ({prompt} in the messages, {output} in the completion). "
            "Please reduce the length of the messages or completion."
        )
    message = f"This model's maximum context length is {window} tokens. However, {asked}"
    return refused(400, message, code="context_length_exceeded")


def completion(reply: Reply, model: str, number: int, usage: ReplyUsage) -> Answer:
    """A chat completion in one piece."""
    message: dict[str, object] = {"role": "assistant", "content": reply.text or None, "refusal": None}
    if reply.call is not None:
        message["tool_calls"] = [{"type": "function", **msgspec.to_builtins(reply.call)}]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reply.finish_reason}
    return plain(200, _envelope("chat.completion", model, number) | {"choices": [choice], "usage": usage.as_json()})


def stream(reply: Reply, model: str, number: int, usage: ReplyUsage | None) -> Answer:
    """A chat completion word by word; with `usage` in a last chunk if it is wanted."""
    envelope = _envelope("chat.completion.chunk", model, number)
    deltas: list[dict[str, object]] = [{"role": "assistant", "content": "" if reply.call is None else None}]
    deltas += _deltas(reply)
    chunks = [event(envelope | {"choices": [_choice(delta, None)]}) for delta in deltas]
    chunks.append(event(envelope | {"choices": [_choice({}, reply.finish_reason)]}))
    if usage is not None:
        chunks.append(event(envelope | {"choices": [], "usage": usage.as_json()}))
    return events(*chunks, DONE)


def _deltas(reply: Reply) -> Iterator[Json]:
    if reply.call is None:
        for word in words(reply.text):
            yield {"content": word}
        return
    function = reply.call.function
    started = {
        "index": 0,
        "id": reply.call.id,
        "type": "function",
        "function": {"name": function.name, "arguments": ""},
    }
    yield {"tool_calls": [started]}
    for piece in words(function.arguments):
        yield {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}


def _choice(delta: dict[str, object], finish_reason: str | None) -> dict[str, object]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _envelope(kind: str, model: str, number: int) -> dict[str, object]:
    return {"id": f"chatcmpl-{number:08d}", "object": kind, "created": _CREATED, "model": model}
