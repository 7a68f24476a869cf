"""Flow control of a client's connection, with a clock that stands still while nothing is read."""

import asyncio
from collections.abc import Callable

from uvicorn.protocols.http.flow_control import FlowControl


class Flow(FlowControl):
    """uvicorn's, and how long nothing was read."""

    _paused_at = 0.0
    _paused_seconds = 0.0

    def __init__(self, transport: asyncio.Transport, now: Callable[[], float]) -> None:
        super().__init__(transport)
        self._now = now

    def reading_time(self) -> float:
        return (self._paused_at if self.read_paused else self._now()) - self._paused_seconds

    def pause_reading(self) -> None:
        if not self.read_paused:
            self._paused_at = self._now()
        super().pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused:
            self._paused_seconds += self._now() - self._paused_at
        super().resume_reading()
