"""The records of a session: each with what it says, and what it took over from the one before it."""

from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import product
from typing import Literal

import msgspec
from msgspec import structs

from policies.record import working_set
from policies.record.actions import FileChange, KeyAction
from policies.record.left_out import LeftOut, not_shown
from policies.record.lineage import Lineage
from policies.record.masking import as_allowed
from policies.record.record import Making, Record, Segment
from policies.settings import Secrets
from policies.statements import ledger
from policies.statements.entries import Entry
from policies.tool_calls.todo import Plan
from proxy.sessions.index import Session
from proxy.sessions.sessions import Sessions

# Generations that are followed back from the newest.
_MOST = 32
# Pairs of statements that are compared for which replaced which.
_MOST_PAIRS = 2_000


class RecordRow(msgspec.Struct, frozen=True):
    """A record without what it says. tokens: of its text. made: Unix seconds. title: which span of time it is of.

    left_out: how many things it covers and does not show, by kind.
    undone: True if it is out of use since it, or one that it continues, was undone."""

    digest: str
    parent: str | None
    generation: int
    covered: int
    tokens: int
    ratio: float
    made: float
    making: Making
    title: str = ""
    undone: bool = False
    left_out: dict[str, int] = {}


class Superseded(msgspec.Struct, frozen=True):
    """A statement that is gone since a later one took its place."""

    entry: Entry
    by: Entry


class Line(msgspec.Struct, frozen=True):
    """A line of a record's text, against that of another."""

    kind: Literal["same", "added", "gone"]
    text: str


class Comparison(msgspec.Struct, frozen=True):
    """What a record took over from an older one. dropped: statements that nothing replaced, but for which there was no
    room."""

    against: str
    lines: list[Line]
    kept: int
    added: list[Entry]
    superseded: list[Superseded]
    dropped: list[Entry]


class Exported(msgspec.Struct, frozen=True):
    """All that is stored of a session: its records, the newest first, and how its compactions went.

    hidden: why the records do not tell what they say; None where they do. undone: digests of records out of use.
    """

    session: Session
    records: list[Record]
    lineage: Lineage | None
    hidden: str | None = None
    undone: list[str] = []

    @property
    def in_use(self) -> list[Record]:
        """Return its records that were not undone, the newest first."""
        return [record for record in self.records if record.digest not in self.undone]

    @property
    def rows(self) -> list[RecordRow]:
        """Return the rows of its records."""
        return [row_of(record, is_undone=record.digest in self.undone) for record in self.records]


class View(msgspec.Struct, frozen=True):
    """A record with what it says. names: of its working set. left_out: what it covers and the prompt does not show."""

    row: RecordRow
    title: str
    text: str
    language: str
    segments: tuple[Segment, ...]
    entries: tuple[Entry, ...]
    actions: tuple[KeyAction, ...]
    files: tuple[FileChange, ...]
    names: int
    comparison: Comparison | None
    left_out: list[LeftOut] = []


async def export_session(sessions: Sessions, session: Session, name: bytes, secrets: Secrets) -> Exported:
    """Return a session as the store has it, and as its policy lets it be shown. name: as its requests have it."""
    made, lineage = await sessions.history(session, _MOST)
    undone, digests = await sessions.undone(name)
    known = {record.digest for record in made}
    made = sorted([*made, *(each for each in undone if each.digest not in known)], key=lambda each: -each.compacted)
    return Exported(session, [as_allowed(record, secrets) for record in made], lineage, undone=sorted(digests))


def without_content(record: Record) -> Record:
    """The record without what it says."""
    return structs.replace(
        record, text="", summary="", segments=(), entries=(), actions=(), files=(), title="", uses=b"", seen=(),
        attempts=(), running=(), plan=Plan(), reports=(), rules=(), briefs=(), steps=(), pins=(),
        left_out=(),
    )  # fmt: skip


def row_of(record: Record, *, is_undone: bool = False) -> RecordRow:
    return RecordRow(
        digest=record.digest,
        parent=record.parent,
        generation=record.generation,
        covered=record.covered,
        tokens=record.text_tokens,
        ratio=record.compression_ratio,
        made=record.compacted,
        making=record.making,
        title=record.title,
        undone=is_undone,
        left_out=record.left_out_counts,
    )


def view_of(record: Record, against: Record | None, *, is_undone: bool = False) -> View:
    return View(
        row=row_of(record, is_undone=is_undone),
        title=record.title,
        text=record.text,
        language=record.language,
        segments=record.segments,
        entries=record.entries,
        actions=tuple(action if action.sure else structs.replace(action, ok=None) for action in record.actions),
        files=record.files,
        names=len(working_set.unpack_names(record.uses)),
        comparison=None if against is None else compare_records(against, record),
        left_out=not_shown(record.left_out),
    )


def compare_records(older: Record, newer: Record) -> Comparison:
    """What became of the older record's lines and statements in the newer one."""
    before, after = {entry.text: entry for entry in older.entries}, {entry.text: entry for entry in newer.entries}
    gone = [entry for text, entry in before.items() if text not in after]
    added = [entry for text, entry in after.items() if text not in before]
    superseded: dict[str, Superseded] = {}
    for index, (entry, later) in enumerate(product(gone, added)):
        if index >= _MOST_PAIRS:
            break
        if entry.text not in superseded and entry not in ledger.merge([entry], [later]):
            superseded[entry.text] = Superseded(entry, later)
    return Comparison(
        against=older.digest,
        lines=_lines(older.text.splitlines(), newer.text.splitlines()),
        kept=len(before) - len(gone),
        added=added,
        superseded=[*superseded.values()],
        dropped=[entry for entry in gone if entry.text not in superseded],
    )


def _lines(before: Sequence[str], after: Sequence[str]) -> list[Line]:
    found: list[Line] = []
    for kind, first, last, start, end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "equal":
            found += [Line("same", text) for text in after[start:end]]
        else:
            found += [Line("gone", text) for text in before[first:last]]
            found += [Line("added", text) for text in after[start:end]]
    return found
