"""The body of a client's request, received by ASGI."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from proxy.errors import BodyTooLargeError, ClientGoneError
from proxy.runtime.deadlines import within
from proxy.server.head import RequestHead
from proxy.server.served import Receive

# A longer body is joined in a thread. Joining takes a millisecond per two million bytes.
_LARGE = 4 * 1024 * 1024
# Seconds to read and discard data after a rejection.
_LINGER = 3.0


class RequestBody:
    """Reads the events of a request. It has one reader at a time.

    received:  the number of bytes so far.
    is_coming: True if more is to come.
    """

    def __init__(self, head: RequestHead, receive: Receive, *, is_coming: bool) -> None:
        """Create a reader of this request's body."""
        self.is_coming = is_coming
        self.received = 0
        self._head = head
        self._receive = receive

    async def read(self, limit: int, hold: Callable[[int], None] = lambda _: None) -> bytes:
        """Return the whole body.

        Raises BodyTooLargeError past `limit` bytes, ClientGoneError, and the errors of `hold`.

        hold: called with the number of new bytes.
        """
        self._check_declared(limit)
        pieces = []
        while self.is_coming:
            piece = await self._next(limit)
            hold(len(piece))
            pieces.append(piece)
        if len(pieces) == 1:
            return pieces[0]
        if self.received <= _LARGE:
            return b"".join(pieces)
        return await asyncio.to_thread(b"".join, pieces)

    async def chunks(self, limit: int) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises BodyTooLargeError and ClientGoneError."""
        self._check_declared(limit)
        while self.is_coming:
            if piece := await self._next(limit):
                yield piece

    def _check_declared(self, limit: int) -> None:
        declared = self._head.header(b"content-length") or b""
        if declared.isdigit() and int(declared[:20]) > limit:
            raise _too_large(limit)

    async def _next(self, limit: int) -> bytes:
        event = await self._receive()
        if event["type"] == "http.disconnect":
            raise ClientGoneError
        piece: bytes = event.get("body", b"")
        self.received += len(piece)
        self.is_coming = event.get("more_body", False)
        if self.received > limit:
            raise _too_large(limit)
        return piece

    def discard(self) -> None:
        """Read and discard received data without waiting. A client that waits for 100 Continue is not asked to send."""
        while self.is_coming and self._head.header(b"expect") is None:
            reading = self._next(sys.maxsize)
            try:
                reading.send(None)
            except StopIteration:
                continue
            except ClientGoneError:
                return
            reading.close()
            return

    async def linger(self) -> None:
        """Read and discard data for some seconds.

        Closing on unread bytes resets the connection and may lose the response.
        """
        with suppress(TimeoutError, ClientGoneError):
            async with within(_LINGER):
                while self.is_coming:
                    await self._next(sys.maxsize)


def _too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"The request body is over the limit of {limit:,} bytes (server.max_body_bytes).")
