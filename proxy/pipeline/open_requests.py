"""Requests in flight and their deadlines, with a single timer for all."""

import asyncio
import time

from proxy.errors import EndedError, RequestDeadlineError
from proxy.server.exchange import Exchange

_NEVER = float("inf")


class OpenRequests:
    """Ends requests that take too long. One per process."""

    def __init__(self) -> None:
        """Create an empty set."""
        # For each exchange: its deadline in monotonic seconds, and its total seconds.
        self._open: dict[Exchange, tuple[float, float]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = _NEVER

    def __len__(self) -> int:
        """Return the number of requests in flight."""
        return len(self._open)

    def add(self, exchange: Exchange, seconds: float) -> None:
        """End the exchange with a RequestDeadlineError after this many seconds, unless it is removed before."""
        end = exchange.began + seconds
        self._open[exchange] = end, seconds
        if end < self._due:
            self._watch(end)

    def remove(self, exchange: Exchange) -> None:
        """Stop watching an exchange."""
        del self._open[exchange]

    def end(self, error: EndedError) -> None:
        """End all exchanges now, each with an error that its client can read."""
        for exchange in [*self._open]:
            exchange.end(error)

    def _watch(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        seconds = max(0.0, due - time.perf_counter())
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        now, self._timer, self._due = time.perf_counter(), None, _NEVER
        for exchange, (end, seconds) in self._open.items():
            if end <= now:
                exchange.end(RequestDeadlineError(seconds))
        next_end = min((end for end, _ in self._open.values() if end > now), default=None)
        if next_end is not None:
            self._watch(next_end)
