"""Clients that read their responses too slowly."""

import asyncio

# Bytes per second that a client must send or read on average, as in Apache's mod_reqtimeout.
MIN_RATE = 500


class SlowReaderTimer:
    """Aborts a connection whose client reads less than MIN_RATE, since it occupies a slot here and at an upstream."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        """Create a timer for this connection."""
        self._transport = transport
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._unsent = 0

    def start(self, seconds: float) -> None:
        """Check every `seconds` until `stop`."""
        self._unsent = self._transport.get_write_buffer_size()
        self._timer = self._loop.call_later(seconds, self._check, seconds)

    def stop(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self, seconds: float) -> None:
        if self._unsent - self._transport.get_write_buffer_size() < MIN_RATE * seconds:
            self._timer = None
            self._transport.abort()
        else:
            self.start(seconds)
