"""HTTP/1.1 for clients: uvicorn's httptools protocol with timeouts, limits and strict framing.

uvicorn's internals are not public, so its version is pinned. tests/server/test_framing.py checks each upgrade.
"""

import asyncio
import logging
from asyncio import TimerHandle
from typing import Any

import uvicorn
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from proxy.errors import HeadersTooLargeError, InvalidRequestError, ProxyError, RequestTimeoutError, URITooLongError
from proxy.server.error_shape import ErrorShape
from proxy.server.flow import TimedFlowControl
from proxy.server.served import Served
from proxy.server.slow_readers import MIN_RATE, SlowReaderTimer
from proxy.server.strictness import MAX_HEAD, MAX_LINE, check_fields, check_size, check_target

# Framing bytes that each chunk may have without counting, as in Go's net/http. All beyond adds up to at most MAX_HEAD.
_CHUNK_FRAMING = 16
# Seconds to read and discard data after a rejection. Closing on unread bytes would reset the connection.
_LINGER_SECONDS = 3.0
# Seconds until a paused body is checked again.
_PAUSED_SECONDS = 1.0
_DEFAULTS = Served()


def _is_fault(record: logging.LogRecord) -> bool:
    """Return False for a truncated response, which the application leaves unfinished like the upstream."""
    return record.msg != "ASGI callable returned without completing response."


_LOGGER = logging.getLogger("uvicorn.error.http")
_LOGGER.addFilter(_is_fault)
_CONTINUE = b"HTTP/1.1 100 "
# Bytes up to which copying costs less than a second write.
_MOST_JOINED = 64 * 1024


class HeadWriter:
    """Writes a response's header block together with its first bytes, since each write is a system call.

    Without following bytes it is written in the next turn of the loop.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        """Create a writer on this transport."""
        self._transport = transport
        self._loop = loop
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        """Write data, joined with a stored header block."""
        if self._head is None and not data.startswith(_CONTINUE):
            self._head = data
            self._loop.call_soon(self.flush)
        elif self._head and len(data) < _MOST_JOINED:
            head, self._head = self._head, b""
            self._transport.write(head + data)
        else:
            self.flush()
            self._transport.write(data)

    def flush(self) -> None:
        """Write the stored header block."""
        if self._head and not self._transport.is_closing():
            self._transport.write(self._head)
            self._head = b""

    def close(self) -> None:
        """Write the stored header block, and close the transport."""
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Return True if the transport is closing."""
        return self._transport.is_closing()


