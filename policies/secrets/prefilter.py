"""Says which of hundreds of forms may stand in which of many texts.

The distinct words of all texts are asked at once. They are a tenth of a conversation, and few hold a part of a form.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from string import ascii_letters, digits
from typing import NamedTuple

from policies.searching import has_any

# What words are made of; everything else stands between them.
_SIGNS = f"{ascii_letters}{digits}_+/=.~:$@*|%-"
_WORDS_ONLY = bytes(sign if chr(sign) in _SIGNS else ord(" ") for sign in range(256))
_IN_WORD = re.compile(rf"[{re.escape(_SIGNS)}]{{1,200}}")
# Letters beyond ASCII that are read as letters of ASCII in lower case.
_ASCII_IN_SMALL = ("ſ", "\N{KELVIN SIGN}")
# A shorter part stands in nearly every text.
_LEAST_PART = 2
# The fewest characters of a word that holds a long form.
_LEAST_LONG = 15
# Characters of the texts whose words are held at once.
_MOST_HELD = 1_000_000


# Words without a part of any form that are remembered, and the characters of the longest.
_MOST_KNOWN, _LONGEST_KNOWN = 20_000, 40


class Form(NamedTuple):
    """What every text with some form holds: one of these parts.

    small: the parts stand in the text in lower case. long: they stand in a word of 15 characters or more.
    """

    parts: Sequence[str]
    small: bool = False
    long: bool = False


class Prefilter:
    """Says by number which forms may stand in a text.

    lower: returns a text in lower case, of the same length. Words without a part of a form are remembered. It needs no
    lock: a word that is forgotten is read anew.
    """

    def __init__(self, forms: Sequence[Form], lower: Callable[[str], str]) -> None:
        self._forms = [(form.small, form.parts) for form in forms]
        self._lower = lower
        # Forms that may stand in any text, and in any that is not ASCII.
        self._anywhere: set[int] = set()
        self._abroad: set[int] = set()
        self._parts: defaultdict[tuple[bool, bool], defaultdict[bytes, set[int]]] = defaultdict(
            lambda: defaultdict(set)
        )
        self._harmless: set[bytes] = set()
        for number, form in enumerate(forms):
            if not all(map(str.isascii, form.parts)):
                self._abroad.add(number)
                continue
            stems = [max(_IN_WORD.findall(part), key=len, default="").encode() for part in form.parts]
            if min(map(len, stems)) < _LEAST_PART:
                self._anywhere.add(number)
                continue
            for stem in stems:
                self._parts[form.small, form.long][stem].add(number)

    def possible(self, texts: Sequence[str]) -> list[list[int]]:
        """Return for every text the numbers of the forms of which it holds a part, in ascending order."""
        found: list[list[int]] = []
        start = size = 0
        for at, text in enumerate(texts, start=1):
            size += len(text)
            if size > _MOST_HELD or at == len(texts):
                found += self._possible(texts[start:at])
                start, size = at, 0
        return found

    def _possible(self, texts: Sequence[str]) -> list[list[int]]:
        words = [*map(self._words, texts)]
        telling = self._telling_words(set().union(*words) - self._harmless)
        return [
            self._parts_of(text, self._anywhere.union(*map(telling.__getitem__, telling.keys() & own)))
            for text, own in zip(texts, words, strict=True)
        ]

    def _parts_of(self, text: str, numbers: Set[int]) -> list[int]:
        small, found = self._lower(text), []
        for number in sorted(numbers if text.isascii() else numbers | self._abroad):
            is_small, parts = self._forms[number]
            if has_any(small if is_small else text, parts):
                found.append(number)
        return found

    def _words(self, text: str) -> set[bytes]:
        words = set(_words_of(text))
        if not text.isascii() and has_any(text, _ASCII_IN_SMALL):
            words.update(_words_of(self._lower(text)))
        return words

    def _telling_words(self, words: Set[bytes]) -> Mapping[bytes, Set[int]]:
        """Return the words that hold parts of forms, with these forms."""
        found: defaultdict[bytes, set[int]] = defaultdict(set)
        for (small, long), parts in self._parts.items():
            text = b" %b " % b" ".join([word for word in words if len(word) >= _LEAST_LONG] if long else words)
            seen = text.lower() if small else text
            starts: defaultdict[int, set[int]] = defaultdict(set)
            for part, forms in parts.items():
                at = seen.find(part)
                while at >= 0:
                    starts[text.rindex(b" ", 0, at) + 1].update(forms)
                    at = seen.find(part, text.index(b" ", at))
            for start, forms in starts.items():
                found[text[start : text.index(b" ", start)]].update(forms)
        if len(self._harmless) + len(words) > _MOST_KNOWN:
            self._harmless = set()
        self._harmless.update([w for w in words if len(w) <= _LONGEST_KNOWN and w not in found][:_MOST_KNOWN])
        return found


def _words_of(text: str) -> list[bytes]:
    return text.encode("utf-8", "replace").translate(_WORDS_ONLY).split()
