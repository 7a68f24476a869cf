"""Responses as values: chunks that are counted, and compressed streams."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

from proxy.server.headers import Headers, first
from proxy.upstreams.response import IteratedBody, UpstreamResponse


def flushed(compressor: zlib._Compress, content: bytes) -> bytes:
    return compressor.compress(content) + compressor.flush(zlib.Z_SYNC_FLUSH)


def gzipped(*contents: bytes) -> list[bytes]:
    """A compressed stream in pieces that each can be read when they arrive."""
    compressor = zlib.compressobj(wbits=31)
    return [*(flushed(compressor, content) for content in contents), compressor.flush()]


@dataclass
class Scripted:
    """A response whose chunks are these, and which counts how many were taken."""

    pieces: Iterable[bytes]
    status: int = 200
    headers: Headers = field(default_factory=list)
    taken: int = 0

    def __post_init__(self) -> None:
        self.body = IteratedBody(self.come())

    def header(self, name: bytes) -> bytes | None:
        return first(self.headers, name)

    async def come(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            self.taken += 1
            self.body.is_complete = self.taken == len(list(self.pieces))
            yield piece

    def chunks(self) -> AsyncIterator[bytes]:
        return UpstreamResponse(self.status, self.headers, self.body).chunks()
