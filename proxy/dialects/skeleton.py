"""A body without its large base64 values, by which large bodies are parsed.

The positions of items do not depend on base64. Each value that is cut out is inside one string and holds no quote, so
the rest has the same structure. Items are read from the client's own bytes.
"""

import re
import secrets
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

# The text before base64 inside a string, and the keys of values that are base64 alone.
_URL = b";base64,"
_LONGEST_TYPE = 128
_KEYS = (b'"data":', b'"result":')
_LONGEST_KEY = 64
_LEAST = 32 * 1024
_MOST = 4_000
_BASE64 = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=-_\\")
_LOOKED_AT = 64
_BACKSLASH = ord("\\")
# Replaces a value that is cut out of an item. No client can know it.
_STAND_IN = b"media:%%d:%b" % secrets.token_hex(8).encode()
_stand_ins = re.compile(re.escape(_STAND_IN).replace(b"%d", rb"(\d+)")).split


class Skeleton(NamedTuple):
    """A body without its large base64 values.

    text: the remaining bytes.
    ends: the positions of the cuts in it.
    gaps: the number of bytes cut out up to each of them.
    """

    text: bytes
    ends: list[int]
    gaps: list[int]

    def original(self, position: int) -> int:
        """Return the position in the body of a position in the text, if nothing was cut out at it."""
        cuts = bisect_right(self.ends, position)
        return position + (self.gaps[cuts - 1] if cuts else 0)


def skeleton_of(body: bytes) -> Skeleton:
    """Return the skeleton of a body; all of it if it has no large base64 values, or too many.

    A megabyte takes 0.1 ms.
    """
    pieces, ends, gaps = [], [], []
    copied = length = gap = 0
    for start, end in _values(body):
        pieces.append(memoryview(body)[copied:start])
        length, gap, copied = length + start - copied, gap + end - start, end
        ends.append(length)
        gaps.append(gap)
        if len(ends) > _MOST:
            return Skeleton(body, [], [])
    return Skeleton(b"".join([*pieces, memoryview(body)[copied:]]), ends, gaps)


class CutItems(NamedTuple):
    """Items with a stand-in for each large base64 value, to be changed without reading the values."""

    text: bytes
    values: list[memoryview]

    def restore(self, text: bytes) -> bytes:
        """Return a text with its stand-ins replaced by the values."""
        head, *numbered_parts = _stand_ins(text)
        pairs = zip(numbered_parts[::2], numbered_parts[1::2], strict=True)
        return b"".join(
            [head, *(part for number, text_after in pairs for part in (self.values[int(number)], text_after))]
        )


def cut_items(raw: bytes) -> CutItems:
    """Return the items of a message with stand-ins.

    A value with escapes stays, since JSON may write it in another way.
    """
    view = memoryview(raw)
    pieces: list[bytes | memoryview] = []
    values, copied = list[memoryview](), 0
    for start, end in _values(raw):
        if raw.find(b"\\", start, end) < 0:
            pieces += [view[copied:start], _STAND_IN % len(values)]
            values.append(view[start:end])
            copied = end
    return CutItems(b"".join([*pieces, view[copied:]]), values)


def _values(body: bytes) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each large base64 value, without its quotes.

    Only every `_LEAST // 2` bytes are checked: a value of `_LEAST` bytes fills at least one such block.
    """
    block, end = _LEAST // 2, 0
    for position in range(0, len(body), block):
        if position < end or body.find(b'"', position, position + block) >= 0:
            continue
        opening, end = body.rfind(b'"', end, position), body.find(b'"', position)
        if end < 0:
            return
        start = _begin(body, opening, end)
        if opening >= 0 and end - start >= _LEAST and _is_base64(body, start, end):
            yield start, end


def _begin(body: bytes, opening: int, end: int) -> int:
    """Return where base64 begins after a quote; `end` if none does."""
    url = body.find(_URL, opening, min(end, opening + _LONGEST_TYPE))
    if url >= 0:
        return url + len(_URL)
    return opening + 1 if body[max(0, opening - _LONGEST_KEY) : opening].rstrip().endswith(_KEYS) else end


def _is_base64(body: bytes, start: int, end: int) -> bool:
    """Return True if both ends look like base64, and the value ends with an unescaped quote."""
    head, tail = body[start : start + _LOOKED_AT], body[end - _LOOKED_AT : end]
    return body[end - 1] != _BACKSLASH and _BASE64.issuperset(head) and _BASE64.issuperset(tail)
