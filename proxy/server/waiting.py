"""Keep-alives for a client that waits for an event stream while no content is available.

Intermediate proxies cut silent connections: nginx and AWS's balancers after 60 s, Heroku's after 30 s without a first
byte. A stream that has begun cannot have another status, so the first keep-alive waits until an error would have come.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from proxy.server.headers import Headers

EVENTS: Headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
# Seconds of silence after which comments are not enough: codex ends a stream without events after 300 s.
_LONG = 240.0


class Signs(Protocol):
    """The keep-alives of a dialect.

    WAITING:   a comment that may begin an event stream or come between two events.
    KEEPALIVE: an event for clients that ignore comments; empty if there is none.
    """

    WAITING: bytes
    KEEPALIVE: bytes


class WaitingExchange(Protocol):
    """An exchange with a client that may have to wait.

    is_begun_by_sign: True if a keep-alive has begun the response.
    """

    response_started: bool
    is_begun_by_sign: bool

    def begin(self, status: int, headers: Headers) -> None:
        """Begin the response."""

    def write_sign(self, sign: bytes) -> None:
        """Write a keep-alive if the client can take it immediately."""


class KeepAlive:
    """Writes a keep-alive every `interval` seconds of silence. One per exchange.

    Before the header block it begins the response with a keep-alive. After that it writes only if `may` returns True.
    """

    def __init__(self, exchange: WaitingExchange, signs: Signs, interval: float) -> None:
        """Create the keep-alive of an exchange. It is stopped at first."""
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
        """Write the first keep-alive after this many intervals.

        Another call restarts the wait, unless writing has begun.

        headers: those of a response that a keep-alive begins.
        """
        if self._is_writing:
            return
        self.stop()
        self._headers = headers
        self._timer = self._loop.call_later(intervals * self._interval, self._write_signs)

    def cancel(self) -> None:
        """Do not write the first keep-alive. If writing has begun, it continues."""
        if not self._is_writing:
            self.stop()

    def stop(self) -> None:
        """Write no more keep-alives."""
        self._may = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def watch(self, may: Callable[[], bool]) -> None:
        """Write keep-alives from now on when the response pauses and `may` returns True.

        A pause is noticed at the second tick in a row without `on_bytes`, so that relayed bytes start no timer.
        """
        self.stop()
        self._may, self._is_silent = may, False
        self._timer = self._loop.call_later(self._interval, self._check_silence)

    def on_bytes(self) -> None:
        """Note that bytes of the response were relayed."""
        self._is_silent = False

    def _write_signs(self) -> None:
        self._timer = self._loop.call_later(self._interval, self._write_signs)
        self._is_writing, exchange = True, self._exchange
        if not exchange.response_started:
            exchange.begin(200, [*EVENTS, *self._headers()])
            exchange.is_begun_by_sign = True
        self._write_sign()

    def _check_silence(self) -> None:
        self._timer = self._loop.call_later(self._interval, self._check_silence)
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
