"""Lines of a record about calls: their outcomes, and checks that ran before the last change to a file."""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import NamedTuple

from policies.authorship.parts import is_asking
from policies.conversation.transcript import escape
from policies.record.actions import FileChange, KeyAction
from policies.record.texts import Texts
from policies.tool_calls.attempts import Attempt
from policies.tool_calls.sorts import covers

Call = tuple[int, str, str]
"""Position, tool and arguments of a call."""
# Arguments as `readable` formats them: a single text field, the first field, and the start of the next field.
_LONE_TEXT = re.compile(r'\{"[\w-]{1,40}": "([^\n]{0,1000})"\}\Z')
_FIRST_FIELD = re.compile(r'\{"[\w-]{1,40}": "([^"\n]{1,1000})"')
_PLACE = re.compile(r"\A- (?:\[\d{1,9}(?:-\d{1,9})?\] )?")
# File name endings of prose, which no test reads.
_PROSE = (".md", ".rst", ".txt", ".adoc", ".log")
_NEXT_FIELD = re.compile(r'", "[\w-]{1,40}": ')


class Change(NamedTuple):
    """The last change to a file that is known to have succeeded.

    is_rerun: True if a later call may have checked it.
    """

    position: int
    is_rerun: bool


def outdated_checks(actions: Sequence[KeyAction], files: Sequence[FileChange]) -> dict[Call, Change]:
    """Return the checks that ran before the last change to a file, unless a later run covers them.

    A check of certain files is outdated if a file of a similar name has changed: test_parse_row.py by parse_row.py.
    Presume that no check depends on prose, that reads and changes check nothing, and that any other call may check.
    """
    changes = [
        (file.position, _stem(file.path)) for file in files if file.sure and not file.path.lower().endswith(_PROSE)
    ]
    newest = max((action.position for action in actions if action.sort in ("", "check")), default=-1)
    outdated: dict[Call, Change] = {}
    for check, is_covered in _checks(actions):
        if is_covered or check.outcome == "unknown":
            continue
        parts = check.about.replace("\n", "\t").split("\t")[1:]
        checked = [_stem(part) for part in parts if "." in part or "/" in part]
        changed = max((position for position, stem in changes if _is_concerned(stem, checked)), default=-1)
        if 0 <= changed > check.position:
            outdated[call_of(check)] = Change(changed, newest > changed)
    return outdated


def covered_checks(actions: Sequence[KeyAction]) -> set[Call]:
    """Return the checks that a later check covers, whatever their outcomes."""
    return {call_of(check) for check, is_covered in _checks(actions) if is_covered}


def _checks(actions: Sequence[KeyAction]) -> Iterator[tuple[KeyAction, bool]]:
    """Yield each check, newest first, and True if a later check covers it."""
    later: list[str] = []
    for action in reversed(actions):
        if action.sort == "check":
            yield action, any(covers(run, action.about) for run in later)
            later.append(action.about)


def _is_concerned(changed: str, checked: Sequence[str]) -> bool:
    """Return True if a check covers everything, or a file whose name contains the changed one or is part of it."""
    return not checked or any(changed in stem or stem in changed for stem in checked)


def _stem(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2].partition(".")[0].partition(":")[0]


NOTHING: Mapping[Call, Change] = MappingProxyType({})


def call_of(call: KeyAction | Attempt) -> Call:
    """Return the key of a call: its position, tool and arguments."""
    return call.position, call.tool, call.arguments


def action_line(action: KeyAction, texts: Texts, change: Change | None = None) -> str:
    """Return the line of a call and its outcome: the reason for a failure, the result of a check, else a quotation.

    A successful call may have started work of an unknown state, so its result is quoted without a label.
    change: a later change, if the call is a check that was run before it.
    """
    outcome, why = texts.outcomes[action.outcome], in_line(action.why)
    if action.outcome != "failed" and is_asking(action.tool):
        outcome = texts.asked
    elif why and action.sure and _is_quoted(action):
        outcome = texts.says.format(text=texts.told.format(text=why))
    elif why:
        outcome = f"{outcome}: {why}"
    return f"{place(action.position)}{call_text(action)} -> {outcome}{note_of(change, texts)}"


def _is_quoted(action: KeyAction) -> bool:
    return action.outcome == "unknown" or (action.outcome == "ok" and action.sort not in ("check", "change"))


def call_text(call: KeyAction | Attempt) -> str:
    """Return the tool and its arguments. The name of a single text argument is omitted."""
    single = _LONE_TEXT.match(call.arguments)
    arguments = single[1] if single is not None and _NEXT_FIELD.search(single[1]) is None else call.arguments
    return in_line(f"{call.tool}({arguments})")


def path_written_by(action: KeyAction) -> str:
    """Return the path that a file tool wrote; for a shell call its command."""
    field = _FIRST_FIELD.match(action.arguments) if action.sort == "change" else None
    return field[1] if field is not None else ""


def reads_line(reads: Sequence[KeyAction], texts: Texts) -> str:
    """Return the line of consecutive reads of files."""
    files = ", ".join(_read_file(action, texts) for action in reads)
    return f"{place(reads[0].position, reads[-1].position)}{texts.read}: {files}"


def _read_file(action: KeyAction, texts: Texts) -> str:
    times = f" ({texts.times.format(times=action.times)})" if action.times > 1 else ""
    return f"{in_line(action.about)}{times}"


def place(start: int, end: int | None = None) -> str:
    """Return the beginning of a line about a range of messages. Calls of older records may have no position."""
    if start < 0:
        return "- "
    return f"- [{start}] " if end in (None, start) else f"- [{start}-{end}] "


def rank_of_call(action: KeyAction, covered: Set[Call]) -> int:
    """Return how early to show a call, from 0.

    Failures and calls with effects that no file shows come first. Changes and checks follow, then checks that were run
    again, then reads and searches.
    """
    if call_of(action) in covered:
        return 2
    if action.outcome == "failed" or not action.sort:
        return 0
    return 3 if action.sort in ("look", "read") else 1


def note_of(change: Change | None, texts: Texts) -> str:
    """Return the note on a check that was run before the last change; empty if there was no change."""
    if change is None:
        return ""
    text = texts.unchecked if change.is_rerun else texts.not_rerun
    return text.format(position=change.position)


def without_place(line: str) -> str:
    """Return a line without its beginning, as `place` returns it."""
    return _PLACE.sub("", line)


def in_line(text: str) -> str:
    """Return foreign text escaped and in one line."""
    return escape(" ".join(text.split()))
