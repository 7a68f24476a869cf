"""Content codings that are read here, within bounds (RFC 9110, section 8.4)."""

from __future__ import annotations

import zlib
from collections.abc import Callable

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_BARE_DEFLATE = -zlib.MAX_WBITS
_GZIP_MAGIC = 0x1F
_ZLIB_METHOD = 8
READABLE = frozenset({b"gzip", b"x-gzip", b"deflate"})

Decoder = Callable[[bytes], bytes]
"""The next bytes of a content to what they say; raises UndecodableError."""


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
        return _inflate(content, _BARE_DEFLATE, limit)
    except zlib.error:
        raise UndecodableError from None


def _inflate(content: bytes, wbits: int, limit: int) -> bytes:
    inflater = zlib.decompressobj(wbits)
    decoded = inflater.decompress(content, limit + 1)
    if len(decoded) > limit:
        raise TooLargeError
    # Several gzip members in a row are legal and never met; read in part they would be another content.
    if not inflater.eof or inflater.unused_data:
        raise zlib.error("incomplete")
    return decoded


def decoder(coding: bytes | None, limit: int) -> Decoder | None:
    """What decodes a content while it arrives, `limit` bytes a piece at most; None for a coding not read here."""
    used = (coding or b"identity").lower()
    if used == b"identity":
        return bytes
    return _Inflater(limit) if used in READABLE else None


class _Inflater:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._inflater: zlib._Decompress | None = None

    def __call__(self, content: bytes) -> bytes:
        if self._inflater is None:
            wrapped = content[0] == _GZIP_MAGIC or content[0] & 0x0F == _ZLIB_METHOD
            self._inflater = zlib.decompressobj(_GZIP_OR_ZLIB if wrapped else _BARE_DEFLATE)
        try:
            return self._inflater.decompress(content, self._limit + 1)
        except zlib.error:
            raise UndecodableError from None
