"""Content codings that are read here, within bounds (RFC 9110, section 8.4)."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_BARE_DEFLATE = -zlib.MAX_WBITS
# Bytes that are taken and made at a time; zlib lets others run meanwhile, but not while it puts them together.
_INPUT, _PIECE = 64 * 1024, 1024 * 1024
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
    return unpack(content, coding, limit, limit) or b""


def unpack(content: bytes, coding: bytes, most_kept: int, limit: int) -> bytes | None:
    """As `decompress`; None for what says more than `most_kept` bytes, of which none are kept then."""
    try:
        return _inflate(content, _GZIP_OR_ZLIB, most_kept, limit)
    except zlib.error:
        if coding != b"deflate":
            raise UndecodableError from None
    try:  # what some servers call deflate lacks the zlib wrapper
        return _inflate(content, _BARE_DEFLATE, most_kept, limit)
    except zlib.error:
        raise UndecodableError from None


def _inflate(content: bytes, wbits: int, most_kept: int, limit: int) -> bytes | None:
    inflater, kept, size = zlib.decompressobj(wbits), io.BytesIO(), 0
    for start in range(0, len(content), _INPUT):
        left = content[start : start + _INPUT]
        while left:
            piece = inflater.decompress(left, min(_PIECE, limit - size + 1))
            left = inflater.unconsumed_tail
            size += len(piece)
            if size > limit:
                raise TooLargeError
            if size <= most_kept:
                kept.write(piece)
            elif kept.tell():
                kept = io.BytesIO()
        # Several gzip members in a row are legal and never met; read in part they would be another content. zlib copies
        # what stands behind the end again for every further piece.
        if inflater.unused_data or (inflater.eof and start + _INPUT < len(content)):
            raise zlib.error("something behind the end")
    if not inflater.eof:
        raise zlib.error("incomplete")
    return kept.getvalue() if size <= most_kept else None


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
        if self._inflater.eof:  # zlib would copy all that stands behind the end for every further piece
            raise UndecodableError
        try:
            return self._inflater.decompress(content, self._limit + 1)
        except zlib.error:
            raise UndecodableError from None
