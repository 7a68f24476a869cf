"""Content codings that are read here, within bounds (RFC 9110, section 8.4)."""

from __future__ import annotations

import zlib

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
READABLE = frozenset({b"gzip", b"x-gzip", b"deflate"})


class TooLargeError(Exception):
    """The decoded content is over the bound; nothing beyond it was decoded."""


class UndecodableError(Exception):
    """The content is not what its coding says."""


def decompress(content: bytes, coding: bytes, limit: int) -> bytes:
    """Decode gzip or deflate content of at most `limit` bytes; raises TooLargeError or UndecodableError."""
    try:
        return _inflate(content, _GZIP_OR_ZLIB, limit)
    except zlib.error:
        if coding != b"deflate":
            raise UndecodableError from None
    try:  # what some servers call deflate lacks the zlib wrapper
        return _inflate(content, -zlib.MAX_WBITS, limit)
    except zlib.error:
        raise UndecodableError from None


def _inflate(content: bytes, wbits: int, limit: int) -> bytes:
    inflater = zlib.decompressobj(wbits)
    decoded = inflater.decompress(content, limit + 1)
    if len(decoded) > limit:
        raise TooLargeError
    if not inflater.eof:
        raise zlib.error("incomplete")
    return decoded
