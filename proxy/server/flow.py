"""Flow control of a client's connection."""

import asyncio
from collections.abc import Sized

from uvicorn.protocols.http.flow_control import FlowControl

MOST_PIPELINED = 16


class TimedFlowControl(FlowControl):
    """uvicorn's flow control with a clock that stops while reading is paused.

    waiting: requests that wait for an earlier one. With MOST_PIPELINED of them reading stays paused.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, waiting: Sized) -> None:
        """Create the flow control of a connection."""
        super().__init__(transport)
        self._waiting = waiting
        self._now = loop.time
        self._paused_at = self._paused_seconds = 0.0

    def reading_time(self) -> float:
        """Return the seconds during which reading was not paused."""
        return (self._paused_at if self.read_paused else self._now()) - self._paused_seconds

    def pause_reading(self) -> None:
        """Stop reading, and stop the clock."""
        if not self.read_paused:
            self._paused_at = self._now()
        super().pause_reading()

    def resume_reading(self) -> None:
        """Continue reading, unless too many requests wait."""
        if self.read_paused and len(self._waiting) < MOST_PIPELINED:
            self._paused_seconds += self._now() - self._paused_at
            super().resume_reading()
