"""One HTTP exchange with a client: its request's body, the answer, and noticing when it leaves."""

import asyncio
import io
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from typing import Any

from proxy.errors import BodyTooLargeError, ClientGoneError, ProxyError
from proxy.runtime.deadlines import Ending, within
from proxy.server.head import RequestHead
from proxy.server.headers import Headers, first

# ASGI's own types: events and scopes are open dictionaries by specification.
Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]


# Seconds to go on reading what a client sends after it was refused.
_LINGER = 3.0
_REQUEST_ID = b"x-request-id"
_FIT = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:/=-]{0,127}")
_EVENTS: Headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]


class Exchange:
    """Wraps an ASGI scope, receive and send. Only one reader at a time: the body first, then the disconnect.

    status, sent: what the client was told, and the bytes of the answer's body so far.
    comments:     how many of them told a client that its request is still being worked on.
    takes_event:  whether an event of ours could follow what of the answer was written.
    ended_by:     why what is done for it was ended before it was done.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.head = RequestHead(scope["method"], _target(scope), scope["headers"])
        self.started = False
        self.status = 0
        self.sent = 0
        self.comments = 0
        self._answer: Headers = []
        self.takes_event = False
        self.ended_by: ProxyError | ClientGoneError | None = None
        self._ending: Ending | None = None
        self._begun = False
        self._commenting: asyncio.Task[None] | None = None
        self._receive = receive
        self._send = send
        self._body_read = asyncio.Event()

    @property
    def request_id(self) -> str | None:
        """What the client, else the upstream, calls this request; None where neither does in a form fit for a log."""
        given = (self.head.header(_REQUEST_ID), first(self._answer, _REQUEST_ID))
        return next((value.decode() for value in given if value and _FIT.fullmatch(value)), None)

    async def body(self, limit: int, hold: Callable[[int], None] = lambda _: None) -> bytes:
        """The whole body; raises BodyTooLargeError past `limit` bytes, before they are buffered.

        `hold` is told of every byte before it is kept.
        """
        whole = io.BytesIO()  # joining parts would hold up others for a millisecond a megabyte
        async for chunk in self.chunks(limit):
            hold(len(chunk))
            whole.write(chunk)
        return whole.getvalue()

    async def chunks(self, limit: int) -> AsyncIterator[bytes]:
        """The body as it arrives; raises BodyTooLargeError and ClientGoneError."""
        declared = self.head.header(b"content-length") or b""
        if declared.isdigit() and int(declared[:20]) > limit:
            raise _too_large(limit)
        size = 0
        more = True
        while more:
            event = await self._receive()
            if event["type"] == "http.disconnect":
                raise ClientGoneError
            more = event.get("more_body", False)
            if not more:
                self._body_read.set()
            chunk: bytes = event.get("body", b"")
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
            if chunk:
                yield chunk

    async def disconnected(self) -> None:
        """Return when the client has left, after its body was read."""
        await self._body_read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    @contextmanager
    def endable(self) -> Iterator[None]:
        """Let `end` end what the current task does inside; raises what it was ended by then."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - every coroutine runs in a task
        self._ending = Ending(task)
        try:
            yield
        except asyncio.CancelledError:
            if self.ended_by is None:
                raise
            raise self.ended_by from None
        finally:
            self._ending.stop()
            self._ending = None

    def end(self, error: ProxyError | ClientGoneError) -> None:
        """End what is done for this exchange, for certain. The first error is the one that is told."""
        if self._ending is not None and self.ended_by is None:
            self.ended_by = error
            self._ending.begin()

    async def while_connected(self, work: Awaitable[None]) -> None:
        """Do `work`, and end it as soon as the client leaves: by a ClientGoneError."""

        async def watch() -> None:
            await self.disconnected()
            self.end(ClientGoneError())

        watching = asyncio.create_task(watch())
        try:
            await work
        finally:
            watching.cancel()
            self.end_comments()

    @contextmanager
    def commenting(self, interval: float, headers: Callable[[], Headers]) -> Iterator[None]:
        """When what is done inside takes over `interval` seconds, begin an event stream with a comment.

        Further ones follow at that interval until `end_comments`. `headers` are asked for when they are needed.
        """
        begin = asyncio.get_running_loop().call_later(interval, self._begin, interval, headers)
        try:
            yield
        finally:
            begin.cancel()

    def end_comments(self) -> bool:
        """Nothing but the answer is written from now on; tells whether comments have begun it."""
        if self._commenting is not None:
            self._commenting.cancel()
        return self._begun

    def _begin(self, interval: float, headers: Callable[[], Headers]) -> None:
        if self._commenting is None:
            self._commenting = asyncio.create_task(self._comment(interval, headers))

    async def _comment(self, interval: float, headers: Callable[[], Headers]) -> None:
        """Cancelled while it waits, and no later: what it began to write is written."""
        await self.start(200, [*_EVENTS, *headers()])
        self._begun = True
        while True:
            await self.write(self.head.dialect.answers.WAITING, more=True)
            self.comments += 1
            self.takes_event = True
            await asyncio.sleep(interval)

    async def start(self, status: int, headers: Headers) -> None:
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        self._answer = headers
        self.started = True
        self.status = status

    async def write(self, chunk: bytes, *, more: bool) -> None:
        """Waits while the client reads slower than we write."""
        await self._send({"type": "http.response.body", "body": chunk, "more_body": more})
        self.sent += len(chunk)

    async def end_with_error(self, error: object, status: int) -> None:
        """End a stream that comments began."""
        await self.write(self.head.dialect.answers.error_event(error, status, ends=True), more=False)

    async def break_off(self, error: ProxyError) -> None:
        """End an answer that is not finished: with the error, and so that no client takes it for complete."""
        if not self.started:
            await self._refuse(error)
        elif self.takes_event:
            await self.write(self.head.dialect.answers.error_event(error.fields(), error.status, ends=False), more=True)

    async def refuse(self, error: ProxyError) -> None:
        """Answer with an error of ours, unless an answer has begun already."""
        if self._begun:
            await self.end_with_error(error.fields(), error.status)
        elif not self.started:
            await self._refuse(error)

    async def _refuse(self, error: ProxyError) -> None:
        body = self.head.dialect.answers.error_body(error.fields(), error.status)
        length = (b"content-length", str(len(body)).encode())
        # Of a body that was not read, nobody can tell where the next request begins.
        close = [] if self._body_read.is_set() else [(b"connection", b"close")]
        await self.start(error.status, [*error.headers(), length, *close])
        if close:
            await self.write(body, more=True)
            await self._linger()
            body = b""
        await self.write(body, more=False)

    async def _linger(self) -> None:
        """Read on and throw away: closing on unread bytes resets the connection, and the answer may be lost with it."""
        with suppress(TimeoutError):
            async with within(_LINGER):
                while (await self._receive()).get("more_body", False):
                    pass


def _too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"The request body is over the limit of {limit:,} bytes (server.max_body_bytes).")


def _target(scope: Scope) -> str:
    """Path and query as the client wrote them."""
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope.get("query_string", b"")
    return (path.partition(b"?")[0] + (b"?" + query if query else b"")).decode("latin-1")
