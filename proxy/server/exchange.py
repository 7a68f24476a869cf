"""One HTTP exchange with a client: its request, the answer, and noticing when it leaves."""

import asyncio
import re
import time
from collections.abc import Callable
from typing import Protocol

from proxy.errors import ClientGoneError, ProxyError
from proxy.runtime.deadlines import RepeatedCancel
from proxy.server.answer_head import answer_head
from proxy.server.connections import request_body
from proxy.server.connections.request_body import RequestBody
from proxy.server.error_shape import ErrorShape
from proxy.server.head import RequestHead
from proxy.server.headers import REQUEST_ID, Headers, first
from proxy.server.waiting import KeepAlive

# Up to here what is written is put together; copying more costs more than further writes.
_JOINED = 64 * 1024
_GIVEN_ID = b"x-request-id"
_FIT = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:/=-]{0,127}")


class ExchangeConnection(request_body.PausableConnection, Protocol):
    """The client's connection, as far as an exchange uses it."""

    def error_shape(self, head: RequestHead) -> ErrorShape:
        """How the client of such a request is told of errors."""

    def next_id(self) -> str:
        """For an exchange of this connection: 16 hex digits that no other one has."""

    def on_response_complete(self) -> None:
        """The next request may come."""


class Exchange:
    """Told by the connection when the client has left: `lose`.

    id:           ours for this request, as its answer says and the log.
    began:        when its turn had come, in seconds that only go forward.
    keep_alive:   whether another request may follow on the connection.
    request:      its body.
    disconnected: the client has left; nothing is written any more.
    status, sent: what the client was told, and the bytes of the answer's body so far.
    comments:     signs of life that were written.
    waiting:      writes them; None if the client hears none. is_begun_by_sign: whether one has begun the response.
    takes_event:  whether an event of ours could follow what of the answer was written.
    shows_id:     whether its answer says its id.
    on_writable:  called when the client takes on, after `put` had no more room.
    task:         what it goes on in, once something has to be waited for.
    ended_by:     why what is done for it was ended before it was done.
    """

    def __init__(
        self,
        head: RequestHead,
        connection: ExchangeConnection,
        *,
        keep_alive: bool,
        expects: bool,
        version: str = "1.1",
    ) -> None:
        """`expects`: the client sends its body only when it was told to go on. `version`: of HTTP."""
        self.version = version
        self.shows_id = True
        self.head = head
        self.request = RequestBody(head, connection, expects=expects)
        self.id = connection.next_id()
        self.began = time.perf_counter()
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_started = False
        self.response_complete = False
        self.status = 0
        self.sent = 0
        self.comments = 0
        self.takes_event = False
        self.ended_by: ProxyError | ClientGoneError | None = None
        self.waiting: KeepAlive | None = None
        self.is_begun_by_sign = False
        self.on_writable: Callable[[], None] | None = None
        self.task: asyncio.Task[None] | None = None
        self._connection = connection
        self._answer: Headers = []
        # The head of the answer, until something is written behind it; `_left` of a promised length, None for chunks.
        self._unwritten = b""
        self._left: int | None = None
        self._ending: RepeatedCancel | None = None
        self._is_worked_on = False

    @property
    def _errors(self) -> ErrorShape:
        return self._connection.error_shape(self.head)

    @property
    def client_id(self) -> str | None:
        """What the client calls this request; None where it does not, in a form fit for a log."""
        return _fit(self.head.header(_GIVEN_ID))

    @property
    def upstream_id(self) -> str | None:
        """What the upstream calls it; None as above."""
        return _fit(first(self._answer, _GIVEN_ID))

    # what the connection says

    def lose(self) -> None:
        """The client has left, or is answered by the connection itself."""
        if self.response_complete:
            return
        self.disconnected = True
        self.request.lose()
        if self._is_worked_on:
            self.end(ClientGoneError())

    # its end

    def begin_work(self) -> None:
        """What is done for it from now on is ended by `end`, or by the client's leaving; raises what has ended it."""
        if self.disconnected:
            self.ended_by = self.ended_by or ClientGoneError()
        if self.ended_by is not None:
            raise self.ended_by
        self._is_worked_on = True

    def end_work(self) -> None:
        """Nothing is done for it any more but to write its answer."""
        self._is_worked_on = False
        self.ended_by = None  # by which it would lead back to itself, once it is raised
        if self._ending is not None:
            self._ending.stop()
            self._ending = None
        if self.waiting is not None:
            self.waiting.stop()
            self.waiting = None  # each would keep the other until the garbage collector comes

    def end(self, error: ProxyError | ClientGoneError) -> None:
        """End what is done for this exchange, for certain. The first error is the one that is raised."""
        if self.ended_by is None:
            self.ended_by = error
            if self._is_worked_on and self.task is not None:
                self._ending = RepeatedCancel(self.task)
                self._ending.begin()

    # signs of life

    def write_sign(self, sign: bytes) -> None:
        """Write a sign of life, if the client takes it at once."""
        if not self.response_complete and not self._connection.flow.write_paused:
            self.put(sign, more=True)
            self.comments += 1
            self.takes_event = True

    # the answer

    async def start(self, status: int, headers: Headers) -> None:
        """Begin the answer; its head leaves with the first bytes behind it, or in the next turn of the loop."""
        await self.wait_for_room()
        self.begin(status, headers)
        self._connection.loop.call_soon(self.flush)

    def begin(self, status: int, headers: Headers) -> None:
        """The same of the head alone; it leaves with what is put behind it in this turn of the loop."""
        self._answer = headers
        self.response_started = True
        self.status = status
        if not self.disconnected:
            how = {"keep_alive": self.keep_alive, "is_of_head": self.head.method == "HEAD"}
            named = [*headers, (REQUEST_ID, self.id.encode())] if self.shows_id else headers
            self._unwritten, self._left, self.keep_alive = answer_head(status, named, **how)

    async def write(self, chunk: bytes, *, more: bool) -> None:
        """Waits while the client reads slower than we write."""
        await self.wait_for_room()
        self.put(chunk, more=more)

    def put(self, chunk: bytes, *, more: bool) -> bool:
        """Write without waiting; whether there is room for more, else `on_writable` is called when there is."""
        self.sent += len(chunk)
        if self._is_gone:
            return True
        transport = self._connection.transport
        head, self._unwritten = self._unwritten, b""
        parts = (head, *self._frame_chunk(chunk, more=more))
        if len(chunk) < _JOINED:
            parts = (b"".join(parts),)
        for part in filter(None, parts):  # `writelines` of some CPythons never pauses anybody (CVE-2024-12254)
            transport.write(part)
        if not more:
            self._complete()
        return not self._connection.flow.write_paused

    async def wait_for_room(self) -> None:
        """Return when there is room to write."""
        flow = self._connection.flow
        if flow.write_paused and not self.disconnected:
            await flow.drain()

    def writable(self) -> None:
        """The client has taken what was written."""
        if self.on_writable is not None:
            self.on_writable()

    def flush(self) -> None:
        """Write the head, if it has not left yet."""
        head, self._unwritten = self._unwritten, b""
        if head and not self._is_gone:
            self._connection.transport.write(head)

    @property
    def _is_gone(self) -> bool:
        """Whether nothing can be written: the client has left, or is about to be left."""
        return self.disconnected or self._connection.transport.is_closing()

    def _frame_chunk(self, chunk: bytes, *, more: bool) -> tuple[bytes, ...]:
        if self.head.method == "HEAD":
            return ()
        if self._left is None:
            end = b"" if more else b"0\r\n\r\n"
            return (b"%x\r\n" % len(chunk), chunk, b"\r\n" + end) if chunk else (end,)
        if len(chunk) > self._left:
            raise RuntimeError("the answer is longer than its Content-Length")
        self._left -= len(chunk)
        return (chunk,)

    def _complete(self) -> None:
        if self._left:
            raise RuntimeError("the answer is shorter than its Content-Length")
        self.response_complete = True
        self.request.lose()
        if not self.keep_alive:
            self._connection.transport.close()
        self._connection.on_response_complete()

    # errors of ours

    async def end_with_error(self, error: object, status: int) -> None:
        """End a stream that a sign of life began."""
        await self.write(self._errors.error_event(error, status, ends=True), more=False)

    async def write_error(self, error: ProxyError) -> None:
        """An event that reports an error in a stream, which does not end by it."""
        await self.write(self._errors.error_event(error.fields(), error.status, ends=False), more=True)

    async def break_off(self, error: ProxyError) -> None:
        """End an answer that is not finished: with the error, and so that no client takes it for complete."""
        if not self.response_started:
            await self._refuse(error)
        elif self.takes_event:
            await self.write_error(error)

    async def refuse(self, error: ProxyError) -> None:
        """Answer with an error of ours, unless an answer has begun already."""
        if self.is_begun_by_sign:
            await self.end_with_error(error.fields(), error.status)
        elif not self.response_started:
            await self._refuse(error)

    async def _refuse(self, error: ProxyError) -> None:
        body = self._errors.error_body(error.fields(), error.status)
        length = (b"content-length", str(len(body)).encode())
        # Where the next request begins is not known before the body's end.
        close = [(b"connection", b"close")] if self.request.is_coming or error.ends_connection else []
        await self.start(error.status, [*error.headers(), length, *close])
        if close:
            await self.write(body, more=True)
            await self.request.linger()
            body = b""
        await self.write(body, more=False)


def _fit(value: bytes | None) -> str | None:
    return value.decode() if value and _FIT.fullmatch(value) else None
