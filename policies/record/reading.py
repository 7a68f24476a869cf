"""A record read back from its text, if nothing else is left of it: some clients keep only that of a compaction."""

import hashlib
import re

from policies.conversation.transcript import shorten
from policies.record.pins import without_pins
from policies.record.record import VERSION, Making, Record, RoundCounts, TokenCounts
from policies.record.texts import ALL_LANGUAGES, Texts, texts_for
from policies.statements.entries import Entry
from policies.statements.ledger import merge, sentence_of_user

# Characters of a text, and statements in it: a longer one is none of ours. Characters of a statement.
_MOST = 400_000
_MOST_STATEMENTS = 1_500
_MOST_STATEMENT = 1_000
_PLACE = re.compile(r"- \[((?:\d{1,9}(?:-|, )){0,20}\d{1,9})\] ")
_NUMBER = re.compile(r"\d{1,9}")
_UNSAID = "{statements}"


def record_in(text: str) -> Record | None:
    """The record whose text this is; None for any other text.

    It comes from a client, so it is worth no more than what that says in its user's name: of the ledger each line is a
    statement of the user, weighed as any other, and all else is prose, the summary. What the text does not say is not
    known, such as how many tokens it has (0).
    """
    if len(text) > _MOST:
        return None
    for language in ALL_LANGUAGES:
        texts = texts_for(language)
        if text.startswith(f"{texts.opening}\n") and text.endswith(f"\n{texts.closing}"):
            lines = text[len(texts.opening) : -len(texts.closing)].split("\n")
            lines, pins = without_pins(lines, texts)
            said, told = _part_lines(lines, texts)
            if len(said) > _MOST_STATEMENTS:
                return None
            named = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
            places = [place for line in lines for place in _places(line)]
            return Record(
                version=VERSION, digest=named, root=named, parent=None, covered=max(places, default=-1) + 1,
                generation=1, language=language, text=text, text_tokens=0, summary="\n".join(told).strip(),
                segments=(), entries=_entries(said), actions=(), files=(), making=_UNKNOWN, first_digest=named,
                last_digest=named, title="", started=0.0, compacted=0.0, forgotten=_forgotten(said, texts),
                pins=pins,
            )  # fmt: skip
    return None


_UNKNOWN = Making("single", "client", "", "", "", 0, None, RoundCounts(0, 0, 0), TokenCounts(0, 0, 0))


def _part_lines(lines: list[str], texts: Texts) -> tuple[list[str], list[str]]:
    """Lines of the ledger, and all others but the names, which are many and say nothing by themselves."""
    said: list[str] = []
    told: list[str] = []
    block = ""
    for line in lines:
        if line.startswith("## "):
            block = line
        elif not line and block == f"## {texts.said}":
            block = ""
        if block == f"## {texts.said}":
            said.append(line)
        elif block != f"## {texts.names}" and line != texts.numbers:
            told.append(line)
    return said, told


def _entries(said: list[str]) -> tuple[Entry, ...]:
    """Of the ledger's lines, in order."""
    found = [(place, _PLACE.sub("", line, count=1)) for line in said for place in _places(line)]
    first = min((position for position, _ in found), default=0)
    found.sort(key=lambda one: one[0])
    entries = (
        sentence_of_user(shorten(text, _MOST_STATEMENT), position, order, first=position == first)
        for order, (position, text) in enumerate(found, start=1)
    )
    return tuple(merge((), entries))


def _places(line: str) -> list[int]:
    """Return the positions that a line begins with."""
    found = _PLACE.match(line)
    return [int(number) for number in _NUMBER.findall(found[1])] if found else []


def _forgotten(said: list[str], texts: Texts) -> int:
    """How many statements the text says that it leaves out."""
    before, _, behind = texts.unsaid.partition(_UNSAID)
    numbers = (line.removeprefix(before).removesuffix(behind) for line in said if line.startswith(before))
    return sum(int(number) for number in numbers if number.isdecimal() and len(number) < 10)
