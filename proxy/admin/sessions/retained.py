"""The statements, rules and pinned texts of a session: kept, shortened or left out, and since when."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, get_args

import msgspec

from policies.record.left_out import REST, LeftOut
from policies.record.record import Record

RetainedState = Literal["left out", "shortened", "kept"]
_STATES: tuple[RetainedState, ...] = ("left out", "shortened", "kept")
RetainedKind = Literal["pinned text", "file of rules", "rule", "task", "fact", "message"]
_ORDER: tuple[RetainedKind, ...] = get_args(RetainedKind)
_KINDS: dict[str, RetainedKind] = {"task": "task", "directive": "rule", "fact": "fact", "message": "message"}
# The maximum number of shown characters of a text.
_MOST_CHARACTERS = 600


class RetainedText(msgspec.Struct, frozen=True, kw_only=True):
    """A statement, a file of rules or a pinned text.

    message: its number in the conversation; None if it has none. state: in the newest record. since: digest of the
    oldest record with the same state, without a gap; generation and made: of that record, in Unix seconds. missing: the
    left out part of a shortened text. replaced: the number of earlier statements that it replaces.
    """

    kind: RetainedKind
    text: str
    message: int | None
    state: RetainedState
    since: str
    generation: int
    made: float
    missing: str = ""
    replaced: int = 0


class Retained(msgspec.Struct, frozen=True):
    """The texts that the newest record of a session retains.

    digest: of this record. covered: its messages. texts: left out ones first, then shortened ones. counts: by state.
    forgotten: older statements that no record contains now.
    """

    digest: str
    covered: int
    texts: list[RetainedText]
    counts: dict[str, int]
    forgotten: int


class _TextInRecord(NamedTuple):
    """A text in one record."""

    kind: RetainedKind
    text: str
    position: int
    state: RetainedState
    missing: str = ""
    replaced: int = 0


_Key = tuple[str, int, int, str]


def retained_in(records: Sequence[Record]) -> Retained | None:
    """Return what the newest record retains; None without a record.

    records: the newest first.
    """
    if not records:
        return None
    states = [_states_of(record) for record in records]
    texts = []
    for key, text in states[0].items():
        since = 0
        while since + 1 < len(records) and (older := states[since + 1].get(key)) and older.state == text.state:
            since += 1
        oldest = records[since]
        texts.append(
            RetainedText(
                kind=text.kind,
                text=text.text[:_MOST_CHARACTERS],
                message=text.position if text.position >= 0 else None,
                state=text.state,
                since=oldest.digest,
                generation=oldest.generation,
                made=oldest.compacted,
                missing=text.missing,
                replaced=text.replaced,
            )
        )
    texts.sort(key=_order_of)
    counts = Counter(each.state for each in texts)
    by_state: dict[str, int] = {state: counts[state] for state in _STATES}
    return Retained(records[0].digest, records[0].covered, texts, by_state, records[0].forgotten)


def _order_of(text: RetainedText) -> tuple[int, int, int]:
    """Return the sort key of a text: left out first, and rules before other statements."""
    return _STATES.index(text.state), _ORDER.index(text.kind), -1 if text.message is None else text.message


def _states_of(record: Record) -> dict[_Key, _TextInRecord]:
    """Return every statement, file of rules and pinned text that one record covers, by its place."""
    left_out = [each for each in record.left_out if not each.is_shown]
    left_out_statements = {(each.position, each.order): each for each in left_out if each.kind == "said"}
    rules = {each.position: each for each in left_out if each.kind == "rules"}
    return {**dict(_statements(record, left_out_statements)), **dict(_rule_files(record, rules)), **dict(_pins(record))}


def _statements(record: Record, left_out: dict[tuple[int, int], LeftOut]) -> Iterator[tuple[_Key, _TextInRecord]]:
    for entry in record.entries:
        missing = left_out.pop((entry.position, entry.order), None)
        if entry.kind != "pasted":
            entry_text = _text_of(_KINDS[entry.kind], entry.text, entry.position, missing)
            yield ("said", entry.position, entry.order, ""), entry_text._replace(replaced=entry.replaced)
    for each in left_out.values():
        is_rest = each.text.startswith(REST)
        state: RetainedState = "shortened" if is_rest else "left out"
        yield ("said", each.position, each.order, ""), _TextInRecord("message", each.text, each.position, state)


def _rule_files(record: Record, left_out: dict[int, LeftOut]) -> Iterator[tuple[_Key, _TextInRecord]]:
    for file in record.rules:
        missing = left_out.pop(file.position, None)
        state: RetainedState = "kept" if missing is None else "shortened"
        text = "" if missing is None else missing.text
        yield ("rules", 0, 0, file.name), _TextInRecord("file of rules", file.name, file.position, state, text)
    for each in left_out.values():
        name = each.text.partition(":")[0]
        yield ("rules", 0, 0, name), _TextInRecord("file of rules", each.text, each.position, "left out")


def _pins(record: Record) -> Iterator[tuple[_Key, _TextInRecord]]:
    for pin in record.pins:
        text = f"{pin.source}: {pin.text}" if pin.text else pin.source
        yield (
            ("pin", 0, 0, pin.key),
            _TextInRecord("pinned text", text, pin.position, "kept" if pin.text else "left out"),
        )


def _text_of(kind: RetainedKind, text: str, position: int, missing: LeftOut | None) -> _TextInRecord:
    if missing is None:
        return _TextInRecord(kind, text, position, "kept")
    if missing.text.startswith(REST):
        return _TextInRecord(kind, text, position, "shortened", missing.text)
    return _TextInRecord(kind, text, position, "left out")
