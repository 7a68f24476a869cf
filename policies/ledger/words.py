"""What single words say about a sentence: the tables of each language, ready to be looked up.

Words of a subject with the same meaning share a concept; a word of a kind is a value (a weekday, a
color); a cue says what the sentence does (forbids, corrects, adds, asks).
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, cast, get_args

from policies.ledger import chinese, english

Cue = Literal[
    "corrects",  # says itself that something else held before
    "updates",  # "now", "new": an update if the subject is the same, but said in passing too
    "adds",
    "past",
    "supposes",
    "forbids",
    "demands",
    "only",
    "guards",  # approval, consent, safety
    "limits",
    "nobody",
    "modal",  # "nobody may": forbids
    "permits",
    "retracts",
    "prefers",
    "standing",  # "report", "answer": how something is always to be done, if a value says how
    "suggests",
    "progress",
    "states",  # what stands after it is the value
    "owns",  # what stands before it is the value
    "asks",
    "recurs",  # "each time", "every reply": an order with it holds from now on
    "orders",
]


_VOWEL = re.compile(r"[aeiouy]")

Rows = list[tuple[str, list[str]]]


@lru_cache(maxsize=8_192)
def stem(word: str) -> str:
    """A word without its ending, so that "reports", "reported" and "reporting" are one; lower case in and out."""
    word = word.removesuffix("'s").removesuffix("’s")
    for ending, put in (("ies", "y"), ("sses", "ss"), ("ing", ""), ("ied", "y"), ("ed", ""), ("s", "")):
        left = word.removesuffix(ending) + put
        if word.endswith(ending) and len(left) > 2 and _VOWEL.search(left) and not word.endswith(("ss", "us", "is")):
            word = left
            if ending in ("ing", "ed") and len(word) > 3 and word[-1] == word[-2] and word[-1] in "bdgmnprt":
                word = word[:-1]
            break
    return word[:-1] if len(word) > 3 and word.endswith("e") else word


def as_cue(name: str) -> Cue:
    if name not in get_args(Cue):
        raise ValueError(name)
    return cast("Cue", name)


def _rows(text: str) -> Rows:
    """ "name: word, word" for each line; an indented line goes on with the one above."""
    rows = [line.split(":", 1) for line in text.strip().replace("\n  ", " ").splitlines()]
    return [(name, [word.strip() for word in row.split(",")]) for name, row in rows]


def _by_first_word(table: Rows) -> dict[str, list[tuple[tuple[str, ...], str]]]:
    """First word -> (the words after it, meaning), longest first."""
    found: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    for meaning, phrases in table:
        for phrase in phrases:
            first, *rest = phrase.split()
            found.setdefault(first, []).append((tuple(rest), meaning))
    return {first: sorted(rows, key=lambda row: -len(row[0])) for first, rows in found.items()}


_CUES = _rows(english.CUES)
_SETS = {name: frozenset(row) for name, row in _rows(english.SETS)}

CONCEPTS: Mapping[str, str] = {stem(word): name for name, row in _rows(english.CONCEPTS) for word in row}


def concept(word: str) -> str:
    """What an English word is compared by; lower case in."""
    base = stem(word)
    return CONCEPTS.get(base, base)


STOP = frozenset(english.STOP.split())
# What says that something changed is not what changed.
WEAK = frozenset(stem(word) for word in english.WEAK.split()) | frozenset(
    stem(word) for name, row in _CUES if name in ("corrects", "updates") for word in row if " " not in word
)
UNITS = frozenset(stem(word) for word in english.UNITS.split())
KINDS: Mapping[str, str] = {word: kind for kind, row in _rows(english.KINDS) for word in row}
IMPLIED: Mapping[str, frozenset[str]] = {kind: frozenset(map(concept, row)) for kind, row in _rows(english.IMPLIED)}
SLOTS = frozenset(map(concept, _SETS["slots"]))
CHANGES = _SETS["changes"]
REQUESTS = _SETS["requests"]
PRONOUNS = _SETS["pronouns"]
NOTHING = _SETS["nothing"]
CURRENCY = _SETS["currency"]
NUMBERS = _SETS["numbers"]
MONTHS: Mapping[str, str] = {name: month[:3] for month in _SETS["months"] for name in (month, month[:3])}
PHRASES = _by_first_word(_rows(english.PHRASES))
OPENERS = _SETS["openers"]
PLACING = _SETS["placing"]
DEONTIC = _SETS["deontic"]
BEING = _SETS["being"]
BREAKS = _SETS["breaks"]
CONDITIONS = _SETS["conditions"]
IMPERATIVES = _SETS["imperatives"]
REPLYING = _SETS["replying"]
MANNERS = _SETS["manners"]
OPENING = OPENERS | CONDITIONS | IMPERATIVES
TURNS = frozenset(map(stem, _SETS["turns"]))
THINGS = frozenset(map(stem, _SETS["things"])) | TURNS
REPLIES = _SETS["replies"]
MEASURES = _SETS["measures"]
PARTS = _SETS["parts"]
# An imperative with none of these is about what is at hand.
RECURRING = REPLIES | MEASURES | REPLYING | frozenset({"every", "each", "your", "you"})
QUESTION_WORDS = frozenset(dict(_CUES)["asks"])
CUES = {
    first: [(rest, as_cue(meaning)) for rest, meaning in rows]
    for first, rows in _by_first_word([row for row in _CUES if row[0] != "asks"]).items()
}


def _lexicon() -> dict[str, list[tuple[str, str]]]:
    """Chinese word -> [(what it is, which one)]; several if it is a cue and part of a subject."""
    found: dict[str, list[tuple[str, str]]] = {}
    for what, table in (("cue", chinese.CUES), ("concept", chinese.CONCEPTS), ("kind", chinese.KINDS)):
        for name, row in _rows(table):
            for word in row:
                found.setdefault(word, []).append((what, name))
    for word in chinese.STOP.split():
        found.setdefault(word, [])
    return found


LEXICON_ZH: Mapping[str, list[tuple[str, str]]] = _lexicon()
# The longest word first; what no table knows comes as single characters.
CHINESE = re.compile(
    f"(?P<weekday>{chinese.WEEKDAY})|(?P<date>{chinese.DATE})|(?P<time>{chinese.TIME})|(?P<word>"
    + "|".join(sorted(LEXICON_ZH, key=lambda word: (-len(word), word)))
    + f")|(?P<number>{chinese.NUMBER})|(?P<other>.)"
)
