"""Connections that are kept open between requests."""

import asyncio
import os

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_ID_BYTES = 8


class KeepAlive(HttpToolsProtocol):
    """uvicorn's protocol, but for its timer with every answer: ours looks when it fires for how long nothing came."""

    _idle_since = 0.0
    # Of the request before, as a number.
    _id = 0

    @property
    def is_waiting(self) -> bool:
        """Whether nothing has come of a next request."""
        raise NotImplementedError

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._id = int.from_bytes(os.urandom(_ID_BYTES))

    def next_id(self) -> str:
        """Of a request: 16 hex digits that no other one has, of whichever connection."""
        self._id = (self._id + 1) % (1 << 8 * _ID_BYTES)
        return "%016x" % self._id  # noqa: UP031 - takes a third of the time

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._look_in(self.timeout_keep_alive)

    def _look_in(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if not self.is_waiting:  # the end of the answer to what has come starts it again
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._look_in(left)
        else:
            self.transport.close()
