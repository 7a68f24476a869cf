"""One HTTP exchange with a client by ASGI: its request, the response, and its disconnect."""

import asyncio
import os
import re
import time
from collections import deque
from collections.abc import Callable

from proxy.errors import ClientGoneError, ProxyError
from proxy.runtime.deadlines import RepeatedCancel
from proxy.runtime.stepping import start
from proxy.server.error_shape import ErrorShape
from proxy.server.head import RequestHead
from proxy.server.headers import REQUEST_ID, Headers, first, without
from proxy.server.request_body import RequestBody
from proxy.server.served import Event, Receive, Send
from proxy.server.waiting import KeepAlive

_GIVEN_ID = b"x-request-id"
_FIT = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:/=-]{0,127}")
# Seconds before a task waits for a disconnect. A request that ends sooner needs no task for it.
_WATCH_AFTER = 0.05
# Statuses without a body. Servers expect a body after a Content-Length.
_WITHOUT_BODY = (204, 304)


class Exchange:
    """One HTTP request and its response.

    id:               the proxy's id of the request, in the response and the log.
    began:            the time when it began, in monotonic seconds.
    request:          the body of the request.
    disconnected:     True if the client has disconnected. Nothing is written after that.
    status, sent:     the status of the response, and the bytes of its body so far.
    comments:         the number of keep-alives written.
    waiting:          writes keep-alives; None if the client reads none.
    is_begun_by_sign: True if a keep-alive has begun the response.
    takes_event:      True if an event of the proxy may follow what was written.
    on_writable:      called when the client reads on, after `put` returned False.
    ended_by:         the error that ended the work early; None without one.
    """

    def __init__(
        self, head: RequestHead, receive: Receive, send: Send, errors: ErrorShape, *, has_body: bool = True
    ) -> None:
        """Create an exchange. Must be called in the task that answers the request."""
        self.head = head
        self.request = RequestBody(head, receive, is_coming=has_body)
        self.id = os.urandom(8).hex()
        self.began = time.perf_counter()
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
        self._errors = errors
        self._receive = receive
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._response_headers: Headers = []
        # Sends events that the server does not take immediately, and those after them.
        self._sending: asyncio.Task[None] | None = None
        self._unsent: deque[Event] = deque()
        self._watching: asyncio.TimerHandle | asyncio.Task[None] | None = None
        self._ending: RepeatedCancel | None = None
        self._is_worked_on = False

    @property
    def client_id(self) -> str | None:
        """Return the client's id of this request; None if it has none that is safe to log."""
        return _fit(self.head.header(_GIVEN_ID))

    @property
    def upstream_id(self) -> str | None:
        """Return the upstream's id of the request; None if it has none that is safe to log."""
        return _fit(first(self._response_headers, _GIVEN_ID))

    # the end of the work

    def begin_work(self) -> None:
        """Let `end` and a disconnect end the work from now on. Raises the error that has ended it already."""
        if self.disconnected:
            self.ended_by = self.ended_by or ClientGoneError()
        if self.ended_by is not None:
            raise self.ended_by
        self._is_worked_on = True
        self._watching = self._loop.call_later(_WATCH_AFTER, self._watch)

    def end_work(self) -> None:
        """End the work for the request. From now on only its response is written."""
        self._is_worked_on = False
        self.ended_by = None  # its traceback would refer to this exchange
        if self._ending is not None:
            self._ending.stop()
            self._ending = None
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
        if self.waiting is not None:
            self.waiting.stop()
            self.waiting = None  # they refer to each other and would stay in memory until garbage collection

    def end(self, error: ProxyError | ClientGoneError) -> None:
        """End the work for this exchange reliably. The first error is the one that is raised."""
        if self.ended_by is None:
            self.ended_by = error
            if self._is_worked_on and self._task is not None:
                self._ending = RepeatedCancel(self._task)
                self._ending.begin()

    def lose(self) -> None:
        """Note that the client has disconnected."""
        if self.response_complete:
            return
        self.disconnected = True
        if self._is_worked_on:
            self.end(ClientGoneError())

    def _watch(self) -> None:
        """Wait for a disconnect. A reader of the body notices it itself."""
        if self.request.is_coming:
            self._watching = self._loop.call_later(_WATCH_AFTER, self._watch)
        else:
            self._watching = self._loop.create_task(self._wait_for_disconnect())

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.lose()

    # keep-alives

    def write_sign(self, sign: bytes) -> None:
        """Write a keep-alive if the client can take it immediately."""
        if not self.response_complete and self._sending is None:
            self.put(sign, more=True)
            self.comments += 1
            self.takes_event = True

    # the response

    async def start(self, status: int, headers: Headers) -> None:
        """Begin the response."""
        await self.wait_for_room()
        self.begin(status, headers)

    def begin(self, status: int, headers: Headers) -> None:
        """Begin the response without waiting."""
        self._response_headers = headers
        self.response_started = True
        self.status = status
        if status in _WITHOUT_BODY:
            headers = without(headers, b"content-length")
        headers = [*headers, (REQUEST_ID, self.id.encode())]
        self._emit({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, chunk: bytes, *, more: bool) -> None:
        """Write a chunk, after waiting if the client reads too slowly."""
        await self.wait_for_room()
        self.put(chunk, more=more)

    def put(self, chunk: bytes, *, more: bool) -> bool:
        """Write without waiting. Returns True if there is room for more; else `on_writable` is called later."""
        self.sent += len(chunk)
        self._emit({"type": "http.response.body", "body": chunk, "more_body": more})
        if not more:
            self.response_complete = True
        return self._sending is None

    async def wait_for_room(self) -> None:
        """Wait until there is room to write."""
        if self._sending is not None:
            await asyncio.wait((self._sending,))

    async def finish(self) -> None:
        """Wait until everything written is sent."""
        if self._sending is not None:
            await self._sending

    def _emit(self, event: Event) -> None:
        """Send an event now if the server takes it immediately, as usual. Otherwise a task sends it."""
        if self.disconnected:
            return
        if self._sending is not None:
            self._unsent.append(event)
            return
        if (task := start(self._send_all(event), self._loop)) is not None:
            self._sending = task
            task.add_done_callback(self._on_sent)

    async def _send_all(self, event: Event) -> None:
        try:
            await self._send(event)
            while self._unsent:
                await self._send(self._unsent.popleft())
        except OSError:  # newer servers report a disconnect by it
            self.lose()

    def _on_sent(self, task: asyncio.Task[None]) -> None:
        self._sending = None
        if self._unsent and not (self.disconnected or task.cancelled()):
            self._emit(self._unsent.popleft())  # written since the task ended
        elif self.on_writable is not None:
            self.on_writable()

    # errors of the proxy

    async def end_with_error(self, error: object, status: int) -> None:
        """End a stream that a keep-alive began with an error."""
        await self.write(self._errors.error_event(error, status, ends=True), more=False)

    async def write_error(self, error: ProxyError) -> None:
        """Write an event that reports an error in a stream. The stream does not end."""
        await self.write(self._errors.error_event(error.fields(), error.status, ends=False), more=True)

    async def break_off(self, error: ProxyError) -> None:
        """End an unfinished response with the error, so that no client takes it for complete."""
        if not self.response_started:
            await self._refuse(error)
        elif self.takes_event:
            await self.write_error(error)

    async def refuse(self, error: ProxyError) -> None:
        """Respond with an error of the proxy, unless a response has begun."""
        if self.is_begun_by_sign:
            await self.end_with_error(error.fields(), error.status)
        elif not self.response_started:
            await self._refuse(error)

    async def _refuse(self, error: ProxyError) -> None:
        body = self._errors.error_body(error.fields(), error.status)
        length = (b"content-length", str(len(body)).encode())
        self.request.discard()
        # The start of the next request is unknown before the end of this body.
        close = [(b"connection", b"close")] if self.request.is_coming or error.ends_connection else []
        await self.start(error.status, [*error.headers(), length, *close])
        if close:
            await self.write(body, more=True)
            await self.request.linger()
            body = b""
        await self.write(body, more=False)


def _fit(value: bytes | None) -> str | None:
    return value.decode() if value and _FIT.fullmatch(value) else None
