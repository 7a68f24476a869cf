"""Bounds on bodies, checked before parsing.

A call into C that reads a body blocks all other threads. `[1,1,…]` takes fifty times its bytes when parsed. A body over
a bound is relayed unchanged.
"""

import re
from itertools import islice
from typing import Literal

from proxy.dialects import pieces

Bound = Literal["body_too_large", "too_many_values"]
"""The value of `x-compaction-reason`."""

# In bytes. An escape counts as four, since it is slower to read.
MOST_READ = 24 * 1024 * 1024
_ESCAPE = 3
# Bytes of one message, which is decoded as a whole.
MOST_OF_MESSAGE = 12 * 1024 * 1024
# Commas outside of strings: values, and members of objects.
MOST_COMMAS = 200_000
# Largest body in which values are skipped to find one, and commas inside strings are not counted.
MOST_SKIPPED = 8 * 1024 * 1024
# Halves of surrogate pairs are checked one by one.
MOST_SURROGATES = 100_000
# Bodies up to this size are parsed quickly. Up to the second size it depends on the content.
QUICK = 256 * 1024
_MOST_QUICK = 1024 * 1024
_FEW_COMMAS = 50_000
TEXT = rb'"(?:[^"\\]++|\\(?:.|\Z))*+(?:"|\Z)'
"""A JSON string. Without an end it matches up to the end of the body: otherwise every byte before would be tried again.
"""
# Matches up to the next comma outside of strings, or to the end, so no search begins inside a string.
_commas = re.compile(rb'(?:[^",]++|%b)*+(?:(,)|\Z)' % TEXT, re.DOTALL).finditer


def is_quick(body: bytes) -> bool:
    """Return True if parsing a body, or rejecting it, takes only a few milliseconds."""
    return len(body) <= QUICK or (len(body) <= _MOST_QUICK and body.count(b",") <= _FEW_COMMAS)


def most_unpacked(size: int) -> int:
    """Return the most bytes to read from a compressed body of this size. Text expands about tenfold, rarely more."""
    return min(MOST_READ, MOST_SKIPPED + 100 * size)


def bound_over(body: bytes) -> Bound | None:
    """Return the bound that a body exceeds; None if it can be read without blocking other requests.

    Takes a millisecond per megabyte.
    """
    if len(body) <= QUICK:
        return None
    most_escapes = (MOST_READ - len(body)) // _ESCAPE
    if most_escapes < 0 or pieces.count(body, b"\\", most_escapes) > most_escapes:
        return "body_too_large"
    if pieces.count(body, b",", MOST_COMMAS) <= MOST_COMMAS:
        return None
    if len(body) > MOST_SKIPPED:
        return "too_many_values"
    commas = sum(1 for match in islice(_commas(body), MOST_COMMAS + 1) if match[1])
    return "too_many_values" if commas > MOST_COMMAS else None
