"""Load tokenizers offline: tiktoken's and Claude's bundled files, and any tokenizer.json by path."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# The tokenizer of Claude 2, the last that Anthropic published: "As of the Claude 3 models, this algorithm is no longer
# accurate" (its own readme). There is none for DeepSeek: its models' tokenizer.json is given by path.
CLAUDE: Final = "claude"
BUNDLED: Final = Path(__file__).parent / "bundled"
NAMES: Final = ("o200k_base", "cl100k_base", CLAUDE)
_FILES: Final = {CLAUDE: "anthropic_tokenizer.json"}
_SUFFIX: Final = ".json"

# tiktoken counts 8 to 13 MB/s, tokenizers 1 to 3 (measured on prose, code, JSON and base64).
_SLOWNESS: Final = 5
# The largest known file has 33 MB (256,000 tokens with their merges).
_MAX_FILE_BYTES: Final = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Encoding:
    """A loaded encoding.

    count: takes some thousand characters of any text and may raise. slowness: its time relative to tiktoken's.
    """

    count: Callable[[str], int]
    slowness: int = 1


def is_file(name: str) -> bool:
    """Return True if an encoding's name is the path of a tokenizer.json."""
    return name.endswith(_SUFFIX)


def load(name: str, directory: Path) -> Encoding | None:
    """Return the encoding; None if it is unknown, missing or damaged."""
    if not is_file(name) and name not in _FILES:
        return _load_tiktoken(name, directory)
    path = Path(name) if is_file(name) else directory / _FILES[name]
    try:
        return _encoding(read_tokenizer(path))
    except ValueError:
        return None


def read_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of a tokenizer.json. Raises ValueError with the file's problem."""
    if not path.is_file():
        raise ValueError("the file does not exist")
    if path.stat().st_size > _MAX_FILE_BYTES:
        raise ValueError("the file is larger than any tokenizer")
    import tokenizers

    # Its thread pool does not survive a fork, and does not help: a text is one call.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except BaseException as error:
        if not is_fault(error):
            raise
        raise ValueError(f"not a tokenizer in the format of Hugging Face ({error})") from None
    # Limits of the model's training. A count must not end at 512.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def is_fault(error: BaseException) -> bool:
    """Return True if the exception is a tokenizer's failure, and not a request to stop.

    tokenizers raises bare Exception. pyo3's PanicException is no Exception and has no importable name.
    """
    return (
        isinstance(error, ValueError | OSError) or type(error) is Exception or type(error).__name__ == "PanicException"
    )


def _encoding(tokenizer: Tokenizer) -> Encoding:
    def count(text: str) -> int:
        try:
            return _length(tokenizer, text)
        except TypeError:  # half of a surrogate pair
            return _length(tokenizer, text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))

    return Encoding(count, _SLOWNESS)


def _length(tokenizer: Tokenizer, text: str) -> int:
    """Return the number of tokens. Only the batch call releases the GIL, and the fast one keeps no offsets."""
    return sum(map(len, tokenizer.encode_batch_fast([text], add_special_tokens=False)))


def _load_tiktoken(name: str, directory: Path) -> Encoding | None:
    """Load tiktoken's bundled encoding if its file exists: tiktoken downloads a missing one without a timeout."""
    url = f"https://openaipublic.blob.core.windows.net/encodings/{name}.tiktoken"
    cache_key = hashlib.sha1(
        url.encode(), usedforsecurity=False
    ).hexdigest()  # the name of the file in tiktoken's cache, see tiktoken/load.py
    if not (directory / cache_key).is_file():
        return None
    import tiktoken

    os.environ["TIKTOKEN_CACHE_DIR"] = str(directory)
    try:
        encoding = tiktoken.get_encoding(name)
    except (ValueError, OSError, ImportError):
        return None
    # A second copy of the vocabulary in Python objects, only for decoding to single tokens: 30 MB.
    encoding._mergeable_ranks.clear()  # noqa: SLF001
    return Encoding(lambda text: len(encoding.encode_ordinary(text)))
