"""Count tokens offline, in bounded time, without exceptions.

Counting releases the GIL, so count long texts in a worker thread.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Final

from proxy.models import encodings
from proxy.models.encodings import CLAUDE, Encoding
from proxy.models.table import bare_name

DEFAULT_ENCODING = "o200k_base"

# The first match wins. Source: tiktoken/model.py. Names that it lacks are newer, or of other vendors.
_ENCODINGS: Final = (
    ("gpt-4o", "o200k_base"),
    ("gpt-4.1", "o200k_base"),
    ("gpt-4.5", "o200k_base"),
    ("gpt-4", "cl100k_base"),  # gpt-4-turbo, gpt-4-32k
    ("gpt-3.5", "cl100k_base"),
    ("gpt-35", "cl100k_base"),  # Azure's spelling
    ("text-embedding-", "cl100k_base"),
    ("davinci-002", "cl100k_base"),
    ("babbage-002", "cl100k_base"),
    ("text-davinci", "p50k_base"),
    ("claude-2", CLAUDE),
    ("claude-instant", CLAUDE),
    ("", DEFAULT_ENCODING),  # gpt-5, o1, o3, o4, chatgpt-4o and everything unknown
)

# Models with these encodings as their own. Every other model is counted by estimate.
_OWNERS: Final = re.compile(
    r"(?:gpt-[345]|chatgpt-|o[134](?:-|$)|text-embedding-|davinci-|babbage-|text-davinci|claude-(?:2|instant))"
)

# o200k_base panics on about a million spaces in one piece (measured, tiktoken 0.14), and the patterns of many a
# tokenizer.json take quadratic time for them. Slices of this length cost 0.05 %.
SLICE_CHARS = 8_192
# A text above the first limit is counted up to the second and extrapolated: under a second for any text, 0.1 to 0.2 s
# for a usual one. A slower encoding counts less accordingly.
MAX_EXACT_CHARS = 2_000_000
SAMPLE_CHARS = 1_000_000
# tiktoken counts this in 5 to 10 ms, which an event loop can wait for.
INLINE_BYTES = 48_000

# A record's lines are short, and are counted again for every record.
MEMO_CHARS = 400
_MEMO_TEXTS = 4_096

# 3.5 bytes a token and a tenth on top: 11 tokens in 35 bytes.
_ESTIMATE = (11, 35)


class Tokenizer:
    """Count tokens by encoding. Each is loaded once at its first use (0.1 to 2 s), from `directory`.

    An encoding is one of `encodings.NAMES`, or the path of a tokenizer.json.
    """

    def __init__(self, directory: Path = encodings.BUNDLED) -> None:
        """Create a tokenizer without loading encodings."""
        self._directory = directory
        self._lock = threading.Lock()
        self._loaded: dict[str, _Loaded] = {}

    def encoding_for(self, model: str, override: str | None = None) -> str:
        """Return the name of the encoding for this model's tokens."""
        if override:
            return override
        name = bare_name(model)
        return next(encoding for prefix, encoding in _ENCODINGS if name.startswith(prefix))

    @staticmethod
    def knows(model: str, override: str | None = None) -> bool:
        """Return True if the encoding for this model is its own, not a substitute.

        `override` is the encoding in the config. It counts as the model's own, except Claude 2's.
        """
        if override and override != CLAUDE:
            return True
        return _OWNERS.match(bare_name(model)) is not None

    def count(self, text: str, encoding: str) -> int:
        """Return the tokens of the text; an estimate, high for prose, if the encoding is missing or fails."""
        loaded = self._load(encoding)
        return loaded.short(text) if len(text) <= MEMO_CHARS else loaded.count(text)

    def is_quick(self, size: int, encoding: str) -> bool:
        """Return True if an event loop can wait for a count: of few bytes, by a loaded encoding."""
        loaded = self._loaded.get(encoding)
        return loaded is not None and size * loaded.slowness <= INLINE_BYTES

    def warm(self, encoding: str) -> None:
        """Load the encoding in a worker thread, so that no count has to."""
        self._load(encoding)

    def _load(self, name: str) -> _Loaded:
        loaded = self._loaded.get(name)
        if loaded is None:
            with self._lock:
                loaded = self._loaded.get(name) or _Loaded(encodings.load(name, self._directory))
                self._loaded[name] = loaded
        return loaded


class _Loaded:
    """An encoding with a cache of short texts. None for a missing one, so that all counts are estimates."""

    def __init__(self, encoding: Encoding | None) -> None:
        self.encoding = encoding
        self.slowness = encoding.slowness if encoding else 1
        self.short = lru_cache(_MEMO_TEXTS)(self.count)

    def count(self, text: str) -> int:
        if len(text) > MAX_EXACT_CHARS // self.slowness:
            sample = text[: SAMPLE_CHARS // self.slowness]
            return math.ceil(self._count(sample) * _size(text) / _size(sample))
        return self._count(text)

    def _count(self, text: str) -> int:
        if self.encoding is None:
            return _estimate(text)
        if len(text) <= SLICE_CHARS:
            return _count_slice(self.encoding.count, text)
        return sum(_count_slice(self.encoding.count, piece) for piece in _slices(text))


def _slices(text: str) -> list[str]:
    """Split the text into pieces of `SLICE_CHARS`. A surrogate pair in two halves stays together."""
    pieces = []
    start = 0
    while start < len(text):
        end = start + SLICE_CHARS
        if "\ud800" <= text[end - 1 : end] <= "\udbff":
            end += 1
        pieces.append(text[start:end])
        start = end
    return pieces


def _count_slice(count: Callable[[str], int], piece: str) -> int:
    try:
        return count(piece)
    except BaseException as error:
        if not encodings.is_fault(error):
            raise
        return _estimate(piece)


def _estimate(text: str) -> int:
    tokens, size = _ESTIMATE
    return math.ceil(_size(text) * tokens / size)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