class HttpProtocol(HttpToolsProtocol):
    """One connection of a client.

    A request that is rejected here never reaches the application, and its connection ends. A request that arrives in
    one piece starts no timer.
    """

    flow: TimedFlowControl

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Create a connection."""
        super().__init__(config, server_state, app_state, _loop)
        self.logger = _LOGGER
        self._served: Served = self.app if isinstance(self.app, Served) else _DEFAULTS
        # The request whose response is in progress, of those in `pipeline`.
        self._current_cycle: RequestResponseCycle | None = None
        self._timer: TimerHandle | None = None
        self._refusal: ProxyError | None = None
        self._is_refused = self._is_upgrade = False
        self._in_head = self._in_body = False
        # True if the data being parsed has nothing but a header block.
        self._is_only_head = True
        # Bytes of the header block in progress, and the most that it can have with the data being parsed.
        self._head_bytes = self._most_head_bytes = 0
        # Bytes of a body besides its content: chunk sizes, extensions, trailers.
        self._framing_bytes = 0
        self._body_bytes = 0
        self._body_began = self._body_grew = 0.0
        self._hosts: list[bytes] | None = None

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout for the first header block."""
        super().connection_made(transport)
        self.flow = TimedFlowControl(transport, self.loop, self.pipeline)
        self.timeout_keep_alive = self._served.server_settings.idle_timeout  # type: ignore[assignment]
        self._slow_reader = SlowReaderTimer(transport, self.loop)
        self._start_timer(self._served.server_settings.header_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers, and tell the application of the disconnect."""
        self._stop_timer()
        self._slow_reader.stop()
        self._unset_keepalive_if_required()
        if self._current_cycle is not None and not self._current_cycle.response_complete:
            self._current_cycle.disconnected = True
            self._current_cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse data, and restart the timeouts. Invalid requests get an error."""
        if self._is_refused:
            return
        self._unset_keepalive_if_required()
        size, self._is_only_head = len(data), not self._in_body
        self._most_head_bytes = self._head_bytes + size
        self._framing_bytes += size
        try:
            while data:
                data = self._parse(data)
        except HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self._refuse(self._refusal or InvalidRequestError("The request is not valid HTTP/1.1."))
        if self._in_head:
            self._wait_for_head()
        elif self._in_body:
            self._wait_for_body(size)
        elif self.is_idle:  # after empty lines, or the end of a body that the response did not wait for
            self._start_timer(self._served.server_settings.header_timeout)

    def pause_writing(self) -> None:
        """Start the check for slow readers."""
        super().pause_writing()
        self._slow_reader.start(self._served.server_settings.body_timeout)

    def resume_writing(self) -> None:
        """Stop the check for slow readers."""
        super().resume_writing()
        self._slow_reader.stop()

    # parsing

    def _parse(self, data: bytes) -> bytes:
        """Return the data left to parse: httptools stops at an Upgrade, which is ignored (RFC 9110, section 7.8).

        A new parser reads the request without that header. The old one would take the body for the next request.
        """
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._is_upgrade = False
            lines = [b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade"]
            version = self.parser.get_http_version().encode()
            line = b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, version)
            self.parser = HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            return b"".join([line, *lines, b"\r\n", data[upgrade.args[0] :]])
        return b""

    def on_message_begin(self) -> None:
        """Note the beginning of a header block."""
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        """Check the header block, and start the request."""
        self._stop_timer()
        self._check_head()
        self._is_upgrade = self.parser.should_upgrade()
        if self._is_upgrade:
            return
        self._in_head, self._in_body, self._framing_bytes = False, True, 0
        super().on_headers_complete()
        self.headers = []  # trailers are not headers of the request (RFC 9110, section 6.5.1)
        self.cycle.transport = HeadWriter(self.transport, self.loop)  # type: ignore[assignment]
        if self._served.is_draining:
            self.end_after_response()

    def on_body(self, body: bytes) -> None:
        """Pass a piece of the body on, and count its framing."""
        self._framing_bytes = max(0, self._framing_bytes - len(body) - _CHUNK_FRAMING)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note the end of a request."""
        if self._is_upgrade:
            return
        self._stop_timer()
        self._in_body = self._is_only_head = False
        if not self.parser.should_keep_alive():
            self.cycle.keep_alive = False  # a trailer may have closed it, after which llhttp reads no further
        super().on_message_complete()

    def _check_head(self) -> None:
        """Raise HttpParserError, which ends the connection, if the request must not be served."""
        version = self.parser.get_http_version()
        try:
            check_target(self.parser.get_method(), self.url)
            # The received bytes are at least as many, and their number is already known.
            check_size(self.headers if self._most_head_bytes > MAX_HEAD else (), len(self.headers))
            self._hosts = check_fields(self.headers, version, self._hosts)
        except ProxyError as error:
            self._refusal = error
            raise HttpParserError from None
        if version == "1.0":  # HTTP/1.0 clients do not know 100 (RFC 9110, section 10.1.1)
            self.expect_100_continue = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._current_cycle = cycle
        super()._start_asgi_task(cycle, app)

    # rejections

    def _refuse(self, error: ProxyError) -> None:
        """Respond with an error and close. A response in progress ends first."""
        if self._is_refused:
            return
        self._is_refused = True
        self._stop_timer()
        cycle = None if self.is_idle else self.cycle
        if cycle is not None and not cycle.more_body:
            cycle.keep_alive = False
        elif cycle is not None and (cycle.response_started or self.pipeline):
            self.transport.close()
        else:
            self.transport.write(_refusal(error, self._error_shape()))
            if cycle is not None:
                cycle.disconnected = True
                cycle.message_event.set()
            self.transport.write_eof()
            self.flow.resume_reading()
            self._timer = self.loop.call_later(_LINGER_SECONDS, self.transport.close)

    def _error_shape(self) -> ErrorShape:
        """Return the error format of the current request's client, by the received part of its header block."""
        if self._in_body:
            return self._served.error_shape(self.scope["method"], _target_of(self.url), [*self.cycle.scope["headers"]])
        url, headers = (self.url, self.headers) if self._in_head else (b"", [])
        return self._served.error_shape("", _target_of(url), headers)

    # timeouts

    def _wait_for_head(self) -> None:
        if self._is_only_head:  # httptools keeps a header until it is complete, whatever its length
            self._head_bytes = self._most_head_bytes
        if len(self.url) > MAX_LINE:
            self._refuse(URITooLongError())
        elif self._head_bytes > MAX_HEAD:
            self._refuse(HeadersTooLargeError())
        self._start_timer(self._served.server_settings.header_timeout)

    def _wait_for_body(self, size: int) -> None:
        if self._framing_bytes > MAX_HEAD:
            self._refuse(HeadersTooLargeError())
        self._body_grew = self.flow.reading_time()
        if self._timer is None:
            self._body_began, self._body_bytes = self._body_grew, 0
        self._body_bytes += size
        self._start_timer(self._served.server_settings.body_timeout)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, unless a body is being received."""
        if not self._in_body:  # the body has a timeout of its own
            super().timeout_keep_alive_handler()

    def _start_timer(self, seconds: float) -> None:
        if self._timer is None and not self._is_refused:
            self._timer = self.loop.call_later(seconds, self._on_timer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        if self._in_body:
            self._check_body()
        elif self._in_head:
            self._refuse(RequestTimeoutError("The header block of the request did not arrive in time."))
        else:  # a connection that was opened in advance and never used
            self.transport.close()

    def _check_body(self) -> None:
        """Reject a body that stopped or is too slow.

        Time while a slow upstream keeps it from being read does not count.
        """
        limit = self._served.server_settings.body_timeout
        must_grow = min(self._body_grew, self._body_began + self._body_bytes / MIN_RATE) + limit
        seconds = must_grow - self.flow.reading_time()
        if self.flow.read_paused:
            seconds = max(seconds, _PAUSED_SECONDS)
        if seconds > 0:
            self._start_timer(seconds)
        else:
            self._refuse(RequestTimeoutError("The body of the request did not arrive in time."))

    # the end of the process

    def end_after_response(self) -> None:
        """Close after the response in progress, and announce it, since the process may end before the next one."""
        if not self.is_idle:
            self.cycle.keep_alive = False

    @property
    def is_idle(self) -> bool:
        """Return True if no request is in flight. One may still be about to arrive."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete


def _target_of(url: bytes) -> str:
    return url.decode("latin-1")


def _refusal(error: ProxyError, shape: ErrorShape) -> bytes:
    """Return the response to an invalid request, the last one of its connection."""
    body = shape.error_body(error.fields(), error.status)
    headers = [*error.headers(), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    lines = [b"%b: %b\r\n" % header for header in headers]
    return b"".join([STATUS_LINE[error.status], *lines, b"\r\n", body])
