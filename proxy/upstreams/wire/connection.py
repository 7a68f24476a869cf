"""A connection to an upstream: one request at a time, its answer, and how long both may take."""

import asyncio
import socket
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Protocol, cast

from proxy.config.proxies import Proxy
from proxy.config.settings import Upstream
from proxy.errors import ProxyError, UpstreamConnectionError, UpstreamTimeoutError
from proxy.server.keep_alive import keep_alive
from proxy.upstreams.response import Sink, TruncatedError, is_event_stream
from proxy.upstreams.wire.answer import AnswerReader, NotHTTPError
from proxy.upstreams.wire.heads import Body
from proxy.upstreams.wire.tunnels import UNAUTHORIZED, unauthorized_error

# Up to here head and body go out in one piece; copying more costs more than the second write.
_JOINED = 64 * 1024
# A body beyond this is sent in pieces, with turns of the loop for others between them.
_LARGE = 1024 * 1024
_PIECE = 512 * 1024
# What is received and not taken yet; beyond it nothing more is read.
_MOST_HELD = 256 * 1024
# Of a body that is about to be whole.
_MOST_AWAITED = 64 * 1024
_FOREVER = float("inf")


# Of Linux's `struct tcp_info`: tcpi_bytes_acked, 64 bits.
_TCP_INFO_BYTES = 192
_ACKNOWLEDGED = struct.Struct("120xQ").unpack_from


class ConnectionOwner(Protocol):
    """Takes connections back when their responses are complete."""

    def give_back(self, connection: "Connection") -> None:
        """Take back a connection that can be used again."""

    def on_lost(self, connection: "Connection") -> None:
        """Note once that a connection is closed."""


