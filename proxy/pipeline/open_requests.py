"""Requests under way, and by when each has to have ended: one timer for all of them."""

import asyncio
import time

from proxy.errors import EndedError, RequestDeadlineError
from proxy.server.exchange import Exchange

_NEVER = float("inf")


class OpenRequests:
    """Ends requests that take too long. One per process."""

    def __init__(self) -> None:
        # Each with its end, in seconds that go forward, and how many seconds it has in all.
        self._open: dict[Exchange, tuple[float, float]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = _NEVER

    def __len__(self) -> int:
        return len(self._open)

    def add(self, exchange: Exchange, seconds: float) -> None:
        """End the exchange by a RequestDeadlineError so many seconds after it began, unless it is removed before."""
        end = exchange.began + seconds
        self._open[exchange] = end, seconds
        if end < self._due:
            self._watch(end)

    def remove(self, exchange: Exchange) -> None:
        del self._open[exchange]

    def end(self, error: EndedError) -> None:
        """End all of them now, each with an error that its client can read."""
        for exchange in [*self._open]:
            exchange.end(error)

    def _watch(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        left = max(0.0, due - time.perf_counter())
        self._timer = asyncio.get_running_loop().call_later(left, self._look)

    def _look(self) -> None:
        now, self._timer, self._due = time.perf_counter(), None, _NEVER
        for exchange, (end, seconds) in self._open.items():
            if end <= now:
                exchange.end(RequestDeadlineError(seconds))
        next_end = min((end for end, _ in self._open.values() if end > now), default=None)
        if next_end is not None:
            self._watch(next_end)
