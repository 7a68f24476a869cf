"""Names that work is done with: addresses, paths, files, identifiers, flags, hashes, ids and long numbers, in any text.

They are read off their spelling alone, so that it works in every human language and for every kind of tool.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Set
from functools import lru_cache
from string import ascii_letters, digits

# A word as tools spell one; what encloses it in prose or code is none of it. A pattern that begins with a set of signs
# is three times as fast.
_WORD = re.compile(r"[\w~@+./-](?:(?<=h)ttps?://[\w~@+./-]{4,160}|[\w~@+./-]{3,159})", re.ASCII)
# What follows an escape in a string begins with the escape's letter, and is no word, but for a path of Windows.
_ESCAPED = re.compile(r"\\(?<![\w:.\\]\\)[nrt][\w~@+./-]{3,159}", re.ASCII)
_EDGES = ".-+@/"
# A capital behind something else, and capitals before something else: camelCase, HTTPServer.
_INNER_CAPITAL = re.compile(r"[a-z0-9][A-Z]|[A-Z]{2}[a-z]")
# What was measured is no name.
_MEASURE = re.compile(r"\d{1,12}(?:\.\d{1,6})?(?:ms|us|ns|s|sec|min|kb|mb|gb|tb|kib|mib|gib|px|em|pt)", re.IGNORECASE)
_STAMP = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}")
_LETTERS = frozenset(f"{ascii_letters}{digits}_")
_WORDS = re.compile(r"\w+", re.ASCII)
_LEAST = 4
_LEAST_PART = 2
_SLASHES_OF_A_HOST = 2
_MOST = 120


# So many phrases are searched for one by one, which is faster.
_FEW = 100

NamesOf = Callable[[str], Set[str]]
"""`names_in`, or a version of it with a cache."""


def names_in(text: str) -> set[str]:
    """Every name of a text."""
    if "\\" in text:
        text = _ESCAPED.sub(" ", text)
    words = set(_WORD.findall(text))
    return {name for word in words if not (word.isalpha() and word.islower()) and (name := _name(word))}


class NamedText:
    """A text that grows, asked whether names stand in it, alone or within longer ones."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._words = set(_WORDS.findall(text))

    def have(self, name: str) -> bool:
        # Most names have a word that the text has not, and many are one word: neither is searched for.
        words = _WORDS.findall(name)
        return self._words.issuperset(words) and (words == [name] or has_name(self._text, name))

    def add(self, name: str) -> None:
        self._text += f"\n{name}"
        self._words.update(_WORDS.findall(name))


class Names(NamedText):
    """The names of some texts."""

    def __init__(self, texts: Iterable[str], names: NamesOf = names_in) -> None:
        super().__init__("\n".join(set[str]().union(*map(names, texts))))


class Phrases:
    """A set of texts, found within another text in a time that does not grow with their number."""

    def __init__(self, phrases: Iterable[str]) -> None:
        self._phrases = frozenset(filter(None, phrases))
        self._lengths = sorted({*map(len, self._phrases)})

    def stand_in(self, text: str) -> bool:
        """Return True if one of them stands in the text, alone or within a longer one that is made of names."""
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
    """Whether the name stands in a text, alone or within a longer one that is made of names."""
    return place_of(text, name) >= 0


def place_of(text: str, name: str) -> int:
    """Where the name stands first in a text; -1 where it does not."""
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        if text[max(0, at - 1) : at] not in _LETTERS and text[end : end + 1] not in _LETTERS:
            return at
        at = text.find(name, at + 1)
    return -1


@lru_cache(maxsize=4_096)
def _name(word: str) -> str:
    """What of a word is a name; empty where it is an ordinary one."""
    word = word.rstrip(_EDGES)
    if not word.startswith(("-", "/", "./", "../")):
        word = word.lstrip(_EDGES)
    return word if _LEAST <= len(word) <= _MOST and _is_name(word) else ""


def _is_name(word: str) -> bool:
    """Return True for an address, a path, a flag, a file, a part of a module, an identifier, an id or a long number."""
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
