"""An upstream's response, from any source of bytes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import msgspec

from proxy.server.headers import Headers, first

_EVENT_STREAM = b"text/event-stream"


class TruncatedError(Exception):
    """The upstream disconnected within its response. `cause` is one word for the log."""

    def __init__(self, cause: str) -> None:
        """Create an error with this cause."""
        super().__init__(cause)
        self.cause = cause


class Sink(Protocol):
    """Receives the bytes of a body."""

    def take(self, chunk: bytes, *, is_last: bool) -> bool:
        """Take bytes. Returns True if more may follow now; else the body waits for `resume`."""


class BodySource(Protocol):
    """The bytes of a response's body with their codings, taken in pieces or poured into a sink."""

    @property
    def is_complete(self) -> bool:
        """Return True if all bytes have been received."""

    def take(self) -> bytes:
        """Return the bytes received since the last call."""

    def untake(self, chunk: bytes) -> None:
        """Put bytes back that were taken, before taking anything else."""

    async def more(self, seconds: float | None) -> bool:
        """Wait for more bytes, at most for `seconds`. Returns False if none came. Raises TruncatedError."""

    async def pour(self, sink: Sink) -> None:
        """Pass all bytes that were not taken, and all later ones, to the sink. Raises TruncatedError."""

    def resume(self) -> None:
        """Continue after the sink returned False."""

    def close(self) -> None:
        """Give the connection back if the body was read to its end; else close it, so that the upstream can stop."""


class UpstreamResponse(msgspec.Struct, frozen=True):
    """A response whose header block has arrived. Header names are in lower case."""

    status: int
    headers: Headers
    body: BodySource

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a header, by its name in lower case."""
        return first(self.headers, name)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body's bytes as they arrive, once. Raises TruncatedError."""
        while True:
            if chunk := self.body.take():
                yield chunk
            elif not await self.body.more(None):
                return

    async def read(self, limit: int) -> bytes | None:
        """Return the whole body; None if it is longer than `limit` bytes. Raises TruncatedError."""
        parts: list[bytes] = []
        size = 0
        async for chunk in self.chunks():
            size += len(chunk)
            if size > limit:
                return None
            parts.append(chunk)
        return b"".join(parts)

    def close(self) -> None:
        """Close the body."""
        self.body.close()


class IteratedBody:
    """A body whose pieces an iterator yields."""

    def __init__(self, pieces: AsyncIterator[bytes], close: Callable[[], None] = lambda: None) -> None:
        """Create a body. close: called when the body is closed."""
        self.is_complete = False
        self._pieces = pieces
        self._close = close
        self._held = b""
        # The next piece, if a wait for it timed out.
        self._next: asyncio.Task[bytes | None] | None = None
        self._room = asyncio.Event()
        self._room.set()

    def take(self) -> bytes:
        """Return the bytes received since the last call."""
        chunk, self._held = self._held, b""
        return chunk

    def untake(self, chunk: bytes) -> None:
        """Put bytes back that were taken."""
        self._held = chunk + self._held

    async def more(self, seconds: float | None) -> bool:
        """Wait for the next piece, at most for `seconds`. Returns False if there is none."""
        if self.is_complete:
            return False
        if seconds is None and self._next is None:
            piece = await self._piece()
        else:
            task = self._next = self._next or asyncio.create_task(self._piece())
            try:
                await asyncio.wait({task}, timeout=seconds)
            except asyncio.CancelledError:
                task.cancel()
                raise
            if not task.done():
                return False
            self._next, piece = None, task.result()
        if piece is None:
            self.is_complete = True
        self._held += piece or b""
        return piece is not None

    async def _piece(self) -> bytes | None:
        return await anext(self._pieces, None)

    async def pour(self, sink: Sink) -> None:
        """Pass all pieces to the sink."""
        self._room.set()
        while True:
            if chunk := self.take():
                if not sink.take(chunk, is_last=self.is_complete):
                    self._room.clear()
                await self._room.wait()
            elif not await self.more(None):
                return

    def resume(self) -> None:
        """Continue after the sink returned False."""
        self._room.set()

    def close(self) -> None:
        """Cancel a pending piece and close the source."""
        if self._next is not None:
            self._next.cancel()
        self._close()


def whole_body(content: bytes) -> IteratedBody:
    """Return a body that is already complete."""

    async def no_pieces() -> AsyncIterator[bytes]:
        for piece in tuple[bytes, ...]():
            yield piece

    body = IteratedBody(no_pieces())
    body.untake(content)
    body.is_complete = True
    return body


def is_event_stream(headers: Headers) -> bool:
    """Return True if the content type is that of an event stream."""
    return (first(headers, b"content-type") or b"").lower().startswith(_EVENT_STREAM)
