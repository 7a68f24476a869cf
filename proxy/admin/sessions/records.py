"""The records of a session, each with its content and a comparison with another one."""

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

# The maximum number of generations to follow back from the newest.
_MOST = 32
# The maximum number of pairs of statements to compare.
_MOST_PAIRS = 2_000


class RecordRow(msgspec.Struct, frozen=True):
    """A record without its content.

    tokens: of its text. made: in Unix seconds. title: the span of time that it covers. left_out: the number of covered
    and not shown things, by kind. undone: True if it, or a record that it continues, was undone.
    """

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
    """A statement that a later one has replaced."""

    entry: Entry
    by: Entry


class Line(msgspec.Struct, frozen=True):
    """A line of a record's text, compared with another's."""

    kind: Literal["same", "added", "gone"]
    text: str


class Comparison(msgspec.Struct, frozen=True):
    """The difference of a record to an older one.

    dropped: statements that lacked room, without a replacement.
    """

    against: str
    lines: list[Line]
    kept: int
    added: list[Entry]
    superseded: list[Superseded]
    dropped: list[Entry]


class Exported(msgspec.Struct, frozen=True):
    """Everything that is stored of a session: its records, the newest first, and the lineage of its compactions.

    hidden: why record texts are hidden; None if they are not. undone: digests of undone records.
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
    """A record with its content.

    names: the size of its working set. left_out: things that it covers and the prompt does not show.
    """

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
    """Return a session from the store, as far as its policy allows.

    name: of the session in its requests.
    """
    stored, lineage = await sessions.history(session, _MOST)
    undone, digests = await sessions.undone(name)
    stored_digests = {record.digest for record in stored}
    stored = sorted(
        [*stored, *(each for each in undone if each.digest not in stored_digests)], key=lambda each: -each.compacted
    )
    return Exported(session, [as_allowed(record, secrets) for record in stored], lineage, undone=sorted(digests))


def without_content(record: Record) -> Record:
    """Return the record without its content."""
    return structs.replace(
        record, text="", summary="", segments=(), entries=(), actions=(), files=(), title="", uses=b"", seen=(),
        attempts=(), running=(), plan=Plan(), reports=(), rules=(), briefs=(), steps=(), pins=(),
        left_out=(),
    )  # fmt: skip


def row_of(record: Record, *, is_undone: bool = False) -> RecordRow:
    """Return the row of a record."""
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
    """Return the view of a record, compared with another one if given."""
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
    """Compare two records: their lines, and what became of the older one's statements."""
    older_entries, newer_entries = (
        {entry.text: entry for entry in older.entries},
        {entry.text: entry for entry in newer.entries},
    )
    gone = [entry for text, entry in older_entries.items() if text not in newer_entries]
    added = [entry for text, entry in newer_entries.items() if text not in older_entries]
    superseded: dict[str, Superseded] = {}
    for index, (entry, later) in enumerate(product(gone, added)):
        if index >= _MOST_PAIRS:
            break
        if entry.text not in superseded and entry not in ledger.merge([entry], [later]):
            superseded[entry.text] = Superseded(entry, later)
    return Comparison(
        against=older.digest,
        lines=_lines(older.text.splitlines(), newer.text.splitlines()),
        kept=len(older_entries) - len(gone),
        added=added,
        superseded=[*superseded.values()],
        dropped=[entry for entry in gone if entry.text not in superseded],
    )


def _lines(older: Sequence[str], newer: Sequence[str]) -> list[Line]:
    lines: list[Line] = []
    for kind, older_start, older_end, start, end in SequenceMatcher(None, older, newer, autojunk=False).get_opcodes():
        if kind == "equal":
            lines += [Line("same", text) for text in newer[start:end]]
        else:
            lines += [Line("gone", text) for text in older[older_start:older_end]]
            lines += [Line("added", text) for text in newer[start:end]]
    return lines
