"""Signs of life for a client that waits for an event stream, while there is nothing else to send.

Proxies between cut connections that say nothing: nginx and AWS's balancers after 60 s, Heroku's after 30 s without a
first byte. A stream that has begun has no status any more, so the first sign waits until a refusal would have come.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from proxy.server.headers import Headers

EVENTS: Headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
# Seconds of silence after which comments are not enough: codex ends a stream without events after 300 s.
_LONG = 240.0


class Signs(Protocol):
    """The signs of a dialect.

    WAITING:   a comment, which may begin an event stream or stand between two events.
    KEEPALIVE: an event for clients that do not hear comments; empty if there is none.
    """

    WAITING: bytes
    KEEPALIVE: bytes


class WaitingExchange(Protocol):
    """An exchange with a client that may have to wait.

    is_begun_by_sign: whether a sign has begun the response.
    """

    response_started: bool
    is_begun_by_sign: bool

    def begin(self, status: int, headers: Headers) -> None:
        """Begin the response."""

    def write_sign(self, sign: bytes) -> None:
        """Write a sign of life, if the client takes it at once."""


class KeepAlive:
    """Writes a sign every `interval` seconds of silence; one per exchange.

    Before the header block it begins the response with a sign. After that it writes only where `may` allows it.
    """

    def __init__(self, exchange: WaitingExchange, signs: Signs, interval: float) -> None:
        self._exchange = exchange
        self._signs = signs
        self._interval = interval
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._headers: Callable[[], Headers] = list
        self._may: Callable[[], bool] | None = None
        self._is_writing = self._is_silent = False
        self._silent_seconds = 0.0

    def start(self, intervals: int, headers: Callable[[], Headers] = list) -> None:
        """Write the first sign after so many intervals; a later call puts it off. Signs that have begun go on.

        headers: of a response that a sign begins.
        """
        if self._is_writing:
            return
        self.stop()
        self._headers = headers
        self._timer = self._loop.call_later(intervals * self._interval, self._write_signs)

    def cancel(self) -> None:
        """Do not write the first sign. Signs that have begun go on."""
        if not self._is_writing:
            self.stop()

    def stop(self) -> None:
        """Write no sign any more."""
        self._may = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def watch(self, may: Callable[[], bool]) -> None:
        """Write signs from now on when the response pauses and `may` returns True.

        A pause is noticed at the second tick in a row without `heard`, so that passing bytes start no timer.
        """
        self.stop()
        self._may, self._is_silent = may, False
        self._timer = self._loop.call_later(self._interval, self._look)

    def heard(self) -> None:
        """Note that something of the response has passed."""
        self._is_silent = False

    def _write_signs(self) -> None:
        self._timer = self._loop.call_later(self._interval, self._write_signs)
        self._is_writing, exchange = True, self._exchange
        if not exchange.response_started:
            exchange.begin(200, [*EVENTS, *self._headers()])
            exchange.is_begun_by_sign = True
        self._write_sign()

    def _look(self) -> None:
        self._timer = self._loop.call_later(self._interval, self._look)
        if not self._is_silent:
            self._is_silent, self._silent_seconds = True, 0.0
        elif self._may is not None and self._may():
            self._write_sign()

    def _write_sign(self) -> None:
        self._silent_seconds += self._interval
        sign = self._signs.WAITING
        if self._silent_seconds >= _LONG and self._signs.KEEPALIVE:
            self._silent_seconds, sign = 0.0, sign + self._signs.KEEPALIVE
        self._exchange.write_sign(sign)
