"""A client's connection in HTTP/1.1, on httptools: deadlines, limits, and strictness about framing."""

import asyncio
import logging
import os
import time
from asyncio import TimerHandle
from collections import deque
from collections.abc import Callable
from typing import Any

import uvicorn
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from proxy.errors import HeadersTooLargeError, InvalidRequestError, ProxyError, RequestTimeoutError, URITooLongError
from proxy.runtime.stepping import start
from proxy.server.answer_head import refusal
from proxy.server.asgi_pages import ConnectionPages
from proxy.server.connections.flow import Flow
from proxy.server.connections.repeats import Repeat, repeat_of
from proxy.server.connections.sending import MIN_RATE, Sending
from proxy.server.error_shape import ErrorShape
from proxy.server.exchange import Exchange
from proxy.server.head import RequestHead, target_of
from proxy.server.served import Served
from proxy.server.strictness import MAX_HEAD, MAX_LINE, check_fields, check_size, check_target

# What a chunk may cost besides its content, as in Go's net/http; what goes beyond adds up to MAX_HEAD at most.
_CHUNK_FRAMING = 16
# Seconds to go on reading, and throwing away, what comes after a refusal.
_LINGER = 3.0
# To look again whether a body goes on that we do not read for now.
_PAUSED_SECONDS = 1.0
_ID_BYTES = 8
_FAILED = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"21"), (b"connection", b"close")]


