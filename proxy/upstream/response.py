"""An upstream's answer, wherever its bytes come from."""

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from proxy.server.headers import Headers, first

_EVENT_STREAM = b"text/event-stream"


class TruncatedError(Exception):
    """The upstream went away in the middle of its answer. `cause` is one word for the log."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class Body(Protocol):
    """Where an answer's bytes come from."""

    def chunks(self) -> AsyncIterator[bytes]:
        """The bytes as they arrive, once; raises TruncatedError."""

    @property
    def at_end(self) -> bool:
        """Whether everything was read, so that no further chunk will come."""

    def close(self) -> None:
        """Give the connection back if the body was read to its end, else close it: the upstream can stop working."""


class Sink(Protocol):
    """Where a body's bytes go as they come."""

    def take(self, chunk: bytes, *, is_last: bool) -> bool:
        """Whether more may follow at once; if not, the body waits for `resume`."""


class Flowing(Protocol):
    """A body whose bytes need not be waited for one by one."""

    def taken(self) -> bytes:
        """What has come and was not taken yet."""

    def untake(self, chunk: bytes) -> None:
        """Give back what was taken, before anything else is."""

    async def more(self, seconds: float | None) -> bool:
        """Return when more has come, or after so many seconds; False if nothing has, or nothing will."""

    async def pour(self, sink: Sink) -> None:
        """Give the sink what comes, as it comes; raises TruncatedError."""

    def resume(self) -> None:
        """Go on where the sink wanted no more."""


class UpstreamResponse(msgspec.Struct, frozen=True):
    """An answer whose head has arrived. Header names are in lower case; `chunks` gives the body as it comes, once.

    flowing: the body again, where it is one that flows.
    """

    status: int
    headers: Headers
    body: Body
    flowing: Flowing | None = None

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header, by its name in lower case."""
        return first(self.headers, name)

    def begun(self) -> bytes:
        """What of the body is there already, as far as that can be told."""
        return b"" if self.flowing is None else self.flowing.taken()

    def chunks(self) -> AsyncIterator[bytes]:
        """The body's bytes as they arrive, codings untouched; raises TruncatedError."""
        return self.body.chunks()

    async def read(self, limit: int) -> bytes | None:
        """The whole body, or None where it is over `limit` bytes; raises TruncatedError."""
        parts: list[bytes] = []
        size = 0
        async for chunk in self.chunks():
            size += len(chunk)
            if size > limit:
                return None
            parts.append(chunk)
        return b"".join(parts)

    @property
    def at_end(self) -> bool:
        return self.body.at_end

    def close(self) -> None:
        self.body.close()


class WholeBody:
    """A body that is there already."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._read = False

    async def chunks(self) -> AsyncIterator[bytes]:
        self._read = True
        yield self._content

    @property
    def at_end(self) -> bool:
        return self._read

    def close(self) -> None:
        """There is nothing to close."""


def is_event_stream(headers: Headers) -> bool:
    """By its type."""
    return (first(headers, b"content-type") or b"").lower().startswith(_EVENT_STREAM)
