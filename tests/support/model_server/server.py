"""A model server to run offline: three APIs with a hard context window, for tests and benchmarks.

It answers, refuses and streams as OpenAI and Anthropic do, checks tool calls as strictly, plays a summarizer when one
of our prompts asks for a record, and breaks on demand. Its tokens are its own: `token_ratio` makes them dearer than
estimated.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from proxy.cli.demo.prompt import Chat, count_tokens
from proxy.cli.demo.replies import asks_for_summary
from proxy.models.tokenizer import DEFAULT_ENCODING, Tokenizer
from tests.support.model_server import answers
from tests.support.model_server.answers import Answer, Header, ReplyUsage
from tests.support.model_server.apis import APIS, Api
from tests.support.model_server.replies import Reply, Summaries, ordinary, summary

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

WINDOW = 8_192
MODELS = ("demo-8k",)

_VERSION = "/v1"
_MODELS = "/models"
_SPOKEN = {path: api for api in APIS for path in (api.path, api.count_path) if path}
_STREAM = b'"stream"'
_TRUE = re.compile(rb"\s*:\s*true")
_COUNTS_KEPT = 8_192
_GZIP = 31
_QUICK = Reply("The quick brown fox jumps over the lazy dog and runs on through the forest until night falls.")

Wait = Callable[[], Awaitable[object]]
"""What to wait for: an event's `wait`, or a sleep."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes otherwise than usual with one request.

    answer:    sent instead of the usual one.
    before:    awaited before the first byte; `between`: before every further chunk.
    cut_after: bytes of the body after which the connection is closed without an end.
    gzip:      the answer is compressed, chunk by chunk.
    """

    answer: Answer | None = None
    before: Wait | None = None
    between: Wait | None = None
    cut_after: int | None = None
    gzip: bool = False


Script = Callable[[int, bytes], Fault | None]
"""Number and body of a request to what goes otherwise with it."""


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """One request as it arrived, and what came of it; `prompt_tokens` is 0 where nothing was counted."""

    method: str
    path: str
    headers: tuple[Header, ...]
    body: bytes
    prompt_tokens: int
    status: int
    is_summary: bool


@dataclass(frozen=True, slots=True)
class _ReplyOutcome:
    answer: Answer
    prompt_tokens: int = 0
    is_summary: bool = False


class ModelServer:
    """An ASGI app. With `window=None` it neither counts nor reads prompts, and every chat gets the same answer."""

    def __init__(
        self,
        *,
        window: int | None = WINDOW,
        windows: Mapping[str, int] = MappingProxyType({}),
        token_ratio: float = 1.0,
        summaries: Summaries = "faithful",
        script: Script | None = None,
        remember: int = 1_000,
    ) -> None:
        self.summaries = summaries
        self.received: deque[ReceivedRequest] = deque(maxlen=remember)
        self.requests = 0
        self.defects = 0
        self.summary_calls = 0
        self.disconnected = asyncio.Event()
        self.let_summaries_go = asyncio.Event()
        self._window = window
        self._windows = windows
        self._ratio = token_ratio
        self._script = script
        self._count = lru_cache(_COUNTS_KEPT)(partial(Tokenizer().count, encoding=DEFAULT_ENCODING))
        self._quick = {api.path: _ReplyOutcome(api.whole(_QUICK, MODELS[0], 0, ReplyUsage(0, 0))) for api in APIS}
        self._quick_stream = {api.path: _ReplyOutcome(api.stream(_QUICK, MODELS[0], 0, None)) for api in APIS}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _body(receive)
        number = self.requests
        self.requests += 1
        outcome = self._outcome(scope["method"], scope["path"], body, number)
        fault = (self._script and self._script(number, body)) or Fault()
        if fault.answer is not None:
            outcome = replace(outcome, answer=fault.answer)
        self._log(scope, body, outcome)
        if outcome.is_summary and self.summaries == "slow":
            fault = replace(fault, before=self.let_summaries_go.wait)
        await self._send(outcome.answer, fault, receive, send)

    def _log(self, scope: Scope, body: bytes, outcome: _ReplyOutcome) -> None:
        status, headers = outcome.answer.status, tuple(scope["headers"])
        self.summary_calls += outcome.is_summary
        self.received.append(
            ReceivedRequest(
                scope["method"], scope["path"], headers, body, outcome.prompt_tokens, status, outcome.is_summary
            )
        )

    def _outcome(self, method: str, path: str, body: bytes, number: int) -> _ReplyOutcome:
        resource = path.removeprefix(_VERSION)
        api = _SPOKEN.get(resource)
        if method == "POST" and api is not None:
            if self._window is None and not self._windows and resource == api.path:
                return (self._quick_stream if _wants_stream(body) else self._quick)[resource]
            return self._outcome_of(api, body, number, is_counted=resource == api.count_path)
        if method == "GET" and resource == _MODELS:
            models = [{"id": name, "object": "model", "owned_by": "concertina"} for name in self._windows or MODELS]
            return _ReplyOutcome(answers.plain(200, {"object": "list", "data": models}))
        echo = {"method": method, "path": path, "sha256": hashlib.sha256(body).hexdigest()}
        return _ReplyOutcome(answers.plain(200, echo))

    def _outcome_of(self, api: Api, body: bytes, number: int, *, is_counted: bool) -> _ReplyOutcome:
        chat = api.read(body)
        if chat is None:
            return _ReplyOutcome(api.refused(400, "We could not parse the JSON body of your request."))
        if found := list(api.defects(chat.messages)):
            self.defects += len(found)
            return _ReplyOutcome(api.refused(400, found[0]))
        tokens = math.ceil(self._ratio * count_tokens(chat, self._count))
        if is_counted and api.counted is not None:
            return _ReplyOutcome(api.counted(tokens), tokens)
        is_summary = asks_for_summary(chat)
        window = self._windows.get(chat.model, self._window)
        if window is not None and tokens + chat.output > window:
            return _ReplyOutcome(api.too_long(window, tokens, chat.output), tokens, is_summary)
        return _ReplyOutcome(self._answer(api, chat, number, tokens, is_summary=is_summary), tokens, is_summary)

    def _answer(self, api: Api, chat: Chat, number: int, tokens: int, *, is_summary: bool) -> Answer:
        if is_summary and self.summaries == "down":
            return api.refused(500, "The server had an error while processing your request.")
        if is_summary and self.summaries == "refuse":
            return api.refused(401, "Incorrect API key provided.", code="invalid_api_key")
        reply = summary(chat, self.summaries) if is_summary else ordinary(chat, number)
        usage = ReplyUsage(tokens, math.ceil(self._ratio * self._count(reply.text or "call")))
        if chat.stream:
            return api.stream(reply, chat.model, number, usage if chat.wants_usage else None)
        return api.whole(reply, chat.model, number, usage)

    async def _send(self, answer: Answer, fault: Fault, receive: Receive, send: Send) -> None:
        if not await self._wait_for_client(fault.before, receive):
            return
        headers, chunks = answer.headers, answer.chunks
        if fault.gzip:
            headers, chunks = (*headers, (b"content-encoding", b"gzip")), tuple(_gzip(chunks))
        if len(chunks) == 1:
            headers = (*headers, (b"content-length", b"%d" % len(chunks[0])))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        left = math.inf if fault.cut_after is None else fault.cut_after
        for index, chunk in enumerate(chunks):
            if left < len(chunk):
                # An app that returns without having ended its response makes uvicorn close the connection.
                await send({"type": "http.response.body", "body": chunk[: int(left)], "more_body": True})
                return
            left -= len(chunk)
            if index and not await self._wait_for_client(fault.between, receive):
                return
            await send({"type": "http.response.body", "body": chunk, "more_body": index + 1 < len(chunks)})

    async def _wait_for_client(self, wait: Wait | None, receive: Receive) -> bool:
        """Whether the client was still there when the wait was over."""
        if wait is None:
            return True
        waiting, gone = asyncio.ensure_future(wait()), asyncio.ensure_future(receive())
        try:
            await asyncio.wait((waiting, gone), return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                self.disconnected.set()
            return not gone.done()
        finally:
            waiting.cancel()
            gone.cancel()


async def _body(receive: Receive) -> bytes:
    message = await receive()
    if not message.get("more_body"):
        whole: bytes = message.get("body", b"")
        return whole
    pieces = [message["body"]]
    while message.get("more_body"):
        message = await receive()
        pieces.append(message.get("body", b""))
    return b"".join(pieces)


def _wants_stream(body: bytes) -> bool:
    """Whether a stream is asked for, without decoding; quotes inside JSON's texts are escaped and match nothing."""
    at = body.find(_STREAM)
    return at >= 0 and _TRUE.match(body, at + len(_STREAM)) is not None


def _gzip(chunks: tuple[bytes, ...]) -> Iterator[bytes]:
    compressor = zlib.compressobj(wbits=_GZIP)
    for chunk in chunks[:-1]:
        yield compressor.compress(chunk) + compressor.flush(zlib.Z_SYNC_FLUSH)
    yield compressor.compress(chunks[-1]) + compressor.flush()
