"""Sizes of images, over headers written byte by byte."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.models.images import image_size
from tests.support.images import data_url, gif, png


def webp_lossy(width: int, height: int) -> bytes:
    frame = b"\x30\x01\0\x9d\x01\x2a" + struct.pack("<HH", width | 0x4000, height)
    return b"RIFF\0\0\0\0WEBPVP8 \0\0\0\0" + frame


def webp_lossless(width: int, height: int) -> bytes:
    return b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f" + struct.pack("<I", width - 1 | height - 1 << 14) + bytes(10)


def webp_extended(width: int, height: int) -> bytes:
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\x10\0\0\0" + size


def jpeg(width: int, height: int, *, before: int = 0, marker: int = 0xC2) -> bytes:
    """A progressive JPEG, with `before` bytes of thumbnail and profile ahead of its size."""
    segments = b"\xff\xe0\0\x10JFIF\0" + bytes(9) + b"\xff\xc4\0\x04\0\0"
    while before > 0:
        size = min(before, 60_000)
        segments += b"\xff\xe1" + struct.pack(">H", size + 2) + bytes(size)
        before -= size
    return (
        b"\xff\xd8" + segments + b"\xff\xff" + bytes([marker]) + struct.pack(">HBHH", 17, 8, height, width) + bytes(10)
    )


def bmp(width: int, height: int) -> bytes:
    """With rows from top to bottom, so that the height is negative."""
    return b"BM" + bytes(12) + struct.pack("<Iii", 40, width, -height) + bytes(30)


@pytest.mark.parametrize("write", [png, gif, webp_lossy, webp_lossless, webp_extended, jpeg, bmp])
@pytest.mark.parametrize(("width", "height"), [(1024, 768), (1, 1), (1, 2048), (16_383, 16_383)])
def test_every_format_tells_its_size(write: Callable[[int, int], bytes], width: int, height: int) -> None:
    assert image_size(data_url(write(width, height))) == (width, height)


def test_a_jpeg_tells_its_size_behind_a_thumbnail_but_not_behind_a_film() -> None:
    assert image_size(data_url(jpeg(512, 512, before=60_000))) == (512, 512)
    assert image_size(data_url(jpeg(512, 512, before=200_000))) is None


@pytest.mark.parametrize(
    "url",
    [
        "",
        "https://example.com/cat.png",
        "data:",
        "data:,",
        "data:image/png,iVBORw0KGgo",
        "data:image/png;base64,",
        "data:image/png;base64,é",
        "data:image/png;base64,\ud83d",
        "data:image/png;base64,!!!!",
        data_url(png(512, 512)[:20]),
        data_url(png(0, 512)),
        data_url(gif(512, 0)),
        data_url(gif(512, 512)[:8]),
        data_url(b"RIFF\0\0\0\0WAVE" + bytes(30)),
        data_url(b"RIFF\0\0\0\0WEBPALPH" + bytes(30)),
        data_url(b"\xff\xd8\xff\xd9"),
        data_url(b"\xff\xd8" + b"\xff\xe0\0\0" * 100),
        data_url(b"BM" + bytes(60)),
        "x" * 1_000_000,
    ],
)
def test_what_is_no_image_has_no_size(url: str) -> None:
    assert image_size(url) is None


def test_line_breaks_and_capitals_in_a_data_url_are_read_over() -> None:
    encoded = base64.encodebytes(png(512, 512)).decode()
    assert image_size(f"DATA:image/PNG;charset=utf-8;BASE64,\r\n {encoded}") == (512, 512)


@given(url=st.text())
def test_no_text_is_an_error(url: str) -> None:
    assert image_size(url) is None


MAGIC = st.sampled_from(
    [b"", b"\xff\xd8\xff", png(9, 9)[:8], b"GIF89a", b"BM", b"RIFF\0\0\0\0WEBPVP8", webp_lossless(9, 9)[:17]]
)


@given(magic=MAGIC, rest=st.binary(max_size=80))
def test_no_bytes_are_an_error(magic: bytes, rest: bytes) -> None:
    size = image_size(data_url(magic + rest))
    assert size is None or min(size) > 0
