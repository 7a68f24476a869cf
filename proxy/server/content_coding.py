"""Decoding of content codings within bounds (RFC 9110, section 8.4)."""

import io
import zlib
from collections.abc import Callable, Iterator, Mapping

import brotli
from backports import zstd

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_BARE_DEFLATE = -zlib.MAX_WBITS
# Bytes read and produced at a time. Other threads run in between, but not while the pieces are joined.
_INPUT, _PIECE = 64 * 1024, 1024 * 1024
_GZIP_MAGIC = 0x1F
_ZLIB_METHOD = 8
# The most memory for zstd as a content coding: 8 MB (RFC 9659). brotli takes 16 MB.
_ZSTD_BOUNDS: Mapping[int, int] = {zstd.DecompressionParameter.window_log_max: 23}
# Codings that are decoded as they arrive, and offered to upstreams. A request's body may have the others too.
INFLATED = frozenset({b"gzip", b"x-gzip", b"deflate"})
READABLE = INFLATED | {b"zstd", b"br"}

Decoder = Callable[[bytes], bytes]
"""A function that decodes the next bytes of a content. Raises UndecodableError."""


class TooLargeError(Exception):
    """The decoded content is over the bound. At most one piece beyond it was decoded."""


class UndecodableError(Exception):
    """The content does not match its coding."""


def decompress(content: bytes, coding: bytes, limit: int) -> bytes:
    """Decode content in a readable coding to at most `limit` bytes. Raises TooLargeError or UndecodableError."""
    return unpack(content, coding, limit, limit) or b""


def unpack(content: bytes, coding: bytes, most_kept: int, limit: int) -> bytes | None:
    """Decompress a content. Returns None, and keeps nothing, if it has more than `most_kept` bytes."""
    piece_size = min(_PIECE, limit + 1)
    for pieces in _decoders(content, coding, piece_size):
        try:
            return _join_bounded(pieces, most_kept, limit)
        except (zlib.error, zstd.ZstdError, brotli.error):
            continue
    raise UndecodableError


def _decoders(content: bytes, coding: bytes, most: int) -> Iterator[Iterator[bytes]]:
    """Yield the decoders for a content, `most` bytes a piece. Each raises its library's error for invalid content."""
    match coding:
        case b"zstd":
            yield _unzstd(content, most)
        case b"br":
            yield _unbrotli(content, most)
        case _:
            yield _inflate(content, most, _GZIP_OR_ZLIB)
    if coding == b"deflate":  # some servers send it without the zlib wrapper
        yield _inflate(content, most, _BARE_DEFLATE)


def _join_bounded(pieces: Iterator[bytes], most_kept: int, limit: int) -> bytes | None:
    buffer, size = io.BytesIO(), 0
    for piece in pieces:
        size += len(piece)
        if size > limit:
            raise TooLargeError
        if size <= most_kept:
            buffer.write(piece)
        elif buffer.tell():
            buffer = io.BytesIO()
    return buffer.getvalue() if size <= most_kept else None


# Several gzip members, zstd frames or brotli streams in a row are very rare, and a part of them would be another
# content. Bytes after the end are not read, since zlib copies them again for every further piece.


def _inflate(content: bytes, most: int, wbits: int) -> Iterator[bytes]:
    inflater = zlib.decompressobj(wbits)
    for piece in _inputs(content):
        if inflater.eof:
            raise zlib.error("data after the end")
        yield inflater.decompress(piece, most)
        while inflater.unconsumed_tail:
            yield inflater.decompress(inflater.unconsumed_tail, most)
    if inflater.unused_data or not inflater.eof:
        raise zlib.error("incomplete, or data after the end")


def _unzstd(content: bytes, most: int) -> Iterator[bytes]:
    decompressor = zstd.ZstdDecompressor(options=_ZSTD_BOUNDS)
    for piece in _inputs(content):
        if decompressor.eof:
            raise zstd.ZstdError("data after the end")
        yield decompressor.decompress(piece, most)
        while not (decompressor.needs_input or decompressor.eof):
            yield decompressor.decompress(b"", most)
    if decompressor.unused_data or not decompressor.eof:
        raise zstd.ZstdError("incomplete, or data after the end")


def _unbrotli(content: bytes, most: int) -> Iterator[bytes]:
    decompressor = brotli.Decompressor()  # it rejects data after the end itself
    for input_piece in _inputs(content):
        piece: bytes = decompressor.process(input_piece, output_buffer_limit=most)
        while piece:
            yield piece
            piece = decompressor.process(b"", output_buffer_limit=most)
    if not decompressor.is_finished():
        raise brotli.error("incomplete")


def _inputs(content: bytes) -> Iterator[bytes]:
    return (content[start : start + _INPUT] for start in range(0, len(content), _INPUT))


def decoder(coding: bytes | None, limit: int) -> Decoder | None:
    """Return a decoder for content as it arrives, at most `limit` bytes a piece; None for an unsupported coding."""
    name = (coding or b"identity").lower()
    if name == b"identity":
        return bytes
    return Inflater(limit) if name in INFLATED else None


class Inflater:
    """Decodes a content piece by piece. `more` returns the part of a piece beyond the limit."""

    def __init__(self, limit: int) -> None:
        """Create an inflater. limit: the most bytes of a decoded piece."""
        self._limit = limit
        self._inflater: zlib._Decompress | None = None

    def __call__(self, content: bytes) -> bytes:
        """Return the decoded bytes of a piece, up to the limit. Raises UndecodableError."""
        if self._inflater is None:
            wrapped = content[0] == _GZIP_MAGIC or content[0] & 0x0F == _ZLIB_METHOD
            self._inflater = zlib.decompressobj(_GZIP_OR_ZLIB if wrapped else _BARE_DEFLATE)
        if self._inflater.eof:  # zlib would copy all data after the end for every further piece
            raise UndecodableError
        try:
            return self._inflater.decompress(content, self._limit + 1)
        except zlib.error:
            raise UndecodableError from None

    def more(self) -> bytes:
        """Return more of the last piece, up to the limit; empty if there is no more. Raises UndecodableError."""
        tail = self._inflater.unconsumed_tail if self._inflater is not None else b""
        return self(tail) if tail else b""
