"""What an image in a prompt costs in tokens, by OpenAI's tile formula, from the header of its data: URL."""

from __future__ import annotations

import binascii
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# https://platform.openai.com/docs/guides/images-vision#calculating-costs
BASE_TOKENS = 85
TILE_TOKENS = 170
TILE = 512
FIT = 2048
SHORTEST_SIDE = 768
# A size that cannot be known, behind http: or in a format not read here, counts as this.
ASSUMED_SIZE = (1024, 1024)

# Enough for every header but a JPEG's, whose size may follow a thumbnail and a colour profile.
_HEADER_BYTES = 64
_JPEG_BYTES = 64 * 1024


def image_tokens(url: str, detail: str) -> int:
    """Tokens of one image; `auto` counts as `high`, and so does anything that is not `low`."""
    if detail == "low":
        return BASE_TOKENS
    width, height = _size(url) or ASSUMED_SIZE
    scale = min(1.0, FIT / max(width, height))
    scale = min(scale, SHORTEST_SIDE / min(width, height))
    return BASE_TOKENS + TILE_TOKENS * _tiles(width * scale) * _tiles(height * scale)


def _tiles(side: float) -> int:
    return max(1, math.ceil(round(side, 3) / TILE))


def _size(url: str) -> tuple[int, int] | None:
    """Width and height, both above zero, or None."""
    data = _decode(url, _HEADER_BYTES)
    for magic, read in _FORMATS:
        if data.startswith(magic):
            size = read(_decode(url, _JPEG_BYTES) if read is _jpeg else data)
            return size if size and min(size) > 0 else None
    return None


def _decode(url: str, limit: int) -> bytes:
    """The first bytes of a base64 data: URL; nothing of anything else."""
    head, comma, _ = url[:256].partition(",")
    if not comma or not head.lower().startswith("data:") or not head.lower().endswith(";base64"):
        return b""
    start = len(head) + 1
    encoded = "".join(url[start : start + limit * 4 // 3 + 4].split())
    try:
        return binascii.a2b_base64(encoded[: len(encoded) // 4 * 4])
    except ValueError:  # not base64, or not even ASCII
        return b""


def _png(data: bytes) -> tuple[int, int] | None:
    if data[12:16] != b"IHDR" or len(data) < 24:
        return None
    return _big(data[16:20]), _big(data[20:24])


def _gif(data: bytes) -> tuple[int, int] | None:
    return (_little(data[6:8]), _little(data[8:10])) if len(data) >= 10 else None


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
    """Walk the segments to the start of frame: SOF0 to SOF15, without DHT, JPG and DAC among them."""
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
)
