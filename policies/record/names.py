"""Names in a text: addresses, paths, files, identifiers, flags, hashes, ids and long numbers.

They are recognized by their spelling alone, in every human language and for every kind of tool.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Set
from functools import lru_cache
from string import ascii_letters, digits

# A word as tools write it, without surrounding punctuation. Beginning with a character set makes the search three times
# as fast.
_WORD = re.compile(r"[\w~@+./-](?:(?<=h)ttps?://[\w~@+./-]{4,160}|[\w~@+./-]{3,159})", re.ASCII)
# A word after an escape sequence in a string begins with the letter of the escape. It is no name, except in a Windows
# path.
_ESCAPED = re.compile(r"\\(?<![\w:.\\]\\)[nrt][\w~@+./-]{3,159}", re.ASCII)
_EDGES = ".-+@/"
# Capitals within a word: camelCase, HTTPServer.
_INNER_CAPITAL = re.compile(r"[a-z0-9][A-Z]|[A-Z]{2}[a-z]")
# A measured value is no name.
_MEASURE = re.compile(r"\d{1,12}(?:\.\d{1,6})?(?:ms|us|ns|s|sec|min|kb|mb|gb|tb|kib|mib|gib|px|em|pt)", re.IGNORECASE)
_STAMP = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}")
_LETTERS = frozenset(f"{ascii_letters}{digits}_")
_WORDS = re.compile(r"\w+", re.ASCII)
_LEAST = 4
_LEAST_PART = 2
_SLASHES_OF_A_HOST = 2
_MOST = 120


# Up to this many phrases are searched for one by one, which is faster.
_FEW = 100

NamesOf = Callable[[str], Set[str]]
"""`names_in`, or a version of it with a cache."""


def names_in(text: str) -> set[str]:
    """Return every name in a text."""
    if "\\" in text:
        text = _ESCAPED.sub(" ", text)
    words = set(_WORD.findall(text))
    return {name for word in words if not (word.isalpha() and word.islower()) and (name := _name_in_word(word))}


class NamedText:
    """A growing text that is searched for names, alone or within longer names."""

    def __init__(self, text: str) -> None:
        """Create the text with its first part."""
        self._text = text
        self._words = set(_WORDS.findall(text))

    def contains(self, name: str) -> bool:
        """Return True if the text contains the name."""
        # Most names have a word that the text lacks, and many are one word. Neither needs a search.
        words = _WORDS.findall(name)
        return self._words.issuperset(words) and (words == [name] or has_name(self._text, name))

    def add(self, name: str) -> None:
        """Append a name to the text."""
        self._text += f"\n{name}"
        self._words.update(_WORDS.findall(name))


class Names(NamedText):
    """The names of several texts."""

    def __init__(self, texts: Iterable[str], names: NamesOf = names_in) -> None:
        """Collect the names of these texts."""
        super().__init__("\n".join(set[str]().union(*map(names, texts))))


class Phrases:
    """A set of texts to find within another text. The time does not depend on their number."""

    def __init__(self, phrases: Iterable[str]) -> None:
        """Create the set without empty texts."""
        self._phrases = frozenset(filter(None, phrases))
        self._lengths = sorted({*map(len, self._phrases)})

    def occur_in(self, text: str) -> bool:
        """Return True if the text contains one of them, alone or within a longer name."""
        if len(self._phrases) <= _FEW:
            return any(has_name(text, phrase) for phrase in self._phrases if phrase in text)
        starts = (at for at in range(len(text)) if text[at - 1 : at] not in _LETTERS)
        return any(
            text[start : start + length] in self._phrases
            for start in starts
            for length in self._lengths[: bisect_right(self._lengths, len(text) - start)]
            if text[start + length : start + length + 1] not in _LETTERS
        )


def has_name(text: str, name: str) -> bool:
    """Return True if the text contains the name, alone or within a longer name."""
    return place_of(text, name) >= 0


def place_of(text: str, name: str) -> int:
    """Return the index of the first occurrence of a name in a text; -1 if there is none."""
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        if text[max(0, at - 1) : at] not in _LETTERS and text[end : end + 1] not in _LETTERS:
            return at
        at = text.find(name, at + 1)
    return -1


@lru_cache(maxsize=4_096)
def _name_in_word(word: str) -> str:
    """Return the name in a word, without punctuation; empty for an ordinary word."""
    word = word.rstrip(_EDGES)
    if not word.startswith(("-", "/", "./", "../")):
        word = word.lstrip(_EDGES)
    return word if _LEAST <= len(word) <= _MOST and _is_name(word) else ""


def _is_name(word: str) -> bool:
    """Return True for an address, path, flag, file, module attribute, identifier, id or long number."""
    if _MEASURE.fullmatch(word):
        return False
    if _STAMP.match(word):
        return False
    if ":" in word:
        return word.count("/") > _SLASHES_OF_A_HOST
    if not any(map(str.isalpha, word)):
        return word.isdigit()
    if "/" in word:
        return len(word) - word.rindex("/") > _LEAST_PART
    if word.startswith("-"):
        return True
    parts = word.split(".")
    if len(parts) > 1:
        return all(parts) and parts[-1][0].isalpha() and any(map(str.isalpha, parts[0]))
    if "_" in word or _INNER_CAPITAL.search(word):
        return True
    return len(word) > _LEAST and word.isalnum() and any(map(str.isdigit, word))
