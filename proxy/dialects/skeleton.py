"""A body without the insides of its pictures, papers and recordings: what large bodies are parsed by.

Base64 need not be read to know where the items of a request lie. What is cut out stands inside of one text each and
holds no quote, so that the rest has the same structure; each item is read from the client's own bytes.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

# What stands before base64 in one of the dialects: the value of a data URL, of a source or of a recording, and what an
# image model has made.
_ANCHORS = (b";base64,", b'"data":', b'"result":')
_URL = _ANCHORS[0]
_LEAST = 32 * 1024
_MOST = 4_000
_BASE64 = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=-_\\")
_LOOKED_AT = 64
_BACKSLASH = ord("\\")
_SPACES = b" \t\r\n"


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


def _values(body: bytes) -> Iterator[tuple[int, int]]:
    """Where the insides of large values in base64 lie."""
    position = 0
    places = {anchor: body.find(anchor) for anchor in _ANCHORS}
    while there := [(at, anchor) for anchor, at in places.items() if at >= 0]:
        at, anchor = min(there)
        first = at + len(anchor) if anchor is _URL else _opened(body, at + len(anchor))
        position = at + len(anchor)
        if first > 0:
            last = body.find(b'"', first)
            if last - first >= _LEAST and _is_base64(body, first, last):
                yield first, last
                position = last
        for each, found in places.items():
            if 0 <= found < position:
                places[each] = body.find(each, position)


def _opened(body: bytes, position: int) -> int:
    """Behind the quote that opens a value; -1 if another value stands there."""
    while body[position : position + 1] in _SPACES and position < len(body):
        position += 1
    return position + 1 if body[position : position + 1] == b'"' else -1


def _is_base64(body: bytes, first: int, last: int) -> bool:
    """Whether it looks like that at both ends, and ends with an unescaped quote."""
    begin, end = body[first : first + _LOOKED_AT], body[last - _LOOKED_AT : last]
    return body[last - 1] != _BACKSLASH and _BASE64.issuperset(begin) and _BASE64.issuperset(end)