class Connection(asyncio.Protocol):
    """Made by a pool, which owns it while nothing is asked.

    idle_since: when its last answer was complete, in the loop's seconds.
    is_open:    whether it can be asked.
    was_stale:  whether it was answered before, but has ended without a byte of the next answer.
    """

    def __init__(self, owner: ConnectionOwner, upstream: Upstream, proxy: Proxy | None = None) -> None:
        """`proxy`: reads the requests, None without one."""
        self.proxy = proxy
        self.idle_since = 0.0
        self.is_open = False
        self.was_stale = False
        self._is_used = False
        # What its peer's system had taken before the request that is under way: counted, since asking for it takes
        # longer than all else that a finished answer needs; but measured where encryption adds to what is written.
        self._taken: int | None = None
        self._written = 0
        self._is_encrypted = False
        self._owner = owner
        self._upstream = upstream
        self.loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._answer: PendingResponse | None = None
        self._sending: asyncio.Task[None] | None = None
        # Whether all of what is sent is here, so that only the upstream can hold it up.
        self._is_here = True
        self._drained: asyncio.Future[None] | None = None
        # A request starts no timer: the connection's looks when it fires whether anything is late.
        self._timer: asyncio.TimerHandle | None = None
        self._heard = 0.0
        self._ends = _FOREVER

    async def ask(
        self, head: bytes, body: Body, *, has_no_body: bool, chunked: bool, began: float
    ) -> "PendingResponse":
        """Send a request, and return when the head of its answer is there; `began`: when its time began to count.

        Raises UpstreamConnectionError or UpstreamTimeoutError, and what reading `body` raises.
        """
        answer = self.begin(head, body, has_no_body=has_no_body, chunked=chunked, began=began)
        await answer.wait_for_head()
        return answer

    def begin(self, head: bytes, body: Body, *, has_no_body: bool, chunked: bool, began: float) -> "PendingResponse":
        """Send a request without waiting for the response."""
        answer = self._answer = PendingResponse(self, has_no_body=has_no_body)
        total = self._upstream.total_timeout
        self._ends = _FOREVER if total is None else began + total
        self._heard = self.loop.time()
        try:
            self._send(answer, head, body, chunked=chunked)
            self._watch()
        except BaseException:
            answer.close()
            raise
        return answer

    def _send(self, answer: "PendingResponse", head: bytes, body: Body, *, chunked: bool) -> None:
        if isinstance(body, bytes) and len(body) <= _LARGE:
            if len(body) <= _JOINED:
                self._write(head + body)
            else:
                self._write(head)
                self._write(body)
        elif body is None:
            self._write(head)
        else:
            self._write(head)
            self._is_here = isinstance(body, bytes)
            pieces = _pieces(body) if isinstance(body, bytes) else body
            self._sending = asyncio.create_task(self._send_all(pieces, chunked=chunked))
            self._sending.add_done_callback(partial(self._end_sending, answer))

    def _write(self, data: bytes | memoryview) -> None:
        self._written += len(data)
        self._transport.write(data)

    async def _send_all(self, pieces: AsyncIterator[bytes] | AsyncIterator[memoryview], *, chunked: bool) -> None:
        async for piece in pieces:
            self._write(b"".join((b"%x\r\n" % len(piece), piece, b"\r\n")) if chunked else piece)
            if self._drained is not None:
                await self._drained
                self._heard = self.loop.time()
        if chunked:
            self._write(b"0\r\n\r\n")
        # Here, since the answer may come before anybody is told that the task has ended.
        self._sending, self._heard = None, self.loop.time()

    def _end_sending(self, answer: "PendingResponse", sending: asyncio.Task[None]) -> None:
        if not sending.cancelled() and (error := sending.exception()) is not None:
            self._sending = None
            answer.fail(error)

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods alone
        self._is_encrypted = transport.get_extra_info("ssl_object") is not None
        with suppress(AttributeError, OSError):  # no socket, or one that is closed already
            keep_alive(transport.get_extra_info("socket"))
        self._taken = _acknowledged_bytes(self._transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:  # nobody has asked for it
            self.close()
            return
        self._heard = self.loop.time()
        try:
            answer.receive(data)
        except NotHTTPError:
            answer.fail(UpstreamConnectionError("The upstream's answer is not valid HTTP.", "not_http"))
        except TruncatedError as error:  # of the sink, which cannot read on
            answer.fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._answer is not None:
            self.was_stale = self._is_used and self._answer.reader.is_untouched
            taken = _acknowledged_bytes(self._transport) if self.was_stale else None
            self._answer.was_unread = taken is not None and taken == self._taken
            self._answer.lose(exc)
        self._leave()
        self.resume_writing()

    def pause_writing(self) -> None:
        self._drained = self.loop.create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():  # as where sending was cancelled
            drained.set_result(None)

    @property
    def is_usable(self) -> bool:
        """Return True if it can be used, as far as that is known in this turn of the loop."""
        return self.is_open and not self._transport.is_closing()

    # what the answer asks for

    def finish(self, *, may_continue: bool) -> None:
        """Note that the response is complete."""
        self._answer = None
        if may_continue and self._sending is None and self.is_usable:
            self._is_used, self.idle_since = True, self.loop.time()
            if self._is_encrypted:
                self._taken = _acknowledged_bytes(self._transport)
            elif self._taken is not None:
                self._taken += self._written
            self._written = 0
            self._owner.give_back(self)
        else:
            self.close()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._heard = self.loop.time()
        self._transport.resume_reading()

    def close(self) -> None:
        """Close it. If a response is in flight, the upstream can stop working on it."""
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        if self._answer is None:
            self._transport.close()
        else:
            self._answer = None
            self._transport.abort()
        self._leave()

    def _leave(self) -> None:
        if self.is_open:
            self.is_open = False
            self._owner.on_lost(self)

    # what is waited for

    def _watch(self) -> None:
        if self._timer is None:
            heard = self._heard if self._is_awaited else self.loop.time()
            self._timer = self.loop.call_at(min(self._ends, heard + self._upstream.idle_timeout), self._look)

    @property
    def _is_awaited(self) -> bool:
        """Return True if it is the upstream's turn. It is not while a client sends or reads slowly."""
        answer = self._answer
        is_sent = self._sending is None or self._is_here
        return answer is not None and not answer.is_paused and (is_sent or answer.reader.is_begun)

    def _look(self) -> None:
        self._timer = None
        answer, now, upstream = self._answer, self.loop.time(), self._upstream
        if answer is None:
            return
        if now >= self._ends:
            late = f"The upstream did not answer within {upstream.total_timeout:g} s."
            answer.fail(UpstreamTimeoutError(late, "total_timeout"))
        elif self._is_awaited and now >= self._heard + upstream.idle_timeout:
            silent = f"The upstream sent nothing for {upstream.idle_timeout:g} s."
            answer.fail(UpstreamTimeoutError(silent, "idle_timeout"))
        else:
            self._watch()


class PendingResponse:
    """The answer to one request, as a body whose bytes are taken as they come.

    was_unread: whether its connection, which was used before, has ended without a byte of the request having been taken
    by its peer: then nothing can have come of it.
    """

    __slots__ = (
        *("_connection", "_error", "_held", "_loop", "_proxy", "_sink", "_waiter"),
        *("is_paused", "reader", "was_unread"),
    )

    def __init__(self, connection: Connection, *, has_no_body: bool) -> None:
        self.reader = AnswerReader(has_no_body=has_no_body)
        self._proxy = connection.proxy
        self._loop = connection.loop  # asking for the one that runs takes a call of the system
        self.is_paused = self.was_unread = False
        self._connection: Connection | None = connection
        self._error: BaseException | None = None
        self._held = 0
        self._sink: Sink | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def wait_for_head(self) -> None:
        """Return when the head is there, and a body of which little is to come; raises what prevented it, and is closed
        then, as if the wait is cancelled."""
        try:
            await self._head()
        except BaseException:
            self.close()
            raise

    async def _head(self) -> None:
        while not self.reader.is_begun or self._is_nearly_whole:
            self._raise_failure()
            await self._news()
        if self._proxy is not None and self.reader.status == UNAUTHORIZED:
            raise unauthorized_error(self._proxy)

    def _raise_failure(self) -> None:
        """Raise what has prevented it, if something has; it is not kept, since it leads back here then."""
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error

    @property
    def _is_nearly_whole(self) -> bool:
        """Return True if little of the body is to come, so that it is read with its header block. Events are not."""
        is_short = self._error is None and 0 < self.reader.bytes_to_come <= _MOST_AWAITED
        return is_short and not is_event_stream(self.reader.headers)

    def take(self) -> bytes:
        chunk = self.reader.take()
        self._held = 0
        self.resume()
        return chunk

    def untake(self, chunk: bytes) -> None:
        """Give back what was taken, before anything else is."""
        self.reader.untake(chunk)
        self._held += len(chunk)

    @property
    def is_complete(self) -> bool:
        return self.reader.is_complete

    async def more(self, seconds: float | None) -> bool:
        held, late, timer = self._held, asyncio.Event(), None
        if seconds is not None:
            timer = self._loop.call_later(seconds, self._end_waiting, late)
        try:
            while self._held == held and not (self.reader.is_complete or late.is_set()):
                self._check()
                await self._news()
        finally:
            if timer is not None:
                timer.cancel()
        return self._held > held

    def _end_waiting(self, late: asyncio.Event) -> None:
        late.set()
        self._wake()

    @property
    def _is_broken(self) -> bool:
        return not self.reader.is_complete and (self._error is not None or self._connection is None)

    def _check(self) -> None:
        """Raise TruncatedError if it has broken off."""
        if self._is_broken:
            raise TruncatedError(_cause(self._error))

    async def pour(self, sink: Sink) -> None:
        self._sink = sink
        try:
            self._give(sink)
            while not self.reader.is_complete:
                if self._is_broken:
                    self._give(sink)  # what came right before it broke off
                self._check()
                await self._news()
        finally:
            self._sink = None  # which may hold this answer

    def _give(self, sink: Sink) -> None:
        self._held = 0
        chunk = self.reader.take()
        if not chunk or sink.take(chunk, is_last=self.reader.is_complete):
            self.resume()  # nobody took anything before, perhaps
        else:
            self._pause()

    def close(self) -> None:
        if (connection := self._connection) is not None:
            self._connection = None
            connection.close()

    # what the connection says

    def receive(self, data: bytes) -> None:
        """Raises NotHTTPError."""
        self._held += self.reader.feed(data)
        if self._sink is not None:
            self._give(self._sink)
        elif self._held > _MOST_HELD:
            self._pause()
        if self.reader.is_complete:
            self._finish()
        if self._sink is None or self.reader.is_complete:
            self._wake()

    def fail(self, error: BaseException) -> None:
        """End the response with an error."""
        self._error = error
        self.close()
        self._wake()

    def lose(self, exc: Exception | None) -> None:
        """Note that the connection has ended."""
        if exc is None:
            self.reader.end()
        if self.reader.is_complete:
            self._finish()
            self._wake()
        elif isinstance(exc, ConnectionResetError):
            self.fail(UpstreamConnectionError("The upstream reset the connection before it answered.", "reset"))
        else:
            self.fail(UpstreamConnectionError("The upstream closed the connection before it answered.", "closed"))

    def resume(self) -> None:
        if self.is_paused and self._connection is not None:
            self.is_paused = False
            self._connection.resume_reading()

    def _pause(self) -> None:
        if not self.is_paused and self._connection is not None:
            self.is_paused = True
            self._connection.pause_reading()

    def _finish(self) -> None:
        self.resume()
        if (connection := self._connection) is not None:
            self._connection = None
            connection.finish(may_continue=self.reader.may_continue)

    async def _news(self) -> None:
        waiter = self._waiter = self._loop.create_future()
        try:
            await waiter
        finally:
            if self._waiter is waiter:  # else somebody else has begun to wait, when this was cancelled
                self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _cause(error: BaseException | None) -> str:
    return (isinstance(error, ProxyError | TruncatedError) and error.cause) or "closed"


async def _pieces(body: bytes) -> AsyncIterator[memoryview]:
    view = memoryview(body)
    for start in range(0, len(body), _PIECE):
        if start:
            await asyncio.sleep(0)
        yield view[start : start + _PIECE]


def _acknowledged_bytes(transport: asyncio.Transport) -> int | None:
    """Bytes that the peer's system has taken since the connection was made, the handshake's included; None if this
    system does not say."""
    if sys.platform != "linux":
        return None
    try:
        there = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        return int(_ACKNOWLEDGED(there)[0])
    except (AttributeError, OSError, struct.error):  # no socket, a closed one, an old kernel
        return None
