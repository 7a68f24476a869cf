"""The body of a client's request, as it comes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Protocol

from proxy.errors import BodyTooLargeError, ClientGoneError
from proxy.runtime.deadlines import within
from proxy.server.head import RequestHead

# Bytes that are read before anybody asks for them.
_AHEAD = 64 * 1024
# Bytes that come between two looks at whether there is room for more.
_AT_ONCE = 256 * 1024
# Bytes that are put together in a thread, which takes a millisecond for two million.
_LARGE = 4 * 1024 * 1024
# Seconds to go on reading what a client sends after it was refused.
_LINGER = 3.0


class PausableTransport(Protocol):
    """As asyncio's, as far as it is used."""

    def is_closing(self) -> bool: ...
    def write(self, data: bytes, /) -> None: ...
    def close(self) -> None: ...


class FlowControl(Protocol):
    """Reading goes on unless it is paused; `drain` returns when there is room to write."""

    @property
    def write_paused(self) -> bool: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    async def drain(self) -> None: ...


class PausableConnection(Protocol):
    """Where a body comes from."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def transport(self) -> PausableTransport: ...
    @property
    def flow(self) -> FlowControl: ...


class RequestBody:
    """Fed by the connection: `receive`, `end`, `lose`. One reader at a time.

    received: bytes of it that have come.
    is_coming: whether more is to come. is_lost: it does not, since the client has left, or has its answer.
    """

    def __init__(self, head: RequestHead, connection: PausableConnection, *, expects: bool) -> None:
        """`expects`: the client sends it only when it was told to go on."""
        self.is_coming = True
        self.is_lost = False
        self.received = 0
        self._head = head
        self._connection = connection
        self._expects = expects
        # As it came; `_ahead` bytes of it are read unasked.
        self._pieces: list[bytes | memoryview] = []
        self._size = 0
        self._held = 0
        self._ahead = _AHEAD
        # A reader that waits has no use for less.
        self._awaited = 0
        self._waiter: asyncio.Future[None] | None = None

    # what the connection says

    def receive(self, piece: bytes | memoryview) -> None:
        self._pieces.append(piece)
        self.received += len(piece)
        self._size += len(piece)
        if self._size > self._ahead:
            self._connection.flow.pause_reading()
        if self._size > self._awaited:
            self._wake()

    def end(self) -> None:
        self.is_coming = False
        self._wake()

    def lose(self) -> None:
        """Nobody reads it any more; a connection that waits for its next request keeps nothing of it."""
        self.is_lost = True
        self._pieces = []
        self._wake()

    # who reads it

    async def read(self, limit: int, hold: Callable[[int], None] = lambda _: None) -> bytes:
        """All of it; raises BodyTooLargeError past `limit` bytes, and ClientGoneError.

        `hold` is told of every byte; what it raises is raised.
        """
        self._ask(limit)
        self._ahead = limit
        self._connection.flow.resume_reading()  # also to notice that the client leaves
        if self.is_coming:
            await self._collect(limit, hold)
        if self.is_lost:
            raise ClientGoneError
        if self._size > limit:
            raise _too_large(limit)
        hold(self._size - self._held)
        pieces, self._pieces = self._pieces, []
        if self._size <= _LARGE:
            return b"".join(pieces)  # of one, that very one
        # The interpreter's lock is let go of for bytes alone.
        return await asyncio.to_thread(b"".join, [bytes(piece) for piece in pieces])

    async def _collect(self, limit: int, hold: Callable[[int], None]) -> None:
        """Read until the body ends, the client leaves or the limit is exceeded."""
        while self.is_coming and not self.is_lost:
            await self._more(min(limit, self._size + _AT_ONCE))
            if self._size > limit:
                return
            hold(self._size - self._held)
            self._held = self._size

    async def chunks(self, limit: int) -> AsyncIterator[bytes]:
        """As it arrives; raises BodyTooLargeError and ClientGoneError."""
        self._ask(limit)
        total = 0
        while self._pieces or self.is_coming:
            if self.is_lost:
                raise ClientGoneError
            if self._pieces:
                chunk, self._size = b"".join(self._pieces), 0
                self._pieces.clear()
                self._connection.flow.resume_reading()
                total += len(chunk)
                if total > limit:
                    raise _too_large(limit)
                yield chunk
            else:
                await self._more()
        if self.is_lost:
            raise ClientGoneError

    @property
    def is_open(self) -> bool:
        """Whether something of it is still to be read."""
        return (bool(self._pieces) or self.is_coming) and not self.is_lost

    async def lost(self) -> None:
        """Return when the client has left, or has its answer."""
        while not self.is_lost:
            await self._more()

    async def linger(self) -> None:
        """Read on and throw away: closing on unread bytes resets the connection, and the answer may be lost with it."""
        with suppress(TimeoutError):
            async with within(_LINGER):
                while self.is_coming and not self.is_lost:
                    self._pieces.clear()
                    self._size = 0
                    self._connection.flow.resume_reading()
                    await self._more()

    def _ask(self, limit: int) -> None:
        """Have the client send it, unless it is known to be too large."""
        declared = self._head.header(b"content-length") or b""
        if declared.isdigit() and int(declared[:20]) > limit:
            raise _too_large(limit)
        if self._expects and not (self.is_lost or self._connection.transport.is_closing()):
            self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._expects = False

    async def _more(self, size: int = 0) -> None:
        """Return when more than so many bytes are there, or it has ended, or the client has left."""
        self._awaited = size
        self._waiter = self._connection.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"The request body is over the limit of {limit:,} bytes (server.max_body_bytes).")
