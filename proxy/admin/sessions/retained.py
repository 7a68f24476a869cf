"""Statements, rules and pinned texts of a session: kept word for word, shortened or left out, and since when."""

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
# Characters of a text that are shown.
_MOST_CHARACTERS = 600


class RetainedText(msgspec.Struct, frozen=True, kw_only=True):
    """A statement, a file of rules or a pinned text. message: its number in the conversation; None if it has none.

    state: what the newest record has of it. since: digest of the oldest record from which on this was so; generation
    and made: its generation, and when it was made, in Unix seconds. missing: of a shortened one, what is left out.
    replaced: how many earlier statements it stands for.
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
    """What the newest record of a session has of what it covers. digest: of this record; covered: its messages.

    texts: what is left out first, then what is shortened. counts: by state. forgotten: older statements that no record
    has any more.
    """

    digest: str
    covered: int
    texts: list[RetainedText]
    counts: dict[str, int]
    forgotten: int


class _Found(NamedTuple):
    """A text as one record has it."""

    kind: RetainedKind
    text: str
    position: int
    state: RetainedState
    missing: str = ""
    replaced: int = 0


_Key = tuple[str, int, int, str]


def retained_in(records: Sequence[Record]) -> Retained | None:
    """Return what the newest of the records of a session retains. None without a record. records: the newest first."""
    if not records:
        return None
    states = [_states_of(record) for record in records]
    texts = []
    for key, found in states[0].items():
        since = 0
        while since + 1 < len(records) and (older := states[since + 1].get(key)) and older.state == found.state:
            since += 1
        first = records[since]
        texts.append(
            RetainedText(
                kind=found.kind,
                text=found.text[:_MOST_CHARACTERS],
                message=found.position if found.position >= 0 else None,
                state=found.state,
                since=first.digest,
                generation=first.generation,
                made=first.compacted,
                missing=found.missing,
                replaced=found.replaced,
            )
        )
    texts.sort(key=_order_of)
    counts = Counter(each.state for each in texts)
    by_state: dict[str, int] = {state: counts[state] for state in _STATES}
    return Retained(records[0].digest, records[0].covered, texts, by_state, records[0].forgotten)


def _order_of(text: RetainedText) -> tuple[int, int, int]:
    """Order what is left out first, and rules before all other statements."""
    return _STATES.index(text.state), _ORDER.index(text.kind), -1 if text.message is None else text.message


def _states_of(record: Record) -> dict[_Key, _Found]:
    """Return every statement, file of rules and pinned text that one record covers, by where it stands."""
    left_out = [each for each in record.left_out if not each.is_shown]
    said = {(each.position, each.order): each for each in left_out if each.kind == "said"}
    rules = {each.position: each for each in left_out if each.kind == "rules"}
    return {**dict(_statements(record, said)), **dict(_rule_files(record, rules)), **dict(_pins(record))}


def _statements(record: Record, left_out: dict[tuple[int, int], LeftOut]) -> Iterator[tuple[_Key, _Found]]:
    for entry in record.entries:
        missing = left_out.pop((entry.position, entry.order), None)
        if entry.kind != "pasted":
            found = _found_of(_KINDS[entry.kind], entry.text, entry.position, missing)
            yield ("said", entry.position, entry.order, ""), found._replace(replaced=entry.replaced)
    for each in left_out.values():
        is_rest = each.text.startswith(REST)
        state: RetainedState = "shortened" if is_rest else "left out"
        yield ("said", each.position, each.order, ""), _Found("message", each.text, each.position, state)


def _rule_files(record: Record, left_out: dict[int, LeftOut]) -> Iterator[tuple[_Key, _Found]]:
    for file in record.rules:
        missing = left_out.pop(file.position, None)
        state: RetainedState = "kept" if missing is None else "shortened"
        text = "" if missing is None else missing.text
        yield ("rules", 0, 0, file.name), _Found("file of rules", file.name, file.position, state, text)
    for each in left_out.values():
        name = each.text.partition(":")[0]
        yield ("rules", 0, 0, name), _Found("file of rules", each.text, each.position, "left out")


def _pins(record: Record) -> Iterator[tuple[_Key, _Found]]:
    for pin in record.pins:
        text = f"{pin.source}: {pin.text}" if pin.text else pin.source
        yield ("pin", 0, 0, pin.key), _Found("pinned text", text, pin.position, "kept" if pin.text else "left out")


def _found_of(kind: RetainedKind, text: str, position: int, missing: LeftOut | None) -> _Found:
    if missing is None:
        return _Found(kind, text, position, "kept")
    if missing.text.startswith(REST):
        return _Found(kind, text, position, "shortened", missing.text)
    return _Found(kind, text, position, "left out")
