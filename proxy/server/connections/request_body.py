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
# Seconds to go on reading what a client sends after it was refused.
_LINGER = 3.0


class Transport(Protocol):
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


class Connection(Protocol):
    """Where a body comes from."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def transport(self) -> Transport: ...
    @property
    def flow(self) -> FlowControl: ...


class RequestBody:
    """Fed by the connection: `receive`, `end`, `lose`. One reader at a time.

    is_coming: whether more is to come. is_lost: it does not, since the client has left, or has its answer.
    is_read:   nobody has to read on before the next request.
    """

    def __init__(self, head: RequestHead, connection: Connection, *, expects: bool) -> None:
        """`expects`: the client sends it only when it was told to go on."""
        self.is_coming = True
        self.is_lost = False
        self.is_read = False
        self._head = head
        self._connection = connection
        self._expects = expects
        # As it came; `_ahead` bytes of it are read unasked.
        self._pieces: list[bytes | memoryview] = []
        self._size = 0
        self._ahead = _AHEAD
        self._waiter: asyncio.Future[None] | None = None
        self._on_whole: Callable[[], None] | None = None

    # what the connection says

    def receive(self, piece: bytes | memoryview) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > self._ahead:
            self._connection.flow.pause_reading()
        self._wake()

    def end(self) -> None:
        self.is_coming = False
        self._wake()
        if self._on_whole is not None:
            on_whole, self._on_whole = self._on_whole, None
            on_whole()

    def lose(self) -> None:
        """Nobody reads it any more; a connection that waits for its next request keeps nothing of it."""
        self.is_lost = True
        self._on_whole = None
        self._pieces = []
        self._wake()

    # who reads it

    @property
    def declared(self) -> int | None:
        """How long it is, as far as the client says so and sends it unasked."""
        length = self._head.header(b"content-length")
        return None if length is None or self._expects else int(length)

    def collect(self, size: int, on_whole: Callable[[], None]) -> None:
        """Read on, up to so many bytes, and call `on_whole` when it is there."""
        self._on_whole = on_whole
        self._ahead = size
        self._connection.flow.resume_reading()

    def leave(self) -> None:
        """Leave what is to come of it to another reader."""
        self._on_whole = None

    def whole(self) -> bytes | None:
        """All of it where it has come already; None where it has not."""
        if self.is_coming or self._expects:
            return None
        whole = b"".join(self._pieces)  # of one, that very one
        self._pieces = [whole]
        self.is_read = True
        return whole

    async def read(self, limit: int, hold: Callable[[int], None] = lambda _: None) -> bytes:
        """All of it; raises BodyTooLargeError past `limit` bytes, and ClientGoneError.

        `hold` is told of every byte; what it raises is raised.
        """
        self._ask(limit)
        self._ahead = limit
        self._connection.flow.resume_reading()
        size = 0
        while self.is_coming and not self.is_lost:
            await self._more()
            if self._size > limit:
                raise _too_large(limit)
            hold(self._size - size)
            size = self._size
        if self.is_lost:
            raise ClientGoneError
        if self._size > limit:
            raise _too_large(limit)
        hold(self._size - size)
        self.is_read = True
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)

    async def chunks(self, limit: int) -> AsyncIterator[bytes]:
        """As it arrives; raises BodyTooLargeError and ClientGoneError."""
        self._ask(limit)
        total = 0
        while not self.is_read:
            if self.is_lost:
                raise ClientGoneError
            if self._pieces:
                chunk, self._size = b"".join(self._pieces), 0
                self._pieces.clear()
                self._connection.flow.resume_reading()
                total += len(chunk)
                if total > limit:
                    raise _too_large(limit)
                self.is_read = not self.is_coming
                yield chunk
            elif self.is_coming:
                await self._more()
            else:
                self.is_read = True

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

    async def _more(self) -> None:
        """Return when something has come of it, or it has ended, or the client has left."""
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
