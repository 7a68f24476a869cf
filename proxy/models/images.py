"""Read the size of an image in a prompt from the header of its data: URL, without decoding the remainder."""

import binascii
from collections.abc import Callable

# Enough for every header except a JPEG's, whose size may follow a thumbnail and a colour profile.
_HEADER_BYTES = 64
_JPEG_BYTES = 64 * 1024
MOST_LOOKED_AT = _JPEG_BYTES * 4 // 3 + 4
"""Characters of base64 that are searched for a size."""
# The maximum length of a data: URL up to its comma.
_PREFIX = 256


def image_size(url: str) -> tuple[int, int] | None:
    """Return width and height, both above zero; None for no image or an unknown size."""
    data = decode_beginning(url, _HEADER_BYTES)
    for magic, read in _FORMATS:
        if data.startswith(magic):
            size = read(decode_beginning(url, _JPEG_BYTES) if read is _jpeg else data)
            return size if size and min(size) > 0 else None
    return None


def is_data(url: str) -> bool:
    """Return True if the URL contains the bytes in base64."""
    header, comma, _ = url[:_PREFIX].partition(",")
    return bool(comma) and header.lower().startswith("data:") and header.lower().endswith(";base64")


def decode_beginning(url: str, limit: int) -> bytes:
    """Return the first bytes of a base64 data: URL; empty for anything else."""
    if not is_data(url):
        return b""
    start = url.index(",") + 1
    encoded = "".join(url[start : start + limit * 4 // 3 + 4].split())
    try:
        return binascii.a2b_base64(encoded[: len(encoded) // 4 * 4])
    except ValueError:  # not base64, or not ASCII
        return b""


def _png(data: bytes) -> tuple[int, int] | None:
    if data[12:16] != b"IHDR" or len(data) < 24:
        return None
    return _big(data[16:20]), _big(data[20:24])


def _gif(data: bytes) -> tuple[int, int] | None:
    return (_little(data[6:8]), _little(data[8:10])) if len(data) >= 10 else None


def _bmp(data: bytes) -> tuple[int, int] | None:
    """Return the size of a BMP. Its height is negative if rows go from top to bottom."""
    if len(data) < 26 or _little(data[14:18]) < 40:
        return None
    return _little(data[18:22]), abs(int.from_bytes(data[22:26], "little", signed=True))


def _webp(data: bytes) -> tuple[int, int] | None:
    if data[8:12] != b"WEBP" or len(data) < 30:
        return None
    match data[12:16]:
        case b"VP8 ":
            return _little(data[26:28]) & 0x3FFF, _little(data[28:30]) & 0x3FFF
        case b"VP8L":
            bits = _little(data[21:25])
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            return _little(data[24:27]) + 1, _little(data[27:30]) + 1
        case _:
            return None


def _jpeg(data: bytes) -> tuple[int, int] | None:
    """Return the size of a JPEG from its start of frame: SOF0 to SOF15, except DHT, JPG and DAC."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return _big(data[at + 7 : at + 9]), _big(data[at + 5 : at + 7])
        else:
            at += 2 + _big(data[at + 2 : at + 4])
    return None


def _big(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")


_FORMATS: tuple[tuple[bytes, Callable[[bytes], tuple[int, int] | None]], ...] = (
    (b"\x89PNG\r\n\x1a\n", _png),
    (b"\xff\xd8", _jpeg),
    (b"GIF87a", _gif),
    (b"GIF89a", _gif),
    (b"RIFF", _webp),
    (b"BM", _bmp),
)
