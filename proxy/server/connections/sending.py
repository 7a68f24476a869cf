"""Clients that take their answers too slowly."""

import asyncio

# Bytes a second that a body must keep up in the long run, as in Apache's mod_reqtimeout; an answer, while it waits.
MIN_RATE = 500


class Sending:
    """Watches what waits to be sent: a client that takes next to nothing of its answer keeps a place here, and an
    upstream's, from others."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._unsent = 0

    def watch(self, seconds: float) -> None:
        """End the connection when it takes less than it must in so many seconds, again and again until `stop`."""
        self._unsent = self._transport.get_write_buffer_size()
        self._timer = self._loop.call_later(seconds, self._look, seconds)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, seconds: float) -> None:
        if self._unsent - self._transport.get_write_buffer_size() < MIN_RATE * seconds:
            self._timer = None
            self._transport.abort()
        else:
            self.watch(seconds)
