"""A body without the insides of its pictures, papers and recordings: what large bodies are parsed by.

Base64 need not be read to know where the items of a request lie. What is cut out stands inside of one text each and
holds no quote, so that the rest has the same structure; each item is read from the client's own bytes.
"""

import re
import secrets
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

# What stands before base64 inside of a text, and the keys of what is base64 alone.
_URL = b";base64,"
_LONGEST_TYPE = 128
_KEYS = (b'"data":', b'"result":')
_LONGEST_KEY = 64
_LEAST = 32 * 1024
_MOST = 4_000
_BASE64 = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=-_\\")
_LOOKED_AT = 64
_BACKSLASH = ord("\\")
# What stands in the place of a value that is cut out of an item. No client can know it.
_STAND_IN = b"media:%%d:%b" % secrets.token_hex(8).encode()
_stand_ins = re.compile(re.escape(_STAND_IN).replace(b"%d", rb"(\d+)")).split


class Skeleton(NamedTuple):
    """text: what is left. ends: where in it something was cut out; gaps: bytes that were cut out up to there."""

    text: bytes
    ends: list[int]
    gaps: list[int]

    def original(self, position: int) -> int:
        """Where in the body a position of the text is, if nothing was cut out at it."""
        behind = bisect_right(self.ends, position)
        return position + (self.gaps[behind - 1] if behind else 0)


def skeleton_of(body: bytes) -> Skeleton:
    """Of a body; all of it if there are no large values in base64, or too many. A megabyte takes 0.1 ms."""
    kept, ends, gaps = [], [], []
    begun = left = gap = 0
    for first, last in _values(body):
        kept.append(memoryview(body)[begun:first])
        left, gap, begun = left + first - begun, gap + last - first, last
        ends.append(left)
        gaps.append(gap)
        if len(ends) > _MOST:
            return Skeleton(body, [], [])
    return Skeleton(b"".join([*kept, memoryview(body)[begun:]]), ends, gaps)


class CutItems(NamedTuple):
    """Items with a stand-in for each of their large values in base64, to be changed without reading those."""

    text: bytes
    values: list[memoryview]

    def restore(self, text: bytes) -> bytes:
        """A text with what its stand-ins stand for."""
        between, *others = _stand_ins(text)
        pairs = zip(others[::2], others[1::2], strict=True)
        return b"".join([between, *(part for number, rest in pairs for part in (self.values[int(number)], rest))])


def cut_items(raw: bytes) -> CutItems:
    """Those of a message. A value that JSON may write in another way, with escapes, is left in its place."""
    view = memoryview(raw)
    kept: list[bytes | memoryview] = []
    values, begun = list[memoryview](), 0
    for first, last in _values(raw):
        if raw.find(b"\\", first, last) < 0:
            kept += [view[begun:first], _STAND_IN % len(values)]
            values.append(view[first:last])
            begun = last
    return CutItems(b"".join([*kept, view[begun:]]), values)


def _values(body: bytes) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each large base64 value, without its quotes.

    Only every `_LEAST // 2` bytes are looked at: a value of `_LEAST` bytes fills at least one such block.
    """
    block, last = _LEAST // 2, 0
    for position in range(0, len(body), block):
        if position < last or body.find(b'"', position, position + block) >= 0:
            continue
        opening, last = body.rfind(b'"', last, position), body.find(b'"', position)
        if last < 0:
            return
        first = _begin(body, opening, last)
        if opening >= 0 and last - first >= _LEAST and _is_base64(body, first, last):
            yield first, last


def _begin(body: bytes, opening: int, last: int) -> int:
    """Where base64 begins behind a quote; at the end if none does."""
    url = body.find(_URL, opening, min(last, opening + _LONGEST_TYPE))
    if url >= 0:
        return url + len(_URL)
    return opening + 1 if body[max(0, opening - _LONGEST_KEY) : opening].rstrip().endswith(_KEYS) else last


def _is_base64(body: bytes, first: int, last: int) -> bool:
    """Whether it looks like that at both ends, and ends with an unescaped quote."""
    begin, end = body[first : first + _LOOKED_AT], body[last - _LOOKED_AT : last]
    return body[last - 1] != _BACKSLASH and _BASE64.issuperset(begin) and _BASE64.issuperset(end)
