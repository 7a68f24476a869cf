"""Lone surrogates in JSON: escapes of half a character, which strict readers refuse and JavaScript writes."""

import re
from itertools import islice

from proxy.dialects import bounds

# A surrogate pair, or half of one. It begins with literal bytes, so that `re` finds it at the speed of memchr.
_SURROGATES = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_HALF = 6
_BACKSLASH = ord("\\")


def has_many(body: bytes) -> bool:
    """Whether there are so many escapes of surrogates, pairs or not, that making them readable holds others up."""
    return sum(1 for _ in islice(_SURROGATES.finditer(body), bounds.MOST_SURROGATES + 1)) > bounds.MOST_SURROGATES


def readable(body: bytes) -> bytes:
    r"""Every lone surrogate escape (JavaScript writes them when it cuts a text inside an emoji) as \ufffd.

    The result has the length of the body, so offsets found in it hold for the client's bytes.
    """
    if b"\\" not in body or _SURROGATES.search(body) is None:  # the first alone is quick, as for pictures
        return body
    changed = bytearray(body)  # changed in place: one substitution over megabytes would hold up others
    for match in _SURROGATES.finditer(body):
        changed[match.start() : match.end()] = _readable(match)
    return bytes(changed)


def _readable(match: re.Match[bytes]) -> bytes:
    found, body = match[0], match.string
    before = start = match.start()
    while before and body[before - 1] == _BACKSLASH:
        before -= 1
    if (start - before) % 2:  # no escape but a backslash and what looks like one; what follows it may be one
        return found[:_HALF] + rb"\ufffd"[: len(found) - _HALF]
    return found if len(found) > _HALF else rb"\ufffd"
