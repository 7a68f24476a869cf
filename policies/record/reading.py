"""Parsing of a record from its text. Some clients keep nothing else of a compaction."""

import hashlib
import re

from policies.conversation.transcript import shorten
from policies.record.pins import without_pins
from policies.record.record import VERSION, Making, Record, RoundCounts, TokenCounts
from policies.record.texts import ALL_LANGUAGES, Texts, texts_for
from policies.statements.entries import Entry
from policies.statements.ledger import merge, sentence_of_user

# Maximum characters of the text, statements in it, and characters of a statement. A longer text is no record of this
# proxy.
_MOST = 400_000
_MOST_STATEMENTS = 1_500
_MOST_STATEMENT = 1_000
_PLACE = re.compile(r"- \[((?:\d{1,9}(?:-|, )){0,20}\d{1,9})\] ")
_NUMBER = re.compile(r"\d{1,9}")
_UNSAID = "{statements}"


def record_in(text: str) -> Record | None:
    """Return the record with this text; None for any other text.

    A client sends the text, so it has no more authority than its user. Each line of the ledger becomes a statement of
    the user, ranked like any other. Everything else becomes the summary. Unknown values are empty or 0.
    """
    if len(text) > _MOST:
        return None
    for language in ALL_LANGUAGES:
        texts = texts_for(language)
        if text.startswith(f"{texts.opening}\n") and text.endswith(f"\n{texts.closing}"):
            lines = text[len(texts.opening) : -len(texts.closing)].split("\n")
            lines, pins = without_pins(lines, texts)
            ledger_lines, other_lines = _split_lines(lines, texts)
            if len(ledger_lines) > _MOST_STATEMENTS:
                return None
            digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
            places = [place for line in lines for place in _positions(line)]
            return Record(
                version=VERSION, digest=digest, root=digest, parent=None, covered=max(places, default=-1) + 1,
                generation=1, language=language, text=text, text_tokens=0, summary="\n".join(other_lines).strip(),
                segments=(), entries=_entries(ledger_lines), actions=(), files=(), making=_UNKNOWN, first_digest=digest,
                last_digest=digest, title="", started=0.0, compacted=0.0,
                forgotten=_count_forgotten(ledger_lines, texts), pins=pins,
            )  # fmt: skip
    return None


_UNKNOWN = Making("single", "client", "", "", "", 0, None, RoundCounts(0, 0, 0), TokenCounts(0, 0, 0))


def _split_lines(lines: list[str], texts: Texts) -> tuple[list[str], list[str]]:
    """Return the lines of the ledger, and all other lines except the names."""
    ledger_lines: list[str] = []
    other_lines: list[str] = []
    block = ""
    for line in lines:
        if line.startswith("## "):
            block = line
        elif not line and block == f"## {texts.said}":
            block = ""
        if block == f"## {texts.said}":
            ledger_lines.append(line)
        elif block != f"## {texts.names}" and line != texts.numbers:
            other_lines.append(line)
    return ledger_lines, other_lines


def _entries(ledger_lines: list[str]) -> tuple[Entry, ...]:
    """Return the statements in the ledger's lines, in order."""
    statements = [(place, _PLACE.sub("", line, count=1)) for line in ledger_lines for place in _positions(line)]
    first_position = min((position for position, _ in statements), default=0)
    statements.sort(key=lambda statement: statement[0])
    entries = (
        sentence_of_user(shorten(text, _MOST_STATEMENT), position, order, first=position == first_position)
        for order, (position, text) in enumerate(statements, start=1)
    )
    return tuple(merge((), entries))


def _positions(line: str) -> list[int]:
    """Return the positions at the beginning of a line."""
    match = _PLACE.match(line)
    return [int(number) for number in _NUMBER.findall(match[1])] if match else []


def _count_forgotten(ledger_lines: list[str], texts: Texts) -> int:
    """Return the number of statements that the text reports as left out."""
    prefix, _, suffix = texts.unsaid.partition(_UNSAID)
    numbers = (line.removeprefix(prefix).removesuffix(suffix) for line in ledger_lines if line.startswith(prefix))
    return sum(int(number) for number in numbers if number.isdecimal() and len(number) < 10)
