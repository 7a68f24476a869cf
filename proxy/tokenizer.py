"""Counting tokens offline: tiktoken over the encodings litellm ships, and never an exception.

tiktoken counts 8-13 MB/s and releases the GIL, so long texts belong in a worker thread.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import os
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from proxy.models import bare_name

if TYPE_CHECKING:
    from tiktoken import Encoding

DEFAULT_ENCODING = "o200k_base"

# First match wins. Source: tiktoken/model.py; names it does not know are younger, or other vendors'.
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
    ("text-davinci-00", "p50k_base"),
    ("", DEFAULT_ENCODING),  # gpt-5, o1, o3, o4, chatgpt-4o and everything unknown
)

# Whose tokenizers these encodings are; every other model is counted by estimate.
_OWNERS: Final = re.compile(r"(?:gpt-[345]|chatgpt-|o[134](?:-|$)|text-embedding-|davinci-|babbage-|text-davinci-)")

# o200k_base panics on about a million spaces in one piece (measured, tiktoken 0.14); slices this long cost 0.05 %.
SLICE_CHARS = 8_192
# A text beyond the first is counted up to the second and extrapolated: under a second for any text,
# 0.1 to 0.2 s for a usual one.
MAX_EXACT_CHARS = 2_000_000
SAMPLE_CHARS = 1_000_000

# 3.5 bytes a token and a tenth on top: 11 tokens in 35 bytes.
_ESTIMATE = (11, 35)


class Tokenizer:
    """Counts by encoding; each is loaded at first use (0.2 to 0.5 s), once, from `directory` (litellm's by default)."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory or _bundled_directory()
        self._lock = threading.Lock()
        self._encodings: dict[str, Encoding | None] = {}

    def encoding_for(self, model: str, override: str | None = None) -> str:
        """The name of the encoding to count this model's tokens with."""
        if override:
            return override
        name = bare_name(model)
        return next(encoding for prefix, encoding in _ENCODINGS if name.startswith(prefix))

    @staticmethod
    def knows(model: str) -> bool:
        """Whether the encoding named for this model is its own, not a stand-in."""
        return _OWNERS.match(bare_name(model)) is not None

    def count(self, text: str, encoding: str) -> int:
        """Tokens of the text; an estimate, high for prose, where the encoding is not at hand or fails."""
        if len(text) > MAX_EXACT_CHARS:
            sample = text[:SAMPLE_CHARS]
            return math.ceil(self._count(sample, encoding) * _size(text) / _size(sample))
        return self._count(text, encoding)

    def is_exact(self, encoding: str) -> bool:
        """Whether `count` counts and does not estimate; loads the encoding if it is not loaded yet."""
        return self._load(encoding) is not None

    def is_loaded(self, encoding: str) -> bool:
        """Whether counting starts at once; loading takes up to half a second, which no event loop should wait for."""
        return encoding in self._encodings

    def warm(self, encoding: str) -> None:
        """Load the encoding, so that no count has to; for a worker thread."""
        self._load(encoding)

    def _count(self, text: str, encoding: str) -> int:
        loaded = self._load(encoding)
        if loaded is None:
            return _estimate(text)
        return sum(_count_slice(loaded, piece) for piece in _slices(text))

    def _load(self, name: str) -> Encoding | None:
        if name not in self._encodings:
            with self._lock:
                if name not in self._encodings:
                    self._encodings[name] = _load_encoding(name, self._directory)
        return self._encodings[name]


def _bundled_directory() -> Path | None:
    """Where litellm keeps tiktoken's files, found without importing litellm (6 s, 160 MB)."""
    spec = importlib.util.find_spec("litellm")
    return Path(spec.origin).parent / "litellm_core_utils" / "tokenizers" if spec and spec.origin else None


def _load_encoding(name: str, directory: Path | None) -> Encoding | None:
    """The encoding, or None: unknown, not shipped, or damaged.

    A file that is not there must not be asked for: tiktoken would fetch it from the network, without a timeout.
    """
    url = f"https://openaipublic.blob.core.windows.net/encodings/{name}.tiktoken"
    cache_key = hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest()  # as tiktoken/load.py names its cache
    if directory is None or not (directory / cache_key).is_file():
        return None
    import tiktoken

    os.environ["TIKTOKEN_CACHE_DIR"] = str(directory)
    try:
        encoding = tiktoken.get_encoding(name)
    except (ValueError, OSError, ImportError):
        return None
    # A second copy of the vocabulary, in Python objects, that only decoding to single tokens would need: 30 MB.
    encoding._mergeable_ranks.clear()  # noqa: SLF001
    return encoding


def _slices(text: str) -> list[str]:
    """The text in pieces of `SLICE_CHARS`, a surrogate pair that JSON left in two halves kept together."""
    pieces = []
    start = 0
    while start < len(text):
        end = start + SLICE_CHARS
        if "\ud800" <= text[end - 1 : end] <= "\udbff":
            end += 1
        pieces.append(text[start:end])
        start = end
    return pieces


def _count_slice(encoding: Encoding, piece: str) -> int:
    try:
        return len(encoding.encode_ordinary(piece))
    except BaseException as error:
        # pyo3's PanicException is no Exception, has no importable name, and is no reason to fail a request.
        if type(error).__name__ != "PanicException":
            raise
        return _estimate(piece)


def _estimate(text: str) -> int:
    tokens, size = _ESTIMATE
    return math.ceil(_size(text) * tokens / size)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