class ClientConnection(asyncio.Protocol):
    """What is refused here never becomes a request, and the connection ends with it. A request that comes whole, which
    is nearly every one, starts no timer: they run for what has to be waited for."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: Any,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """As uvicorn's server makes one for each connection (`uvicorn.Config.http`)."""
        if not config.loaded:
            config.load()
        self.app: Served = config.loaded_app if isinstance(config.loaded_app, Served) else Served(config.loaded_app)
        self.loop = _loop or asyncio.get_running_loop()
        self.flow: Flow
        self.transport: asyncio.Transport
        self._logger = logging.getLogger("uvicorn.error")
        self._server = server_state
        self._app_state, self._root_path = app_state, config.root_path
        self._pages: ConnectionPages
        self._parser: HttpRequestParser
        self._sending: Sending
        # The last exchange that has come, that whose turn it is, and those between them.
        self._newest: Exchange | None = None
        self._answering: Exchange | None = None
        self._waiting: deque[Exchange] = deque()
        self._unbegun: Exchange | None = None
        self._id = 0
        # Of the head under way, or read last; `_headers` are where the next ones go, which trailers are not.
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._named: list[tuple[bytes, bytes]] = []
        self._expects_100 = False
        self._read: RequestHead
        self._repeat: Repeat | None = None
        # Bytes of a body behind a repeated head that are to come, which no parser has to see.
        self._left = 0
        self._head = self._most = 0
        # Bytes of a body beside its content: chunk sizes and extensions, trailers.
        self._framing = 0
        self._received = 0
        self._hosts: list[bytes] | None = None
        self._in_head = self._in_body = False
        self._only_head = True
        self._is_upgrade = False
        self._refusal: ProxyError | None = None
        self._timer: TimerHandle | None = None
        self._first_byte = self._last_byte = 0.0
        self._is_over = False
        # Looks when it fires for how long nothing came, so that no answer starts one.
        self._keep_alive: TimerHandle | None = None
        self._idle_since = 0.0
        self._new_parser()

    def _new_parser(self) -> None:
        self._parser = HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def next_id(self) -> str:
        """Of a request: 16 hex digits that no other one has, of whichever connection."""
        self._id = (self._id + 1) % (1 << 8 * _ID_BYTES)
        return "%016x" % self._id  # noqa: UP031 - takes a third of the time

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._server.connections.add(self)
        self.transport = transport
        self.flow = Flow(transport, self.loop.time)
        self._pages = ConnectionPages(self.app, transport, self._app_state, self._root_path)
        self._id = int.from_bytes(os.urandom(_ID_BYTES))
        self._sending = Sending(transport, self.loop)
        self._timer = self.loop.call_later(self.app.server_settings.header_timeout, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._end_timer()
        self._sending.stop()
        if self._keep_alive is not None:
            self._keep_alive.cancel()
            self._keep_alive = None
        if self._answering is not None:
            self._answering.lose()
        self.flow.resume_writing()
        if exc is None:
            self.transport.close()
        # What they hold leads back here.
        self._newest = self._answering = None
        del self._parser

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        if self._left:
            data = self._receive(data)
            if not data:
                return
        begins = self.is_idle and not (self._in_head or self._in_body)
        if begins and self._repeat is not None and (repeated := self._repeat.read(data)) is not None:
            self._serve(*repeated)
            return
        self._only_head = not self._in_body
        self._most = self._head + len(data)
        self._framing += len(data)
        self._feed(data)
        if begins and self._newest is not None and self._newest.keep_alive:
            self._repeat = repeat_of(self._read, data)
        if self._in_head:
            self._wait_for_head()
        elif self._in_body:
            self._wait_for_body(len(data))
        elif self.is_idle:  # after empty lines, or the end of a body that was not waited for
            self._wait(self._head_is_late, self.app.server_settings.header_timeout)
        if self._unbegun is not None:
            self._begin(self._unbegun)

    def pause_writing(self) -> None:
        self.flow.pause_writing()
        self._sending.watch(self.app.server_settings.body_timeout)

    def resume_writing(self) -> None:
        self.flow.resume_writing()
        self._sending.stop()
        if self._answering is not None:
            self._answering.writable()

    def _serve(self, head: RequestHead, body: bytes | memoryview, left: int) -> None:
        """A request with a head that was read before: its body as far as it has come, and how much is to come of it."""
        self._end_timer()
        exchange = self._newest = Exchange(head, self, keep_alive=True, expects=False)
        exchange.request.receive(body)
        self._left = left
        if left:
            self._in_body, self._framing = True, 0
            self._wait_for_body(len(body))
        else:
            exchange.request.end()
        if self.app.is_draining:
            self.end_after_answer()
        self._begin(exchange)

    def _receive(self, data: bytes) -> bytes:
        """What comes of the body of such a request; returns what belongs to the next one."""
        exchange, size = self._newest, min(len(data), self._left)
        self._left -= size
        if exchange is None:
            return data
        if not exchange.response_complete:
            exchange.request.receive(data if size == len(data) else data[:size])
        if self._left:
            self._wait_for_body(size)
        else:
            self._end_timer()
            self._in_body = False
            exchange.request.end()
            if self.is_idle:  # of a body that was not waited for
                self._wait(self._head_is_late, self.app.server_settings.header_timeout)
        return data[size:]

    def _feed(self, data: bytes) -> None:
        try:
            while data:
                data = self._parse(data)
        except HttpParserError:
            self._logger.warning("Invalid HTTP request received.")
            self._refuse(self._refusal or InvalidRequestError("The request is not valid HTTP/1.1."))

    def _parse(self, data: bytes) -> bytes:
        """Returns what is still to be parsed: httptools stops at an Upgrade, which we ignore (RFC 9110, section 7.8).
        Its body would be taken for the next request. A parser that has ended a connection reads no further, so that a
        new one begins."""
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._is_upgrade = False
            lines = [b"%b: %b\r\n" % header for header in self._headers if header[0] != b"upgrade"]
            version = self._parser.get_http_version().encode()
            line = b"%b %b HTTP/%b\r\n" % (self._parser.get_method(), self._url, version)
            self._new_parser()
            return b"".join([line, *lines, b"\r\n", data[upgrade.args[0] :]])
        return b""

    def _wait_for_head(self) -> None:
        if self._only_head:  # httptools keeps a header until it is whole, however long it gets
            self._head = self._most
        if len(self._url) > MAX_LINE:
            self._refuse(URITooLongError())
        elif self._head > MAX_HEAD:
            self._refuse(HeadersTooLargeError())
        self._wait(self._head_is_late, self.app.server_settings.header_timeout)

    def _wait_for_body(self, size: int) -> None:
        if self._framing > MAX_HEAD:
            self._refuse(HeadersTooLargeError())
        self._last_byte = self.flow.reading_time()
        if self._timer is None:
            self._first_byte, self._received = self._last_byte, 0
        self._received += size
        self._wait(self._body_is_late, self.app.server_settings.body_timeout)

    # httptools' callbacks; what they raise ends the connection, in `_feed`

    def on_message_begin(self) -> None:
        self._url, self._expects_100 = b"", False
        self._headers = self._named = []
        self._in_head, self._head = True, 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self._expects_100 = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._end_timer()
        self._check()
        self._is_upgrade = self._parser.should_upgrade()
        if self._is_upgrade:
            return
        version = self._parser.get_http_version()
        head = self._read = self.app.head(self._parser.get_method().decode(), target_of(self._url), self._named)
        keep_alive = version != "1.0" and self._parser.should_keep_alive()
        self._take(Exchange(head, self, keep_alive=keep_alive, expects=self._expects_100, version=version))
        self._headers = []  # trailers are no headers of the request, which has its own list (RFC 9110, section 6.5.1)
        self._in_head, self._in_body, self._framing = False, True, 0
        if self.app.is_draining:
            self.end_after_answer()

    def on_body(self, body: bytes) -> None:
        self._framing = max(0, self._framing - len(body) - _CHUNK_FRAMING)
        if self._newest is not None and not self._newest.response_complete:
            self._newest.request.receive(body)

    def on_message_complete(self) -> None:
        if self._is_upgrade or self._newest is None:
            return
        self._end_timer()
        self._in_body = self._only_head = False
        if not self._parser.should_keep_alive():
            self._newest.keep_alive = False  # by a trailer, after which llhttp reads no further
        self._newest.request.end()

    # what answers

    def _take(self, exchange: Exchange) -> None:
        """Answer it, when those before it on the connection are answered."""
        before, self._newest = self._newest, exchange
        if before is None or before.response_complete:
            self._unbegun = exchange  # until it is known whether it has come whole
        else:
            self.flow.pause_reading()
            self._waiting.append(exchange)

    def on_response_complete(self) -> None:
        """The next request may come, or be answered."""
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self._waiting:
            exchange = self._answering = self._waiting.popleft()
            exchange.began = time.perf_counter()
            # In a task of its own, so that many that have come at once do not end inside of each other.
            self._goes_on(exchange, self.loop.create_task(self._answer(exchange)))
            return
        self._idle_since = self.loop.time()
        if self._keep_alive is None:
            self._keep_alive = self.loop.call_later(self.app.server_settings.idle_timeout, self._look_at_idle)

    def _look_at_idle(self) -> None:
        self._keep_alive = None
        if not self.is_waiting:  # the end of the answer to what has come starts it again
            return
        left = self._idle_since + self.app.server_settings.idle_timeout - self.loop.time()
        if left > 0:
            self._keep_alive = self.loop.call_later(left, self._look_at_idle)
        else:
            self.transport.close()

    def _begin(self, exchange: Exchange) -> None:
        self._unbegun, self._answering = None, exchange
        if (task := start(self._answer(exchange), self.loop)) is not None:
            self._goes_on(exchange, task)

    def _goes_on(self, exchange: Exchange, task: asyncio.Task[None]) -> None:
        exchange.task = task
        task.add_done_callback(self._server.tasks.discard)
        self._server.tasks.add(task)

    async def _answer(self, exchange: Exchange) -> None:
        """What is raised is logged, and an answer that is not complete looks so."""
        try:
            await (self.app.answer(exchange) if self.app.answers(exchange.head) else self._pages.answer(exchange))
        except (Exception, asyncio.CancelledError) as error:
            self._logger.exception("A request failed.", exc_info=error)
        if exchange.response_complete or exchange.disconnected:
            return
        if not exchange.response_started:
            await exchange.start(500, _FAILED)
            await exchange.write(b"Internal Server Error", more=False)
        else:
            exchange.flush()
            self.transport.close()

    # what is refused

    def _check(self) -> None:
        """Raise HttpParserError where the head under way is none that is served, which ends the connection."""
        version = self._parser.get_http_version()
        try:
            check_target(self._parser.get_method(), self._url)
            # What came is no less than what is in it, and is known already.
            check_size(self._headers if self._most > MAX_HEAD else (), len(self._headers))
            self._hosts = check_fields(self._headers, version, self._hosts)
        except ProxyError as error:
            self._reject(error)
        if version == "1.0":  # whose clients know no 100 (RFC 9110, section 10.1.1)
            self._expects_100 = False

    def _reject(self, error: ProxyError) -> None:
        """Out of a callback of the parser, which stops it."""
        self._refusal = error
        raise HttpParserError

    def _refuse(self, error: ProxyError) -> None:
        """Answer and close; where another answer is under way, close behind that."""
        if self._is_over:
            return
        self._is_over = True
        self._end_timer()
        exchange = None if self.is_idle else self._newest
        if exchange is not None and not exchange.request.is_coming:
            exchange.keep_alive = False
            return
        if exchange is None or not (exchange.response_started or self._waiting):
            self.transport.write(refusal(error, self.error_shape(self._head_so_far)))
            if exchange is not None:  # whose answer this was
                exchange.lose()
            # Closing on unread bytes resets the connection, and the answer may be lost with it.
            self.transport.write_eof()
            self.flow.resume_reading()
            self._timer = self.loop.call_later(_LINGER, self.transport.close)
            return
        self.transport.close()

    @property
    def _head_so_far(self) -> RequestHead:
        """What has come of the head under way, or of that whose body is coming."""
        if self._left and self._newest is not None:
            return self._newest.head
        return self.app.head("", self._url.decode("latin-1"), self._named if self._url else [])

    def error_shape(self, head: RequestHead) -> ErrorShape:
        return self.app.error_shape(head)

    # what is waited for

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
        limit, now = self.app.server_settings.body_timeout, self.flow.reading_time()
        left = min(self._last_byte, self._first_byte + self._received / MIN_RATE) + limit - now
        if self.flow.read_paused:
            left = max(left, _PAUSED_SECONDS)
        if left > 0:
            self._timer = self.loop.call_later(left, self._body_is_late)
        else:
            self._timer = None
            self._refuse(RequestTimeoutError("The body of the request did not go on in time."))

    # the end of the process

    def end_after_answer(self) -> None:
        """Close once the answer under way is sent, and say so in it: the next one may meet the end of the process."""
        if self._newest is not None and not self.is_idle:
            self._newest.keep_alive = False

    def shutdown(self) -> None:
        """As uvicorn's server asks for: end now if nothing is under way, else once it is answered."""
        if self.is_idle:
            self.transport.close()
        else:
            self.end_after_answer()

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way; one may be on its way to us nevertheless."""
        return self._newest is None or self._newest.response_complete

    @property
    def is_waiting(self) -> bool:
        """Whether nothing has come of a next request."""
        return self.is_idle and not (self._in_head or self._in_body)
