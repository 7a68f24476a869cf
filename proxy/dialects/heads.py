"""One digest of what stands before a conversation: its instructions and its tools."""

import hashlib
import re
from collections.abc import Iterable

from policies.stamps import without_stamps

# It moves about without anything else being said. In a text its quotes are escaped.
_mark = re.compile(r',?\s{0,20}"cache_control"\s{0,20}:\s{0,20}\{[^{}]{0,200}\}')


def head_digest(parts: Iterable[bytes]) -> bytes:
    """Equal for the same JSON parts but for dates, clock times and marks of the prompt cache."""
    digest = hashlib.sha256()
    for part in parts:
        text = without_stamps(_mark.sub("", part.decode("utf-8", "replace")))
        digest.update(b"%d:" % len(text) + text.encode("utf-8", "replace"))
    return digest.digest()
