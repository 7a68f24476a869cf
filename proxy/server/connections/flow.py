"""Flow control of a client's connection, with a clock that stands still while nothing is read."""

import asyncio
from collections.abc import Callable

from proxy.server.connections.pausable import Pausable


class Flow(Pausable):
    """Pauses a transport, and knows how long nothing was read."""

    def __init__(self, transport: asyncio.Transport, now: Callable[[], float]) -> None:
        super().__init__()
        self._transport = transport
        self._now = now
        self._paused_at = self._paused_seconds = 0.0

    def reading_time(self) -> float:
        return (self._paused_at if self.read_paused else self._now()) - self._paused_seconds

    def pause_reading(self) -> None:
        if not self.read_paused:
            self._paused_at = self._now()
            self._transport.pause_reading()
            super().pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused:
            self._paused_seconds += self._now() - self._paused_at
            super().resume_reading()
            self._transport.resume_reading()
