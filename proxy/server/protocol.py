"""uvicorn's HTTP/1.1 protocol on httptools with what it lacks: deadlines, limits, and strictness about framing."""

import asyncio
import time
from asyncio import TimerHandle
from collections import deque
from collections.abc import Callable

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from proxy.config.settings import Server
from proxy.dialects.base import Dialect
from proxy.errors import HeadersTooLargeError, InvalidRequestError, ProxyError, RequestTimeoutError, URITooLongError
from proxy.runtime.stepping import started
from proxy.server.answer_head import refusal
from proxy.server.connections.flow import Flow
from proxy.server.connections.keep_alive import KeepAlive
from proxy.server.connections.repeats import Repeat, repeat_of
from proxy.server.connections.sending import MIN_RATE, Sending
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
_DEFAULTS = Server()
_FAILED = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"21"), (b"connection", b"close")]


class Guard(KeepAlive):
    """One connection of a client. What is refused here never becomes a request, and the connection ends with it.
    A request that comes whole, which is nearly every one, starts no timer: they run for what has to be waited for."""

    flow: Flow
    cycle: RequestResponseCycle | Exchange | None  # type: ignore[assignment]
    pipeline: deque[tuple[RequestResponseCycle | Exchange, ASGI3Application]]  # type: ignore[assignment]
    url = b""
    # Of the request under way; `headers` are where the next ones go, which trailers are not.
    _named: list[tuple[bytes, bytes]]
    # That whose turn it is; `cycle` is the last one that has come.
    _answering: Exchange | None = None
    _unbegun: Exchange | None = None
    _read: RequestHead
    _repeat: Repeat | None = None
    # Bytes of a body behind a repeated head that are to come, which no parser has to see.
    _left = 0
    memo: object = None
    _head = 0
    _most = 0
    # Bytes of a body beside its content: chunk sizes and extensions, trailers.
    _framing = 0
    _received = 0
    _hosts: list[bytes] | None = None
    _in_head = False
    _in_body = False
    _only_head = True
    _is_upgrade = False
    _refusal: ProxyError | None = None
    _timer: TimerHandle | None = None
    _first_byte = 0.0
    _last_byte = 0.0
    _is_over = False
    _sending: Sending

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = Flow(transport, self.loop.time)
        self._sending = Sending(transport, self.loop)
        self._timer = self.loop.call_later(self._settings.header_timeout, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_timer()
        self._sending.stop()
        if self._answering is not None:
            self._answering.lose()
        if isinstance(self.cycle, Exchange):
            self.cycle = None
        super().connection_lost(exc)

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
        if begins and isinstance(self.cycle, Exchange) and self.cycle.keep_alive:
            self._repeat = repeat_of(self._read, data)
        if self._in_head:
            self._wait_for_head()
        elif self._in_body:
            self._wait_for_body(len(data))
        elif self.is_idle:  # after empty lines, or the end of a body that was not waited for
            self._wait(self._head_is_late, self._settings.header_timeout)
        if self._unbegun is not None:
            self._begin(self._unbegun)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._sending.watch(self._settings.body_timeout)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._sending.stop()
        if self._answering is not None:
            self._answering.writable()

    def _serve(self, head: RequestHead, body: bytes | memoryview, left: int) -> None:
        """A request with a head that was read before: its body as far as it has come, and how much is to come of it."""
        self._end_timer()
        exchange = self.cycle = Exchange(head, self, keep_alive=True, expects=False)
        exchange.request.receive(body)
        self._left = left
        if left:
            self._in_body, self._framing = True, 0
            self._wait_for_body(len(body))
        else:
            exchange.request.end()
        if isinstance(self.app, Served) and self.app.is_draining:
            self.end_after_answer()
        self._begin(exchange)

    def _receive(self, data: bytes) -> bytes:
        """What comes of the body of such a request; returns what belongs to the next one."""
        exchange, size = self.cycle, min(len(data), self._left)
        self._left -= size
        if not isinstance(exchange, Exchange):
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
                self._wait(self._head_is_late, self._settings.header_timeout)
        return data[size:]

    def _feed(self, data: bytes) -> None:
        try:
            while data:
                data = self._parse(data)
        except HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response("")

    def _parse(self, data: bytes) -> bytes:
        """Returns what is still to be parsed: httptools stops at an Upgrade, which we ignore (RFC 9110, section 7.8).
        Its body would be taken for the next request. A parser that has ended a connection reads no further, so that a
        new one begins."""
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

    def _wait_for_head(self) -> None:
        if self._only_head:  # httptools keeps a header until it is whole, however long it gets
            self._head = self._most
        if len(self.url) > MAX_LINE:
            self._refuse(URITooLongError())
        elif self._head > MAX_HEAD:
            self._refuse(HeadersTooLargeError())
        self._wait(self._head_is_late, self._settings.header_timeout)

    def _wait_for_body(self, size: int) -> None:
        if self._framing > MAX_HEAD:
            self._refuse(HeadersTooLargeError())
        self._last_byte = self.flow.reading_time()
        if self._timer is None:
            self._first_byte, self._received = self._last_byte, 0
        self._received += size
        self._wait(self._body_is_late, self._settings.body_timeout)

    # httptools' callbacks; what they raise ends in `send_400_response`

    def on_message_begin(self) -> None:
        self.url, self.expect_100_continue = b"", False
        self.headers = self._named = []
        self._in_head, self._head = True, 0

    def on_headers_complete(self) -> None:
        self._end_timer()
        self._check()
        self._is_upgrade = self.parser.should_upgrade()
        if self._is_upgrade:
            return
        head = RequestHead(self.parser.get_method().decode(), target_of(self.url), self._named)
        if isinstance(self.app, Served) and self.app.answers(head):
            keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
            self._read = head
            self._take(Exchange(head, self, keep_alive=keep_alive, expects=self.expect_100_continue))
        else:
            self._give_to_asgi()
        self.headers = []  # trailers are no headers of the request, which has its own list (RFC 9110, section 6.5.1)
        self._in_head, self._in_body, self._framing = False, True, 0
        if isinstance(self.app, Served) and self.app.is_draining:
            self.end_after_answer()

    def on_body(self, body: bytes) -> None:
        self._framing = max(0, self._framing - len(body) - _CHUNK_FRAMING)
        if not isinstance(self.cycle, Exchange):
            super().on_body(body)
        elif not self.cycle.response_complete:
            self.cycle.request.receive(body)

    def on_message_complete(self) -> None:
        if self._is_upgrade:
            return
        self._end_timer()
        self._in_body = self._only_head = False
        if not self.parser.should_keep_alive() and self.cycle is not None:
            self.cycle.keep_alive = False  # by a trailer, after which llhttp reads no further
        if isinstance(self.cycle, Exchange):
            self.cycle.request.end()
        else:
            super().on_message_complete()

    # what answers

    def _take(self, exchange: Exchange) -> None:
        """Answer it, when those before it on the connection are answered."""
        before, self.cycle = self.cycle, exchange
        if before is None or before.response_complete:
            self._unbegun = exchange  # until it is known whether it has come whole
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((exchange, self.app))

    def _give_to_asgi(self) -> None:
        url, expects, headers = self.url, self.expect_100_continue, self.headers
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle | Exchange, app: ASGI3Application) -> None:
        if isinstance(cycle, Exchange):
            cycle.began = time.perf_counter()
            self._answering = cycle
            # Not in the middle of the answer before it.
            self._goes_on(cycle, self.loop.create_task(self._answer(cycle)))
        else:
            super()._start_asgi_task(cycle, app)

    def _begin(self, exchange: Exchange) -> None:
        self._unbegun, self._answering = None, exchange
        if (task := started(self._answer(exchange), self.loop)) is not None:
            self._goes_on(exchange, task)

    def _goes_on(self, exchange: Exchange, task: asyncio.Task[None]) -> None:
        exchange.task = task
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    async def _answer(self, exchange: Exchange) -> None:
        """As uvicorn does it: what is raised is logged, and an answer that is not complete looks so."""
        assert isinstance(self.app, Served)  # noqa: S101 - which alone is given exchanges
        try:
            await self.app.answer(exchange)
        except BaseException as error:
            self.logger.exception("A request failed.", exc_info=error)
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
        version = self.parser.get_http_version()
        try:
            check_target(self.parser.get_method(), self.url)
            # What came is no less than what is in it, and is known already.
            check_size(self.headers if self._most > MAX_HEAD else (), len(self.headers))
            self._hosts = check_fields(self.headers, version, self._hosts)
        except ProxyError as error:
            self._reject(error)
        if version == "1.0":  # whose clients know no 100 (RFC 9110, section 10.1.1)
            self.expect_100_continue = False

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
            self.transport.write(refusal(error, self._dialect))
            if isinstance(cycle, Exchange):  # whose answer this was
                cycle.lose()
            elif cycle is not None:
                cycle.disconnected = True
                cycle.message_event.set()
            # Closing on unread bytes resets the connection, and the answer may be lost with it.
            self.transport.write_eof()
            self.flow.resume_reading()
            self._timer = self.loop.call_later(_LINGER, self.transport.close)
            return
        self.transport.close()

    @property
    def _dialect(self) -> Dialect:
        """As far as it can be told from what has come of the request."""
        if self._left and isinstance(self.cycle, Exchange):
            return self.cycle.head.dialect
        return RequestHead("", self.url.decode("latin-1"), self._named if self.url else []).dialect

    # what is waited for

    @property
    def _settings(self) -> Server:
        return self.app.server_settings if isinstance(self.app, Served) else _DEFAULTS

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
        limit, now = self._settings.body_timeout, self.flow.reading_time()
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
        if self.cycle is not None and not self.is_idle:
            self.cycle.keep_alive = False

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way; one may be on its way to us nevertheless."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def is_waiting(self) -> bool:
        return self.is_idle and not (self._in_head or self._in_body)
