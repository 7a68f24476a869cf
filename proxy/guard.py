"""uvicorn's HTTP/1.1 protocol on httptools with what it lacks: deadlines, limits of the head, and rules for Host."""

from __future__ import annotations

import asyncio
import re
from asyncio import TimerHandle
from collections.abc import Callable

from httptools import HttpParserError
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from proxy.app import App
from proxy.config_models import Server
from proxy.errors import HeadersTooLargeError, InvalidRequestError, ProxyError, RequestTimeoutError, URITooLongError

# nginx takes heads of 32 KB and lines of 8 KB; a line of ours may carry what 16 KB hold.
MAX_HEAD = 32 * 1024
MAX_LINE = 16 * 1024
MAX_HEADERS = 128
# A name or address and a port (RFC 9112, section 3.2); nothing that would change a URL made of it.
_HOST = re.compile(rb"(?:[A-Za-z0-9._~%!$&'()*+,;=-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")
# Seconds to go on reading, and throwing away, what comes after a refusal.
_LINGER = 3.0
_DEFAULTS = Server()


class Guard(HttpToolsProtocol):
    """One connection of a client. What is refused here never becomes a request, and the connection ends with it.

    A request that comes whole, which is nearly every one, starts no timer: they run for what has to be waited for.
    """

    _head = 0
    _most = 0
    _hosts: list[bytes] | None = None
    _in_head = False
    _in_body = False
    _only_head = True
    _refusal: ProxyError | None = None
    _timer: TimerHandle | None = None
    _last_byte = 0.0
    _is_over = False

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = self.loop.call_later(self._settings.header_timeout, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        self._only_head = not self._in_body
        self._most = self._head + len(data)
        super().data_received(data)
        if self._in_head:
            if self._only_head:  # httptools keeps a header until it is whole, however long it gets
                self._head = self._most
            if len(self.url) > MAX_LINE:
                self._refuse(URITooLongError())
            elif self._head > MAX_HEAD:
                self._refuse(HeadersTooLargeError())
            self._wait(self._head_is_late, self._settings.header_timeout)
        elif self._in_body:
            self._last_byte = self.loop.time()
            self._wait(self._body_is_late, self._settings.body_timeout)

    # httptools' callbacks; what they raise ends in `send_400_response`

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head = True, 0

    def on_headers_complete(self) -> None:
        self._end_timer()
        self._check_size()
        self._check_host()
        super().on_headers_complete()
        self._in_head, self._in_body = False, True
        if isinstance(self.app, App) and self.app.is_draining:
            self.end_after_answer()

    def on_message_complete(self) -> None:
        self._end_timer()
        self._in_body = self._only_head = False
        super().on_message_complete()

    # what is refused

    def _check_size(self) -> None:
        if len(self.url) > MAX_LINE:
            self._reject(URITooLongError())
        # What came is no less than what is in it, and is known already.
        large = self._most > MAX_HEAD and sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD
        if large or len(self.headers) > MAX_HEADERS:
            self._reject(HeadersTooLargeError())

    def _check_host(self) -> None:
        hosts = [value for name, value in self.headers if name == b"host"]
        if hosts and hosts == self._hosts:
            return
        if len(hosts) > 1 or (not hosts and self.parser.get_http_version() != "1.0"):
            self._reject(InvalidRequestError("The request must have one Host header."))
        if hosts and not _HOST.fullmatch(hosts[0]):
            self._reject(InvalidRequestError("The Host header is not a name or address with a port."))
        self._hosts = hosts

    def _reject(self, error: ProxyError) -> None:
        """Out of a callback of the parser, which stops it."""
        self._refusal = error
        raise HttpParserError

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's own words
        self._refuse(self._refusal or InvalidRequestError("The request is not valid HTTP/1.1."))

    def _refuse(self, error: ProxyError) -> None:
        """Answer and close; where another answer is under way, close behind that."""
        if self._is_over:
            return
        self._is_over = True
        self._end_timer()
        cycle = None if self.is_idle else self.cycle
        if cycle is not None and not cycle.more_body:
            cycle.keep_alive = False
            return
        if cycle is None or not (cycle.response_started or self.pipeline):
            body = error.body()
            headers = [*error.headers(), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
            lines = [b"%b: %b\r\n" % header for header in headers]
            self.transport.write(b"".join([STATUS_LINE[error.status], *lines, b"\r\n", body]))
            if cycle is not None:  # whose answer this was
                cycle.disconnected = True
                cycle.message_event.set()
            # Closing on unread bytes resets the connection, and the answer may be lost with it.
            self.transport.write_eof()
            self.flow.resume_reading()
            self._timer = self.loop.call_later(_LINGER, self.transport.close)
            return
        self.transport.close()

    # what is waited for

    @property
    def _settings(self) -> Server:
        return self.app.server_settings if isinstance(self.app, App) else _DEFAULTS

    def _wait(self, late: Callable[[], None], seconds: float) -> None:
        if self._timer is None and not self._is_over:
            self._timer = self.loop.call_later(seconds, late)

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _head_is_late(self) -> None:
        self._timer = None
        if self._in_head:
            self._refuse(RequestTimeoutError("The head of the request did not come in time."))
        else:  # a connection made in advance, and never used
            self.transport.close()

    def _body_is_late(self) -> None:
        """Bytes that we do not read, since the upstream is slow to take them, are not late."""
        limit = self._settings.body_timeout
        left = limit if self.flow.read_paused else self._last_byte + limit - self.loop.time()
        if left > 0:
            self._timer = self.loop.call_later(left, self._body_is_late)
        else:
            self._timer = None
            self._refuse(RequestTimeoutError("The body of the request did not go on in time."))

    # the end of the process

    def end_after_answer(self) -> None:
        """Close once the answer under way is sent, and say so in it: the next one may meet the end of the process."""
        if not self.is_idle:
            self.cycle.keep_alive = False

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way; one may be on its way to us nevertheless."""
        cycle: RequestResponseCycle | None = self.cycle  # which it is before the first request
        return cycle is None or cycle.response_complete
