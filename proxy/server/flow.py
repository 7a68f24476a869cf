"""Flow control of a client's connection."""

import asyncio

from uvicorn.protocols.http.flow_control import FlowControl


class TimedFlowControl(FlowControl):
    """uvicorn's flow control with a clock that stops while reading is paused."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(transport)
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
        if self.read_paused:
            self._paused_seconds += self._now() - self._paused_at
        super().resume_reading()
