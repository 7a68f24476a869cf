"""Loading tokenizers offline: tiktoken's and Claude's files, which are bundled, and any tokenizer.json by path."""

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
# accurate" (its own readme). None for DeepSeek is bundled: its models' tokenizer.json is given by path.
CLAUDE: Final = "claude"
BUNDLED: Final = Path(__file__).parent / "bundled"
NAMES: Final = ("o200k_base", "cl100k_base", CLAUDE)
_FILES: Final = {CLAUDE: "anthropic_tokenizer.json"}
_SUFFIX: Final = ".json"

# tiktoken counts 8 to 13 MB/s, tokenizers 1 to 3 (measured on prose, code, JSON and base64).
_SLOWNESS: Final = 5
# The largest known has 33 MB (256,000 tokens with their merges).
_MAX_FILE_BYTES: Final = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Encoding:
    """`count` takes some thousand characters of any text and may raise; `slowness` is its time, tiktoken's being 1."""

    count: Callable[[str], int]
    slowness: int = 1


def is_file(name: str) -> bool:
    """Whether an encoding's name is the path of a tokenizer.json."""
    return name.endswith(_SUFFIX)


def load(name: str, directory: Path) -> Encoding | None:
    """The encoding, or None: unknown, not shipped, or damaged."""
    if not is_file(name) and name not in _FILES:
        return _load_tiktoken(name, directory)
    path = Path(name) if is_file(name) else directory / _FILES[name]
    try:
        return _encoding(read_tokenizer(path))
    except ValueError:
        return None


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a tokenizer.json, or a ValueError that says what is wrong with the file."""
    if not path.is_file():
        raise ValueError("there is no such file")
    if path.stat().st_size > _MAX_FILE_BYTES:
        raise ValueError("the file is larger than any tokenizer")
    import tokenizers

    # Its thread pool neither survives a fork nor helps: a text is one call.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except BaseException as error:
        if not is_fault(error):
            raise
        raise ValueError(f"not a tokenizer in the format of Hugging Face ({error})") from None
    # What the model was trained with; a count must not end at 512.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def is_fault(error: BaseException) -> bool:
    """Whether a tokenizer failed, as against being told to stop.

    tokenizers raises bare Exception; pyo3's PanicException is none and has no importable name.
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
    """The batch call of one, since it alone releases the GIL, and the fast one keeps no offsets."""
    return sum(map(len, tokenizer.encode_batch_fast([text], add_special_tokens=False)))


def _load_tiktoken(name: str, directory: Path) -> Encoding | None:
    """A file that is not there must not be asked for: tiktoken would fetch it from the network, without a timeout."""
    url = f"https://openaipublic.blob.core.windows.net/encodings/{name}.tiktoken"
    cache_key = hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest()  # as tiktoken/load.py names its cache
    if not (directory / cache_key).is_file():
        return None
    import tiktoken

    os.environ["TIKTOKEN_CACHE_DIR"] = str(directory)
    try:
        encoding = tiktoken.get_encoding(name)
    except (ValueError, OSError, ImportError):
        return None
    # A second copy of the vocabulary, in Python objects, that only decoding to single tokens would need: 30 MB.
    encoding._mergeable_ranks.clear()  # noqa: SLF001
    return Encoding(lambda text: len(encoding.encode_ordinary(text)))
