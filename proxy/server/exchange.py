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
# Seconds before a disconnect is waited for. A request that ends sooner needs no task for it.
_WATCH_AFTER = 0.05
# Statuses without a body. Servers take a length for a promise of one.
_WITHOUT_BODY = (204, 304)


class Exchange:
    """One HTTP request and its response.

    id:           ours for this request, as its response says and the log.
    began:        when it began, in seconds that only go forward.
    request:      its body.
    disconnected: the client has left. Nothing is written any more.
    status, sent: of the response, and the bytes of its body so far.
    comments:     signs of life that were written.
    waiting:      writes them; None if the client hears none. is_begun_by_sign: whether one has begun the response.
    takes_event:  whether an event of ours could follow what of the response was written.
    on_writable:  called when the client reads on, after `put` had no more room.
    ended_by:     why the work for it was ended before it was done.
    """

    def __init__(
        self, head: RequestHead, receive: Receive, send: Send, errors: ErrorShape, *, has_body: bool = True
    ) -> None:
        """Must be called in the task that answers the request."""
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
        # Sends what the server does not take at once, and the events behind it.
        self._sending: asyncio.Task[None] | None = None
        self._unsent: deque[Event] = deque()
        self._watching: asyncio.TimerHandle | asyncio.Task[None] | None = None
        self._ending: RepeatedCancel | None = None
        self._is_worked_on = False

    @property
    def client_id(self) -> str | None:
        """Return the client's id of this request, None if it has none that is fit for a log."""
        return _fit(self.head.header(_GIVEN_ID))

    @property
    def upstream_id(self) -> str | None:
        """Return the upstream's id of the request, None as above."""
        return _fit(first(self._response_headers, _GIVEN_ID))

    # its end

    def begin_work(self) -> None:
        """Let `end` and a disconnect end the work from now on. Raises what has ended it already."""
        if self.disconnected:
            self.ended_by = self.ended_by or ClientGoneError()
        if self.ended_by is not None:
            raise self.ended_by
        self._is_worked_on = True
        self._watching = self._loop.call_later(_WATCH_AFTER, self._watch)

    def end_work(self) -> None:
        """End the work for the request. From now on only its response is written."""
        self._is_worked_on = False
        self.ended_by = None  # by which it would lead back to itself, once it is raised
        if self._ending is not None:
            self._ending.stop()
            self._ending = None
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
        if self.waiting is not None:
            self.waiting.stop()
            self.waiting = None  # each would keep the other until the garbage collector comes

    def end(self, error: ProxyError | ClientGoneError) -> None:
        """End the work for this exchange, for certain. The first error is the one that is raised."""
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
        """Wait for a disconnect, which a reader of the body notices by itself."""
        if self.request.is_coming:
            self._watching = self._loop.call_later(_WATCH_AFTER, self._watch)
        else:
            self._watching = self._loop.create_task(self._wait_for_disconnect())

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.lose()

    # signs of life

    def write_sign(self, sign: bytes) -> None:
        """Write a sign of life if the client takes it at once."""
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
        """Write, after waiting while the client reads more slowly than we write."""
        await self.wait_for_room()
        self.put(chunk, more=more)

    def put(self, chunk: bytes, *, more: bool) -> bool:
        """Write without waiting. Return True if there is room for more, else `on_writable` is called when there is."""
        self.sent += len(chunk)
        self._emit({"type": "http.response.body", "body": chunk, "more_body": more})
        if not more:
            self.response_complete = True
        return self._sending is None

    async def wait_for_room(self) -> None:
        """Return when there is room to write."""
        if self._sending is not None:
            await asyncio.wait((self._sending,))

    async def finish(self) -> None:
        """Return when all that was written is sent."""
        if self._sending is not None:
            await self._sending

    def _emit(self, event: Event) -> None:
        """Send an event now if the server takes it at once, as most do. A task sends it otherwise."""
        if self.disconnected:
            return
        if self._sending is not None:
            self._unsent.append(event)
            return
        if (task := start(self._carry(event), self._loop)) is not None:
            self._sending = task
            task.add_done_callback(self._on_sent)

    async def _carry(self, event: Event) -> None:
        try:
            await self._send(event)
            while self._unsent:
                await self._send(self._unsent.popleft())
        except OSError:  # as newer servers report a disconnect
            self.lose()

    def _on_sent(self, task: asyncio.Task[None]) -> None:
        self._sending = None
        if self._unsent and not (self.disconnected or task.cancelled()):
            self._emit(self._unsent.popleft())  # what was written since the task ended
        elif self.on_writable is not None:
            self.on_writable()

    # errors of ours

    async def end_with_error(self, error: object, status: int) -> None:
        """End a stream that a sign of life began."""
        await self.write(self._errors.error_event(error, status, ends=True), more=False)

    async def write_error(self, error: ProxyError) -> None:
        """Write an event that reports an error in a stream, which does not end by it."""
        await self.write(self._errors.error_event(error.fields(), error.status, ends=False), more=True)

    async def break_off(self, error: ProxyError) -> None:
        """End an unfinished response: with the error, and so that no client takes it for complete."""
        if not self.response_started:
            await self._refuse(error)
        elif self.takes_event:
            await self.write_error(error)

    async def refuse(self, error: ProxyError) -> None:
        """Respond with an error of ours, unless a response has begun already."""
        if self.is_begun_by_sign:
            await self.end_with_error(error.fields(), error.status)
        elif not self.response_started:
            await self._refuse(error)

    async def _refuse(self, error: ProxyError) -> None:
        body = self._errors.error_body(error.fields(), error.status)
        length = (b"content-length", str(len(body)).encode())
        self.request.discard()
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
