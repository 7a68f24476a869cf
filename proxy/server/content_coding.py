"""Content codings that are read here, within bounds (RFC 9110, section 8.4)."""

import io
import zlib
from collections.abc import Callable, Iterator, Mapping

import brotli
from backports import zstd

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_BARE_DEFLATE = -zlib.MAX_WBITS
# Bytes that are taken and made at a time; all of them let others run meanwhile, but not while it puts them together.
_INPUT, _PIECE = 64 * 1024, 1024 * 1024
_GZIP_MAGIC = 0x1F
_ZLIB_METHOD = 8
# What zstd as a content coding may take while it decodes: 8 MB (RFC 9659); brotli takes 16.
_ZSTD_BOUNDS: Mapping[int, int] = {zstd.DecompressionParameter.window_log_max: 23}
# Read as they arrive, and offered to upstreams; a request's body may have the others too.
INFLATED = frozenset({b"gzip", b"x-gzip", b"deflate"})
READABLE = INFLATED | {b"zstd", b"br"}

Decoder = Callable[[bytes], bytes]
"""The next bytes of a content to what they say; raises UndecodableError."""


class TooLargeError(Exception):
    """The decoded content is over the bound; no more than a piece beyond it was decoded."""


class UndecodableError(Exception):
    """The content is not what its coding says."""


def decompress(content: bytes, coding: bytes, limit: int) -> bytes:
    """Decode content in a readable coding of at most `limit` bytes; raises TooLargeError or UndecodableError."""
    return unpack(content, coding, limit, limit) or b""


def unpack(content: bytes, coding: bytes, most_kept: int, limit: int) -> bytes | None:
    """Decompress a content. Return None, and keep nothing, if it has more than `most_kept` bytes."""
    most = min(_PIECE, limit + 1)
    for pieces in _ways(content, coding, most):
        try:
            return _join_bounded(pieces, most_kept, limit)
        except (zlib.error, zstd.ZstdError, brotli.error):
            continue
    raise UndecodableError


def _ways(content: bytes, coding: bytes, most: int) -> Iterator[Iterator[bytes]]:
    """Return the decoders for a content, `most` bytes a piece. Each raises its library's error for invalid content."""
    match coding:
        case b"zstd":
            yield _unzstd(content, most)
        case b"br":
            yield _unbrotli(content, most)
        case _:
            yield _inflate(content, most, _GZIP_OR_ZLIB)
    if coding == b"deflate":  # what some servers call so lacks the zlib wrapper
        yield _inflate(content, most, _BARE_DEFLATE)


def _join_bounded(pieces: Iterator[bytes], most_kept: int, limit: int) -> bytes | None:
    kept, size = io.BytesIO(), 0
    for piece in pieces:
        size += len(piece)
        if size > limit:
            raise TooLargeError
        if size <= most_kept:
            kept.write(piece)
        elif kept.tell():
            kept = io.BytesIO()
    return kept.getvalue() if size <= most_kept else None


# Several gzip members, zstd frames or brotli streams in a row are hardly ever met; read in part they would be another
# content. What stands behind the end is not looked at: zlib copies it again for every further piece.


def _inflate(content: bytes, most: int, wbits: int) -> Iterator[bytes]:
    inflater = zlib.decompressobj(wbits)
    for left in _inputs(content):
        if inflater.eof:
            raise zlib.error("something behind the end")
        yield inflater.decompress(left, most)
        while inflater.unconsumed_tail:
            yield inflater.decompress(inflater.unconsumed_tail, most)
    if inflater.unused_data or not inflater.eof:
        raise zlib.error("incomplete, or something behind the end")


def _unzstd(content: bytes, most: int) -> Iterator[bytes]:
    decompressor = zstd.ZstdDecompressor(options=_ZSTD_BOUNDS)
    for left in _inputs(content):
        if decompressor.eof:
            raise zstd.ZstdError("something behind the end")
        yield decompressor.decompress(left, most)
        while not (decompressor.needs_input or decompressor.eof):
            yield decompressor.decompress(b"", most)
    if decompressor.unused_data or not decompressor.eof:
        raise zstd.ZstdError("incomplete, or something behind the end")


def _unbrotli(content: bytes, most: int) -> Iterator[bytes]:
    decompressor = brotli.Decompressor()  # refuses what stands behind the end by itself
    for left in _inputs(content):
        piece: bytes = decompressor.process(left, output_buffer_limit=most)
        while piece:
            yield piece
            piece = decompressor.process(b"", output_buffer_limit=most)
    if not decompressor.is_finished():
        raise brotli.error("incomplete")


def _inputs(content: bytes) -> Iterator[bytes]:
    return (content[start : start + _INPUT] for start in range(0, len(content), _INPUT))


def decoder(coding: bytes | None, limit: int) -> Decoder | None:
    """Return a decoder for content as it arrives, `limit` bytes a piece at most. None for a coding not read here."""
    used = (coding or b"identity").lower()
    if used == b"identity":
        return bytes
    return Inflater(limit) if used in INFLATED else None


class Inflater:
    """Inflates a content piece by piece. `rest` returns what a piece has beyond the limit."""

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

    def rest(self) -> bytes:
        """Return more of the last piece, up to the limit again; empty if there is no more. Raises UndecodableError."""
        left = self._inflater.unconsumed_tail if self._inflater is not None else b""
        return self(left) if left else b""
