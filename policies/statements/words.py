"""What single words say about a sentence: the tables of each language, ready to be looked up.

Words of a subject with the same meaning share a concept; a word of a kind is a value (a weekday, a
color); a cue says what the sentence does (forbids, corrects, adds, asks).
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple, cast, get_args

from policies.tables import read_table

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

Table = Mapping[str, Sequence[str]]


class Language(NamedTuple):
    """One file of `languages`. The fields are its tables."""

    script: str
    stop: frozenset[str]
    weak: frozenset[str]
    units: frozenset[str]
    endings: tuple[str, ...]
    cues: Table
    concepts: Table
    phrases: Table
    kinds: Table
    implied: Table
    sets: Table
    shapes: Mapping[str, str]
    examples: Table


def _language(data: Mapping[str, Any]) -> Language:
    return Language(
        script=data["script"],
        stop=frozenset(data.get("stop", "").split()),
        weak=frozenset(data.get("weak", "").split()),
        units=frozenset(data.get("units", "").split()),
        endings=tuple(data.get("endings", "").split()),
        cues=data["cues"],
        concepts=data.get("concepts", {}),
        phrases=data.get("phrases", {}),
        kinds=data["kinds"],
        implied=data.get("implied", {}),
        sets=data.get("sets", {}),
        shapes=data.get("shapes", {}),
        examples=data["examples"],
    )


def _languages() -> dict[str, Language]:
    """Return the languages by the names of their files."""
    folder = files("policies.statements").joinpath("languages")
    found = sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))
    return {name: _language(read_table("policies.statements", f"languages/{name}")) for name in found}


LANGUAGES = _languages()
QUOTES = '`"“”「」『』《》'
_BY_SCRIPT = {language.script: language for language in LANGUAGES.values()}
_ASCII, _HAN = _BY_SCRIPT["ascii"], _BY_SCRIPT["han"]


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


def by_first_word(table: Table) -> dict[str, list[tuple[tuple[str, ...], str]]]:
    """Return first word -> (the words after it, meaning), longest first."""
    found: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    for meaning, phrases in table.items():
        for phrase in phrases:
            first, *rest = phrase.split()
            found.setdefault(first, []).append((tuple(rest), meaning))
    return {first: sorted(rows, key=lambda row: -len(row[0])) for first, rows in found.items()}


_SETS = {name: frozenset(row) for name, row in _ASCII.sets.items()}

CONCEPTS: Mapping[str, str] = {stem(word): name for name, row in _ASCII.concepts.items() for word in row}


def concept(word: str) -> str:
    """What an English word is compared by; lower case in."""
    base = stem(word)
    return CONCEPTS.get(base, base)


STOP = _ASCII.stop
# What says that something changed is not what changed.
WEAK = frozenset(stem(word) for word in _ASCII.weak) | frozenset(
    stem(word) for name in ("corrects", "updates") for word in _ASCII.cues[name] if " " not in word
)
UNITS = frozenset(stem(word) for word in _ASCII.units)
KINDS: Mapping[str, str] = {word: kind for kind, row in _ASCII.kinds.items() for word in row}
IMPLIED: Mapping[str, frozenset[str]] = {kind: frozenset(map(concept, row)) for kind, row in _ASCII.implied.items()}
SLOTS = frozenset(map(concept, _SETS["slots"]))
CHANGES = _SETS["changes"]
REQUESTS = _SETS["requests"]
PRONOUNS = _SETS["pronouns"]
NOTHING = _SETS["nothing"]
CURRENCY = _SETS["currency"]
NUMBERS = _SETS["numbers"]
MONTHS: Mapping[str, str] = {name: month[:3] for month in _SETS["months"] for name in (month, month[:3])}
PHRASES = by_first_word(_ASCII.phrases)
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
QUESTION_WORDS = frozenset(_ASCII.cues["asks"])
CUES = {
    first: [(rest, as_cue(meaning)) for rest, meaning in rows]
    for first, rows in by_first_word({name: row for name, row in _ASCII.cues.items() if name != "asks"}).items()
}


def _lexicon() -> dict[str, list[tuple[str, str]]]:
    """Chinese word -> [(what it is, which one)]; several if it is a cue and part of a subject."""
    found: dict[str, list[tuple[str, str]]] = {}
    for what, table in (("cue", _HAN.cues), ("concept", _HAN.concepts), ("kind", _HAN.kinds)):
        for name, row in table.items():
            for word in row:
                found.setdefault(word, []).append((what, name))
    for word in _HAN.stop:
        found.setdefault(word, [])
    return found


LEXICON_HAN: Mapping[str, list[tuple[str, str]]] = _lexicon()
# The longest word first; what no table knows comes as single characters.
HAN = re.compile(
    "|".join(f"(?P<{name}>{shape})" for name, shape in _HAN.shapes.items() if name != "number")
    + "|(?P<word>"
    + "|".join(sorted(LEXICON_HAN, key=lambda word: (-len(word), word)))
    + f")|(?P<number>{_HAN.shapes['number']})|(?P<other>.)"
)
