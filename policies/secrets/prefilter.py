"""A filter for which of hundreds of forms may occur in which of many texts.

The distinct words of all texts are searched in one pass. They are a tenth of a conversation, and few contain a part of
a form.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from string import ascii_letters, digits
from typing import NamedTuple

from policies.searching import has_any

# Characters of words. All others separate words.
_SIGNS = f"{ascii_letters}{digits}_+/=.~:$@*|%-"
_WORDS_ONLY = bytes(sign if chr(sign) in _SIGNS else ord(" ") for sign in range(256))
_IN_WORD = re.compile(rf"[{re.escape(_SIGNS)}]{{1,200}}")
# Letters beyond ASCII whose lower case is an ASCII letter.
_ASCII_IN_SMALL = ("ſ", "\N{KELVIN SIGN}")
# A shorter part occurs in nearly every text.
_LEAST_PART = 2
# Minimum characters of a word with a long form.
_LEAST_LONG = 15
# Maximum characters of texts to search in one pass.
_MOST_HELD = 1_000_000


# Maximum cached words without a part of any form, and their maximum length.
_MOST_KNOWN, _LONGEST_KNOWN = 20_000, 40


class Form(NamedTuple):
    """The parts of a form. Every text with the form contains one of them.

    small: True if the parts occur in the text in lower case.
    long: True if they occur in a word of at least 15 characters.
    """

    parts: Sequence[str]
    small: bool = False
    long: bool = False


class Prefilter:
    """Returns by number which forms may occur in a text.

    Words without a part of a form are cached. No lock is needed: a word that was dropped is searched again.
    """

    def __init__(self, forms: Sequence[Form], lower: Callable[[str], str]) -> None:
        """Create the filter. lower: returns a text in lower case, of the same length."""
        self._forms = [(form.small, form.parts) for form in forms]
        self._lower = lower
        # Forms that may occur in any text, and in any text that is not ASCII.
        self._anywhere: set[int] = set()
        self._beyond_ascii: set[int] = set()
        self._parts: defaultdict[tuple[bool, bool], defaultdict[bytes, set[int]]] = defaultdict(
            lambda: defaultdict(set)
        )
        self._harmless: set[bytes] = set()
        for number, form in enumerate(forms):
            if not all(map(str.isascii, form.parts)):
                self._beyond_ascii.add(number)
                continue
            stems = [max(_IN_WORD.findall(part), key=len, default="").encode() for part in form.parts]
            if min(map(len, stems)) < _LEAST_PART:
                self._anywhere.add(number)
                continue
            for stem in stems:
                self._parts[form.small, form.long][stem].add(number)

    def possible(self, texts: Sequence[str]) -> list[list[int]]:
        """Return for every text the numbers of the forms that may occur in it, in ascending order."""
        possible: list[list[int]] = []
        start = size = 0
        for at, text in enumerate(texts, start=1):
            size += len(text)
            if size > _MOST_HELD or at == len(texts):
                possible += self._possible(texts[start:at])
                start, size = at, 0
        return possible

    def _possible(self, texts: Sequence[str]) -> list[list[int]]:
        words = [*map(self._words, texts)]
        telling = self._words_with_parts(set().union(*words) - self._harmless)
        return [
            self._parts_of(text, self._anywhere.union(*map(telling.__getitem__, telling.keys() & own)))
            for text, own in zip(texts, words, strict=True)
        ]

    def _parts_of(self, text: str, numbers: Set[int]) -> list[int]:
        small, occurring = self._lower(text), []
        for number in sorted(numbers if text.isascii() else numbers | self._beyond_ascii):
            is_small, parts = self._forms[number]
            if has_any(small if is_small else text, parts):
                occurring.append(number)
        return occurring

    def _words(self, text: str) -> set[bytes]:
        words = set(_words_of(text))
        if not text.isascii() and has_any(text, _ASCII_IN_SMALL):
            words.update(_words_of(self._lower(text)))
        return words

    def _words_with_parts(self, words: Set[bytes]) -> Mapping[bytes, Set[int]]:
        """Return the words that contain parts of forms, with these forms."""
        forms_by_word: defaultdict[bytes, set[int]] = defaultdict(set)
        for (small, long), parts in self._parts.items():
            text = b" %b " % b" ".join([word for word in words if len(word) >= _LEAST_LONG] if long else words)
            searched = text.lower() if small else text
            starts: defaultdict[int, set[int]] = defaultdict(set)
            for part, forms in parts.items():
                at = searched.find(part)
                while at >= 0:
                    starts[text.rindex(b" ", 0, at) + 1].update(forms)
                    at = searched.find(part, text.index(b" ", at))
            for start, forms in starts.items():
                forms_by_word[text[start : text.index(b" ", start)]].update(forms)
        if len(self._harmless) + len(words) > _MOST_KNOWN:
            self._harmless = set()
        self._harmless.update([w for w in words if len(w) <= _LONGEST_KNOWN and w not in forms_by_word][:_MOST_KNOWN])
        return forms_by_word


def _words_of(text: str) -> list[bytes]:
    return text.encode("utf-8", "replace").translate(_WORDS_ONLY).split()
