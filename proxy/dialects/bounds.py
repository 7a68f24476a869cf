"""Which bodies are read at all: bounds that are checked before anything is made of a body's bytes.

While one call into C reads a body, nothing else of the process runs; what it makes of `[1,1,…]` takes fifty times the
bytes. What is over a bound is relayed as it came.
"""

import re
from itertools import islice
from typing import Literal

from proxy.dialects import pieces

Bound = Literal["body_too_large", "too_many_values"]
"""As `x-compaction-reason` says it."""

# Bytes, escapes counted four times: they are slower to read.
MOST_READ = 24 * 1024 * 1024
_ESCAPE = 3
# Of one message, which is decoded whole.
MOST_OF_MESSAGE = 12 * 1024 * 1024
# Commas outside of texts: values, and members of objects.
MOST_COMMAS = 200_000
# Up to this size values are passed over to find the one that is looked for, and commas in texts are told apart.
MOST_SKIPPED = 8 * 1024 * 1024
# Halves of emoji are looked at one by one.
MOST_SURROGATES = 100_000
# Nothing that is smaller takes long; up to the second size it depends on what is in it.
QUICK = 256 * 1024
_MOST_QUICK = 1024 * 1024
_FEW_COMMAS = 50_000
TEXT = rb'"(?:[^"\\]++|\\(?:.|\Z))*+(?:"|\Z)'
"""A text of JSON. One without an end goes up to the body's: what did not match there would be tried again at every byte
before it."""
# Up to the next comma outside of texts, or to the end, so no search begins inside of one.
_commas = re.compile(rb'(?:[^",]++|%b)*+(?:(,)|\Z)' % TEXT, re.DOTALL).finditer


def is_quick(body: bytes) -> bool:
    """Whether a body is parsed, or found unreadable, in a few milliseconds."""
    return len(body) <= QUICK or (len(body) <= _MOST_QUICK and body.count(b",") <= _FEW_COMMAS)


def most_unpacked(size: int) -> int:
    """Bytes that so many compressed ones may become to be read: a text becomes ten times as many, hardly ever fifty."""
    return min(MOST_READ, MOST_SKIPPED + 100 * size)


def bound_over(body: bytes) -> Bound | None:
    """Which bound keeps a body from being read without holding up others, None if none does; takes a millisecond a
    megabyte."""
    if len(body) <= QUICK:
        return None
    most_escapes = (MOST_READ - len(body)) // _ESCAPE
    if most_escapes < 0 or pieces.count(body, b"\\", most_escapes) > most_escapes:
        return "body_too_large"
    if pieces.count(body, b",", MOST_COMMAS) <= MOST_COMMAS:
        return None
    if len(body) > MOST_SKIPPED:
        return "too_many_values"
    commas = sum(1 for found in islice(_commas(body), MOST_COMMAS + 1) if found[1])
    return "too_many_values" if commas > MOST_COMMAS else None
