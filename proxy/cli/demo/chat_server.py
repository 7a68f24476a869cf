"""The demo's model: a chat completions server with a small window that needs no network."""

from __future__ import annotations

from functools import lru_cache, partial

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from proxy.cli.demo.prompt import Chat, count_tokens
from proxy.cli.demo.replies import answer, asks_for_summary, summarize
from proxy.models.tokenizer import DEFAULT_ENCODING, Tokenizer

WINDOW = 8_192
MODEL = "demo-8k"

_CREATED = 1_750_000_000
_COUNTS_KEPT = 8_192

Json = dict[str, object]


class ChatServer:
    """Serve chat completions: count tokens, refuse what exceeds the window, answer, and summarize for the proxy."""

    def __init__(self, window: int = WINDOW) -> None:
        """Create a server with a window of so many tokens."""
        self.summaries = 0
        self.summary_tokens = 0
        self._window = window
        self._count = lru_cache(_COUNTS_KEPT)(partial(Tokenizer().count, encoding=DEFAULT_ENCODING))
        self.app = Starlette(
            routes=[
                Route("/v1/chat/completions", self._complete, methods=["POST"]),
                Route("/v1/models", self._list_models),
            ]
        )

    async def _complete(self, request: Request) -> Response:
        return self.respond(await request.body())

    async def _list_models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "concertina"}]})

    def respond(self, body: bytes) -> Response:
        """Return the response to a chat completion request."""
        try:
            chat = msgspec.json.decode(body, type=Chat)
        except (ValueError, msgspec.DecodeError):
            return _refuse("We could not parse the JSON body of your request.")
        prompt = count_tokens(chat, self._count)
        if prompt + chat.output > self._window:
            return _refuse(
                f"This model's maximum context length is {self._window} tokens. However, you requested "
                f"{prompt + chat.output} tokens ({prompt} in the messages, {chat.output} in the completion). "
                "Please reduce the length of the messages or completion.",
                "context_length_exceeded",
            )
        is_summary = asks_for_summary(chat)
        text = summarize(chat) if is_summary else answer(chat)
        completion = self._count(text)
        if is_summary:
            self.summaries += 1
            self.summary_tokens += prompt + completion
        total = prompt + completion
        usage: Json = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}
        return _stream(chat, text, usage) if chat.stream else _completion(chat, text, usage)


def _completion(chat: Chat, text: str, usage: Json) -> Response:
    message = {"role": "assistant", "content": text, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    return JSONResponse({**_envelope(chat, "chat.completion"), "choices": [choice], "usage": usage})


def _stream(chat: Chat, text: str, usage: Json) -> Response:
    """Return the text, its end, and usage if it is requested, as server-sent events."""
    delta = {"role": "assistant", "content": text}
    chunks: list[Json] = [
        {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]},
    ]
    if chat.wants_usage:
        chunks.append({"choices": [], "usage": usage})
    envelope = _envelope(chat, "chat.completion.chunk")
    events = [b"data: " + msgspec.json.encode({**envelope, **chunk}) + b"\n\n" for chunk in chunks]
    return Response(b"".join(events) + b"data: [DONE]\n\n", media_type="text/event-stream")


def _envelope(chat: Chat, kind: str) -> Json:
    return {"id": "chatcmpl-demo", "object": kind, "created": _CREATED, "model": chat.model}


def _refuse(message: str, code: str | None = None) -> Response:
    error = {"message": message, "type": "invalid_request_error", "param": "messages", "code": code}
    return JSONResponse({"error": error}, 400)
