"""Lone surrogates in JSON: escapes of half a character, which strict readers refuse and JavaScript writes."""

import re
from collections.abc import Iterator
from itertools import islice

from proxy.dialects import bounds, pieces

# A surrogate pair, or half of one. It begins with literal bytes, so that `re` finds it at the speed of memchr.
_SURROGATES = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_HALF = 6
_LOOKED_AT = 1024


def has_many(body: bytes) -> bool:
    """Whether there are so many escapes of surrogates, pairs or not, that making them readable holds others up."""
    return sum(1 for _ in islice(_escapes(body), bounds.MOST_SURROGATES + 1)) > bounds.MOST_SURROGATES


def readable(body: bytes) -> bytes:
    r"""Every lone surrogate escape (JavaScript writes them when it cuts a text inside an emoji) as \ufffd.

    The result has the length of the body, so offsets found in it hold for the client's bytes.
    """
    changed = None
    for match in _escapes(body):
        if (read := _readable(match)) != match[0]:
            # In place: a list of what stands between millions of them would take forty times the body.
            changed = changed or pieces.written([body])
            changed.seek(match.start())
            changed.write(read)
    return body if changed is None else changed.getvalue()


def _escapes(body: bytes) -> Iterator[re.Match[bytes]]:
    if b"\\" not in body:  # quick, and so it is in pictures
        return iter(())
    return pieces.matches(_SURROGATES, body, 2 * _HALF)


def _backslashes_before(body: bytes, end: int) -> int:
    number = left = 0
    while end and not left:
        some = body[max(0, end - _LOOKED_AT) : end]
        left = len(some.rstrip(b"\\"))
        number, end = number + len(some) - left, end - len(some)
    return number


def _readable(match: re.Match[bytes]) -> bytes:
    found, body = match[0], match.string
    # No escape then, but a backslash and what looks like one; what follows it may be one.
    if _backslashes_before(body, match.start()) % 2:
        return found[:_HALF] + rb"\ufffd"[: len(found) - _HALF]
    return found if len(found) > _HALF else rb"\ufffd"
