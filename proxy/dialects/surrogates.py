"""Lone surrogates in JSON: escapes of half a character, which JavaScript writes and strict readers reject."""

import re
from collections.abc import Iterator
from itertools import islice

from proxy.dialects import bounds, pieces

# A surrogate pair, or half of one. The pattern begins with literal bytes, so that `re` searches at the speed of memchr.
_SURROGATES = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_HALF = 6
_LOOKED_AT = 1024


def has_many(body: bytes) -> bool:
    """Return True if replacing all surrogate escapes, in pairs or not, would block other requests."""
    return sum(1 for _ in islice(_escapes(body), bounds.MOST_SURROGATES + 1)) > bounds.MOST_SURROGATES


def readable(body: bytes) -> bytes:
    r"""Return the body with every lone surrogate escape replaced by \ufffd.

    JavaScript writes lone surrogates when it cuts a text inside an emoji. The result has the length of the body, so
    offsets in it are valid for the client's bytes.
    """
    changed = None
    for match in _escapes(body):
        if (replacement := _readable(match)) != match[0]:
            # In place: a list of the parts between millions of escapes would take forty times the body.
            changed = changed or pieces.copy_to_buffer([body])
            changed.seek(match.start())
            changed.write(replacement)
    return body if changed is None else changed.getvalue()


def _escapes(body: bytes) -> Iterator[re.Match[bytes]]:
    if b"\\" not in body:  # a quick check, also in base64
        return iter(())
    return pieces.matches(_SURROGATES, body, 2 * _HALF)


def _backslashes_before(body: bytes, end: int) -> int:
    number = rest_length = 0
    while end and not rest_length:
        piece = body[max(0, end - _LOOKED_AT) : end]
        rest_length = len(piece.rstrip(b"\\"))
        number, end = number + len(piece) - rest_length, end - len(piece)
    return number


def _readable(match: re.Match[bytes]) -> bytes:
    escape, body = match[0], match.string
    # An escaped backslash comes before, so this is not an escape. The second half may be one.
    if _backslashes_before(body, match.start()) % 2:
        return escape[:_HALF] + rb"\ufffd"[: len(escape) - _HALF]
    return escape if len(escape) > _HALF else rb"\ufffd"
