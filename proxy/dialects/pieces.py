"""Search and copy large bodies a piece at a time.

A call into C that reads or copies bytes blocks all other threads and the event loop: 50 ms for 100 MB.
"""

import re
from collections.abc import Iterable, Iterator
from io import BytesIO

_PIECE = 2 * 1024 * 1024


def holds(body: bytes, words: bytes) -> bool:
    """Return True if the body contains these bytes."""
    return any(body.find(words, start, start + _PIECE + len(words) - 1) >= 0 for start in range(0, len(body), _PIECE))


def count(body: bytes, sign: bytes, most: int) -> int:
    """Return how often a byte occurs in the body. Counting stops above `most`."""
    number = 0
    for start in range(0, len(body), _PIECE):
        number += body.count(sign, start, start + _PIECE)
        if number > most:
            break
    return number


def matches(pattern: re.Pattern[bytes], body: bytes, longest: int) -> Iterator[re.Match[bytes]]:
    """Yield matches as `finditer` does. The pattern reads at most `longest` bytes, and none before its start."""
    begin = 0
    for start in range(0, len(body), _PIECE):
        end = start + _PIECE
        for match in pattern.finditer(body, max(start, begin), end + longest):
            if match.start() >= end:
                break
            begin = match.end()
            yield match


def join_pieces(parts: Iterable[bytes | memoryview], size: int) -> bytes:
    """Return the joined parts. size: their length, about."""
    return b"".join(parts) if size <= _PIECE else copy_to_buffer(parts).getvalue()


def copy_to_buffer(parts: Iterable[bytes | memoryview]) -> BytesIO:
    """Return the joined parts as a buffer to change in place."""
    buffer = BytesIO()
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), _PIECE):
            buffer.write(view[start : start + _PIECE])
    return buffer
