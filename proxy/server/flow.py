"""Flow control of a client's connection."""

import asyncio
from collections.abc import Sized

from uvicorn.protocols.http.flow_control import FlowControl

MOST_PIPELINED = 16


class TimedFlowControl(FlowControl):
    """uvicorn's flow control with a clock that stops while reading is paused.

    waiting: requests that wait for the one before them. From MOST_PIPELINED of them on reading stays paused.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, waiting: Sized) -> None:
        super().__init__(transport)
        self._waiting = waiting
        self._now = loop.time
        self._paused_at = self._paused_seconds = 0.0

    def reading_time(self) -> float:
        """Return seconds that only count while reading goes on."""
        return (self._paused_at if self.read_paused else self._now()) - self._paused_seconds

    def pause_reading(self) -> None:
        if not self.read_paused:
            self._paused_at = self._now()
        super().pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused and len(self._waiting) < MOST_PIPELINED:
            self._paused_seconds += self._now() - self._paused_at
            super().resume_reading()
