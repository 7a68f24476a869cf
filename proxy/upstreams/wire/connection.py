"""A connection to an upstream: one request at a time, its response, and their timeouts."""

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

# Up to this size header block and body are sent in one piece. Copying more costs more than a second write.
_JOINED = 64 * 1024
# A larger body is sent in pieces, so that other tasks run in between.
_LARGE = 1024 * 1024
_PIECE = 512 * 1024
# The most received bytes that were not taken yet. Reading pauses beyond it.
_MOST_HELD = 256 * 1024
# The most remaining bytes of a body to wait for together with the header block.
_MOST_AWAITED = 64 * 1024
_FOREVER = float("inf")


# From Linux's `struct tcp_info`: tcpi_bytes_acked, 64 bits.
_TCP_INFO_BYTES = 192
_ACKNOWLEDGED = struct.Struct("120xQ").unpack_from


class ConnectionOwner(Protocol):
    """Takes connections back when their responses are complete."""

    def give_back(self, connection: "Connection") -> None:
        """Take back a reusable connection."""

    def on_lost(self, connection: "Connection") -> None:
        """Note that a connection is closed. Called once."""


class Connection(asyncio.Protocol):
    """A connection that a pool opens, and owns while no request is in flight.

    idle_since: the time when its last response was complete, in the loop's seconds.
    is_open:    True if it can send a request.
    was_stale:  True if it was used before, but ended without a byte of the next response.
    """

    def __init__(self, owner: ConnectionOwner, upstream: Upstream, proxy: Proxy | None = None) -> None:
        """Create a connection. proxy: a proxy that reads the requests; None without one."""
        self.proxy = proxy
        self.idle_since = 0.0
        self.is_open = False
        self.was_stale = False
        self._is_used = False
        # The bytes that the peer's system had taken before the current request. They are counted, since reading them
        # takes longer than all other work at the end of a response. With encryption, which adds bytes, they are read.
        self._acknowledged: int | None = None
        self._written = 0
        self._is_encrypted = False
        self._owner = owner
        self._upstream = upstream
        self.loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._answer: PendingResponse | None = None
        self._sending: asyncio.Task[None] | None = None
        # True if all bytes to send are here, so that only the upstream can delay the sending.
        self._is_body_complete = True
        self._drained: asyncio.Future[None] | None = None
        # Requests start no timers. The connection's single timer checks for timeouts when it fires.
        self._timer: asyncio.TimerHandle | None = None
        self._last_activity = 0.0
        self._deadline = _FOREVER

    async def ask(
        self, head: bytes, body: Body, *, has_no_body: bool, chunked: bool, began: float
    ) -> "PendingResponse":
        """Send a request, and return its response when the header block has come. began: the start of its total time.

        Raises UpstreamConnectionError, UpstreamTimeoutError, and the errors of reading `body`.
        """
        answer = self.begin(head, body, has_no_body=has_no_body, chunked=chunked, began=began)
        await answer.wait_for_head()
        return answer

    def begin(self, head: bytes, body: Body, *, has_no_body: bool, chunked: bool, began: float) -> "PendingResponse":
        """Send a request without waiting for the response."""
        answer = self._answer = PendingResponse(self, has_no_body=has_no_body)
        total = self._upstream.total_timeout
        self._deadline = _FOREVER if total is None else began + total
        self._last_activity = self.loop.time()
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
            self._is_body_complete = isinstance(body, bytes)
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
                self._last_activity = self.loop.time()
        if chunked:
            self._write(b"0\r\n\r\n")
        # Set here, since the response may come before the task's callback runs.
        self._sending, self._last_activity = None, self.loop.time()

    def _end_sending(self, answer: "PendingResponse", sending: asyncio.Task[None]) -> None:
        if not sending.cancelled() and (error := sending.exception()) is not None:
            self._sending = None
            answer.fail(error)

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport, and set its socket options."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport has only the methods
        self._is_encrypted = transport.get_extra_info("ssl_object") is not None
        with suppress(AttributeError, OSError):  # no socket, or a closed one
            keep_alive(transport.get_extra_info("socket"))
        self._acknowledged = _acknowledged_bytes(self._transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Pass bytes to the response. Bytes without a request close the connection."""
        answer = self._answer
        if answer is None:  # no request is open
            self.close()
            return
        self._last_activity = self.loop.time()
        try:
            answer.receive(data)
        except NotHTTPError:
            answer.fail(UpstreamConnectionError("The upstream's response is not valid HTTP.", "not_http"))
        except TruncatedError as error:  # the sink cannot read on
            answer.fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the response, and note whether the upstream took any byte of the request."""
        if self._timer is not None:
            self._timer.cancel()
        if self._answer is not None:
            self.was_stale = self._is_used and self._answer.reader.is_untouched
            acknowledged = _acknowledged_bytes(self._transport) if self.was_stale else None
            self._answer.was_unread = acknowledged is not None and acknowledged == self._acknowledged
            self._answer.lose(exc)
        self._report_lost()
        self.resume_writing()

    def pause_writing(self) -> None:
        """Make the sender wait."""
        self._drained = self.loop.create_future()

    def resume_writing(self) -> None:
        """Let the sender continue."""
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():  # the sending may have been cancelled
            drained.set_result(None)

    @property
    def is_usable(self) -> bool:
        """Return True if it can be used, as far as that is known in this turn of the loop."""
        return self.is_open and not self._transport.is_closing()

    # called by the response

    def finish(self, *, may_continue: bool) -> None:
        """Note that the response is complete."""
        self._answer = None
        if may_continue and self._sending is None and self.is_usable:
            self._is_used, self.idle_since = True, self.loop.time()
            if self._is_encrypted:
                self._acknowledged = _acknowledged_bytes(self._transport)
            elif self._acknowledged is not None:
                self._acknowledged += self._written
            self._written = 0
            self._owner.give_back(self)
        else:
            self.close()

    def pause_reading(self) -> None:
        """Stop reading from the socket."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Continue reading from the socket."""
        self._last_activity = self.loop.time()
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
        self._report_lost()

    def _report_lost(self) -> None:
        if self.is_open:
            self.is_open = False
            self._owner.on_lost(self)

    # timeouts

    def _watch(self) -> None:
        if self._timer is None:
            last_activity = self._last_activity if self._is_awaited else self.loop.time()
            self._timer = self.loop.call_at(
                min(self._deadline, last_activity + self._upstream.idle_timeout), self._check_timeouts
            )

    @property
    def _is_awaited(self) -> bool:
        """Return True if the upstream has to act next. It does not while a client sends or reads slowly."""
        answer = self._answer
        is_sent = self._sending is None or self._is_body_complete
        return answer is not None and not answer.is_paused and (is_sent or answer.reader.is_begun)

    def _check_timeouts(self) -> None:
        self._timer = None
        answer, now, upstream = self._answer, self.loop.time(), self._upstream
        if answer is None:
            return
        if now >= self._deadline:
            message = f"The upstream did not respond within {upstream.total_timeout:g} s."
            answer.fail(UpstreamTimeoutError(message, "total_timeout"))
        elif self._is_awaited and now >= self._last_activity + upstream.idle_timeout:
            message = f"The upstream sent nothing for {upstream.idle_timeout:g} s."
            answer.fail(UpstreamTimeoutError(message, "idle_timeout"))
        else:
            self._watch()


class PendingResponse:
    """The response to one request, as a body whose bytes are taken as they come.

    was_unread: True if its reused connection ended before the peer took a byte of the request. The request then had no
                effect.
    """

    __slots__ = (
        *("_connection", "_error", "_held", "_loop", "_proxy", "_sink", "_waiter"),
        *("is_paused", "reader", "was_unread"),
    )

    def __init__(self, connection: Connection, *, has_no_body: bool) -> None:
        """Create the response of a request on this connection."""
        self.reader = AnswerReader(has_no_body=has_no_body)
        self._proxy = connection.proxy
        self._loop = connection.loop  # getting the running loop costs a system call
        self.is_paused = self.was_unread = False
        self._connection: Connection | None = connection
        self._error: BaseException | None = None
        self._held = 0
        self._sink: Sink | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def wait_for_head(self) -> None:
        """Wait for the header block, and for a body with few remaining bytes. Closes on errors and cancellation.

        Raises the error that prevented the response.
        """
        try:
            await self._head()
        except BaseException:
            self.close()
            raise

    async def _head(self) -> None:
        while not self.reader.is_begun or self._is_nearly_whole:
            self._raise_failure()
            await self._wait_for_news()
        if self._proxy is not None and self.reader.status == UNAUTHORIZED:
            raise unauthorized_error(self._proxy)

    def _raise_failure(self) -> None:
        """Raise the stored error, if there is one. It is not kept, since its traceback refers to this object."""
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error

    @property
    def _is_nearly_whole(self) -> bool:
        """Return True if few bytes of the body remain, so that it is read with its header block. Events are not."""
        is_short = self._error is None and 0 < self.reader.bytes_to_come <= _MOST_AWAITED
        return is_short and not is_event_stream(self.reader.headers)

    def take(self) -> bytes:
        """Return the bytes received since the last call."""
        chunk = self.reader.take()
        self._held = 0
        self.resume()
        return chunk

    def untake(self, chunk: bytes) -> None:
        """Put bytes back that were taken, before taking anything else."""
        self.reader.untake(chunk)
        self._held += len(chunk)

    @property
    def is_complete(self) -> bool:
        """Return True if all bytes have been received."""
        return self.reader.is_complete

    async def more(self, seconds: float | None) -> bool:
        """Wait for more bytes, at most for `seconds`. Returns False if none came. Raises TruncatedError."""
        held_before, late, timer = self._held, asyncio.Event(), None
        if seconds is not None:
            timer = self._loop.call_later(seconds, self._end_waiting, late)
        try:
            while self._held == held_before and not (self.reader.is_complete or late.is_set()):
                self._check()
                await self._wait_for_news()
        finally:
            if timer is not None:
                timer.cancel()
        return self._held > held_before

    def _end_waiting(self, late: asyncio.Event) -> None:
        late.set()
        self._wake()

    @property
    def _is_broken(self) -> bool:
        return not self.reader.is_complete and (self._error is not None or self._connection is None)

    def _check(self) -> None:
        """Raise TruncatedError if the response is truncated."""
        if self._is_broken:
            raise TruncatedError(_cause(self._error))

    async def pour(self, sink: Sink) -> None:
        """Pass all bytes to the sink. Raises TruncatedError."""
        self._sink = sink
        try:
            self._give(sink)
            while not self.reader.is_complete:
                if self._is_broken:
                    self._give(sink)  # bytes that came right before the end
                self._check()
                await self._wait_for_news()
        finally:
            self._sink = None  # the sink may refer to this response

    def _give(self, sink: Sink) -> None:
        self._held = 0
        chunk = self.reader.take()
        if not chunk or sink.take(chunk, is_last=self.reader.is_complete):
            self.resume()  # reading may have been paused before
        else:
            self._pause()

    def close(self) -> None:
        """Close the connection, unless the response is complete."""
        if (connection := self._connection) is not None:
            self._connection = None
            connection.close()

    # called by the connection

    def receive(self, data: bytes) -> None:
        """Parse received bytes. Raises NotHTTPError."""
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
            self.fail(UpstreamConnectionError("The upstream reset the connection before it responded.", "reset"))
        else:
            self.fail(UpstreamConnectionError("The upstream closed the connection before it responded.", "closed"))

    def resume(self) -> None:
        """Continue reading after a pause."""
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

    async def _wait_for_news(self) -> None:
        waiter = self._waiter = self._loop.create_future()
        try:
            await waiter
        finally:
            if self._waiter is waiter:  # another task may have begun to wait when this one was cancelled
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
    """Return the bytes that the peer's system has acknowledged on this connection, handshake included.

    None if this system does not provide the number.
    """
    if sys.platform != "linux":
        return None
    try:
        tcp_info = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        return int(_ACKNOWLEDGED(tcp_info)[0])
    except (AttributeError, OSError, struct.error):  # no socket, a closed one, an old kernel
        return None
