"""Content codings: decoded within bounds, as a whole and while they arrive."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import Callable

import brotli
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from proxy.server.content_coding import TooLargeError, UndecodableError, decoder, decompress, unpack


def bare_deflate(content: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(content) + compressor.flush()


WAYS: list[tuple[bytes, Callable[[bytes], bytes]]] = [
    (b"gzip", gzip.compress),
    (b"x-gzip", gzip.compress),
    (b"deflate", zlib.compress),
    (b"deflate", bare_deflate),
]
WHOLE = [*WAYS, (b"zstd", zstd.compress), (b"br", brotli.compress)]
TEXT = b'{"messages":[]}' * 50
_wide = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
WIDE = _wide.compress(TEXT, _wide.FLUSH_BLOCK) + _wide.flush()


@pytest.mark.parametrize(("coding", "compress"), WHOLE)
def test_what_was_compressed_is_read(coding: bytes, compress: Callable[[bytes], bytes]) -> None:
    assert decompress(compress(TEXT), coding, len(TEXT)) == TEXT
    assert decompress(compress(b""), coding, 0) == b""


@pytest.mark.parametrize(("coding", "compress"), WHOLE)
def test_a_byte_over_the_bound_is_too_large(coding: bytes, compress: Callable[[bytes], bytes]) -> None:
    with pytest.raises(TooLargeError):
        decompress(compress(TEXT), coding, len(TEXT) - 1)


@pytest.mark.parametrize(
    ("content", "coding", "reason"),
    [
        (b"", b"gzip", "nothing at all"),
        (TEXT, b"gzip", "not compressed"),
        (TEXT, b"deflate", "not compressed"),
        (gzip.compress(TEXT)[:-1], b"gzip", "cut off"),
        (gzip.compress(TEXT)[:20] + b"\0" * 20, b"gzip", "damaged"),
        (gzip.compress(TEXT) + b"x", b"gzip", "something behind"),
        (gzip.compress(TEXT) * 2, b"gzip", "two members: read in part it would be another request"),
        (bare_deflate(TEXT), b"gzip", "another coding than it says"),
        (b"", b"zstd", "nothing at all"),
        (TEXT, b"zstd", "not compressed"),
        (zstd.compress(TEXT)[:-1], b"zstd", "cut off"),
        (zstd.compress(TEXT) + b"x", b"zstd", "something behind"),
        (zstd.compress(TEXT) * 2, b"zstd", "two frames"),
        (WIDE, b"zstd", "a window of 128 MB, where this coding allows 8 (RFC 9659)"),
        (b"", b"br", "nothing at all"),
        (TEXT, b"br", "not compressed"),
        (brotli.compress(TEXT)[:-1], b"br", "cut off"),
        (brotli.compress(TEXT) + b"x", b"br", "something behind"),
        (brotli.compress(TEXT) * 2, b"br", "two streams"),
    ],
)
def test_what_is_not_as_its_coding_says_is_not_read_in_part(content: bytes, coding: bytes, reason: str) -> None:
    with pytest.raises(UndecodableError):
        decompress(content, coding, 10_000)


@pytest.mark.parametrize(("coding", "compress"), WHOLE)
def test_a_bomb_costs_no_more_than_the_bound(coding: bytes, compress: Callable[[bytes], bytes]) -> None:
    bomb = compress(b"\0" * 50_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(TooLargeError):
            decompress(bomb, coding, 100_000)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@given(st.sampled_from(WAYS), st.binary(max_size=300), st.lists(st.integers(1, 40), max_size=20))
def test_pieces_decode_to_what_the_whole_says(
    way: tuple[bytes, Callable[[bytes], bytes]], content: bytes, sizes: list[int]
) -> None:
    coding, compress = way
    compressed = compress(content)
    decode = decoder(coding, 1_000)
    assert decode is not None
    read = b""
    for size in [*sizes, len(compressed) + 1]:
        piece, compressed = compressed[:size], compressed[size:]
        read += decode(piece) if piece else b""
    assert read == content


def test_a_piece_is_decoded_up_to_the_bound_and_little_more() -> None:
    decode = decoder(b"gzip", 1_000)
    assert decode is not None
    assert len(decode(gzip.compress(b"\0" * 1_000_000))) == 1_001


@pytest.mark.parametrize(("coding", "compress"), WHOLE)
def test_what_says_more_than_is_kept_is_read_to_its_end_and_not_kept(
    coding: bytes, compress: Callable[[bytes], bytes]
) -> None:
    packed = compress(b"\0" * 20_000_000)
    tracemalloc.start()
    try:
        assert unpack(packed, coding, 100_000, 20_000_000) is None
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()
    assert unpack(packed, coding, 20_000_000, 20_000_000) == b"\0" * 20_000_000


def test_damage_that_shows_late_is_noticed() -> None:
    decode = decoder(b"gzip", 10_000)
    assert decode is not None
    assert decode(gzip.compress(TEXT)[:-8]) == TEXT
    with pytest.raises(UndecodableError):
        decode(b"another checksum")


@pytest.mark.parametrize(("coding", "known"), [(None, True), (b"identity", True), (b"GZIP", True), (b"br", False)])
def test_only_what_can_be_decoded_has_a_decoder(coding: bytes | None, known: bool) -> None:
    assert (decoder(coding, 10) is not None) is known


def test_what_has_no_coding_is_what_it_is() -> None:
    decode = decoder(None, 10)
    assert decode is not None
    assert decode(b"as it is") == b"as it is"
