"""The tables of words for each language, prepared for lookup.

Words of a subject with the same meaning share a concept. A word of a kind is a value (a weekday, a color). A cue says
what the sentence does (forbids, corrects, adds, asks).
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
    """A file of `languages`. The fields are its tables."""

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
    names = sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))
    return {name: _language(read_table("policies.statements", f"languages/{name}")) for name in names}


LANGUAGES = _languages()
QUOTES = '`"“”「」『』《》'
_BY_SCRIPT = {language.script: language for language in LANGUAGES.values()}
_ASCII, _HAN = _BY_SCRIPT["ascii"], _BY_SCRIPT["han"]


@lru_cache(maxsize=8_192)
def stem(word: str) -> str:
    """Return a lower-case word without its ending: "report" for "reports", "reported" and "reporting"."""
    word = word.removesuffix("'s").removesuffix("’s")
    for ending, put in (("ies", "y"), ("sses", "ss"), ("ing", ""), ("ied", "y"), ("ed", ""), ("s", "")):
        shortened = word.removesuffix(ending) + put
        if (
            word.endswith(ending)
            and len(shortened) > 2
            and _VOWEL.search(shortened)
            and not word.endswith(("ss", "us", "is"))
        ):
            word = shortened
            if ending in ("ing", "ed") and len(word) > 3 and word[-1] == word[-2] and word[-1] in "bdgmnprt":
                word = word[:-1]
            break
    return word[:-1] if len(word) > 3 and word.endswith("e") else word


def as_cue(name: str) -> Cue:
    """Return the name as a cue. Raises ValueError for an unknown one."""
    if name not in get_args(Cue):
        raise ValueError(f"unknown cue {name!r}, must be one of {get_args(Cue)}")
    return cast("Cue", name)


def by_first_word(table: Table) -> dict[str, list[tuple[tuple[str, ...], str]]]:
    """Return first word -> (the words after it, meaning), longest first."""
    rows_by_word: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    for meaning, phrases in table.items():
        for phrase in phrases:
            first_word, *following_words = phrase.split()
            rows_by_word.setdefault(first_word, []).append((tuple(following_words), meaning))
    return {first_word: sorted(rows, key=lambda row: -len(row[0])) for first_word, rows in rows_by_word.items()}


_SETS = {name: frozenset(row) for name, row in _ASCII.sets.items()}

CONCEPTS: Mapping[str, str] = {stem(word): name for name, row in _ASCII.concepts.items() for word in row}


def concept(word: str) -> str:
    """Return the concept of a lower-case English word, by which it is compared."""
    base = stem(word)
    return CONCEPTS.get(base, base)


STOP = _ASCII.stop
# Words that report a change, which are not its subject.
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
# An imperative without any of these concerns only the current work.
RECURRING = REPLIES | MEASURES | REPLYING | frozenset({"every", "each", "your", "you"})
QUESTION_WORDS = frozenset(_ASCII.cues["asks"])
CUES = {
    first: [(rest, as_cue(meaning)) for rest, meaning in rows]
    for first, rows in by_first_word({name: row for name, row in _ASCII.cues.items() if name != "asks"}).items()
}


def _lexicon() -> dict[str, list[tuple[str, str]]]:
    """Return Chinese word -> [(table, name)]. A word may be both a cue and part of a subject."""
    lexicon: dict[str, list[tuple[str, str]]] = {}
    for table_name, table in (("cue", _HAN.cues), ("concept", _HAN.concepts), ("kind", _HAN.kinds)):
        for name, row in table.items():
            for word in row:
                lexicon.setdefault(word, []).append((table_name, name))
    for word in _HAN.stop:
        lexicon.setdefault(word, [])
    return lexicon


LEXICON_HAN: Mapping[str, list[tuple[str, str]]] = _lexicon()
# The longest word first. Other characters match singly.
HAN = re.compile(
    "|".join(f"(?P<{name}>{shape})" for name, shape in _HAN.shapes.items() if name != "number")
    + "|(?P<word>"
    + "|".join(sorted(LEXICON_HAN, key=lambda word: (-len(word), word)))
    + f")|(?P<number>{_HAN.shapes['number']})|(?P<other>.)"
)
