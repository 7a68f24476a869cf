"""Lines of a record about calls: what became of each, and which checks were run before the last change to a file."""

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
# Arguments as `readable` gives them: one field, a text, and where another field would begin.
_LONE_TEXT = re.compile(r'\{"[\w-]{1,40}": "([^\n]{0,1000})"\}\Z')
_FIRST_FIELD = re.compile(r'\{"[\w-]{1,40}": "([^"\n]{1,1000})"')
_PLACE = re.compile(r"\A- (?:\[\d{1,9}(?:-\d{1,9})?\] )?")
# Ends of files that no test reads.
_PROSE = (".md", ".rst", ".txt", ".adoc", ".log")
_NEXT_FIELD = re.compile(r'", "[\w-]{1,40}": ')


class Change(NamedTuple):
    """The last change to a file that is known to have worked.

    is_rerun: whether a call behind it may have checked it.
    """

    position: int
    is_rerun: bool


def outdated_checks(actions: Sequence[KeyAction], files: Sequence[FileChange]) -> dict[Call, Change]:
    """Return the checks that were run before the last change to a file, each but if a later run covers it.

    A check of certain files is old if one of a similar name has changed: a test of parse_row.py by a change to it. No
    check depends on prose. Reads and changes check nothing; what any other call does may.
    """
    changes = [
        (file.position, _stem(file.path)) for file in files if file.sure and not file.path.lower().endswith(_PROSE)
    ]
    newest = max((action.position for action in actions if action.sort in ("", "check")), default=-1)
    found: dict[Call, Change] = {}
    for check, is_covered in _checks(actions):
        if is_covered or check.outcome == "unknown":
            continue
        parts = check.about.replace("\n", "\t").split("\t")[1:]
        checked = [_stem(part) for part in parts if "." in part or "/" in part]
        changed = max((position for position, stem in changes if _is_named(stem, checked)), default=-1)
        if 0 <= changed > check.position:
            found[call_of(check)] = Change(changed, newest > changed)
    return found


def covered_checks(actions: Sequence[KeyAction]) -> set[Call]:
    """Return the checks that a later check covers, whatever became of either."""
    return {call_of(check) for check, is_covered in _checks(actions) if is_covered}


def _checks(actions: Sequence[KeyAction]) -> Iterator[tuple[KeyAction, bool]]:
    """Yield the checks, the newest first, and whether a later one covers each."""
    later: list[str] = []
    for action in reversed(actions):
        if action.sort == "check":
            yield action, any(covers(run, action.about) for run in later)
            later.append(action.about)


def _is_named(changed: str, checked: Sequence[str]) -> bool:
    """Return True if a check is of all there is, or of a file whose name holds the changed one's, or stands in it."""
    return not checked or any(changed in stem or stem in changed for stem in checked)


def _stem(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2].partition(".")[0].partition(":")[0]


NOTHING: Mapping[Call, Change] = MappingProxyType({})


def call_of(one: KeyAction | Attempt) -> Call:
    return one.position, one.tool, one.arguments


def action_line(action: KeyAction, texts: Texts, change: Change | None = None) -> str:
    """Return the line of a call and of what became of it: why it failed, the line of a check, else a quote.

    A call that worked may have started work of which nothing is known, so that its words stand without a label.
    change: the one that it, a check, was run before.
    """
    told, why = texts.outcomes[action.outcome], in_line(action.why)
    if action.outcome != "failed" and is_asking(action.tool):
        told = texts.asked
    elif why and action.sure and _is_quoted(action):
        told = texts.says.format(text=texts.told.format(text=why))
    elif why:
        told = f"{told}: {why}"
    return f"{place(action.position)}{call_text(action)} -> {told}{note_of(change, texts)}"


def _is_quoted(action: KeyAction) -> bool:
    return action.outcome == "unknown" or (action.outcome == "ok" and action.sort not in ("check", "change"))


def call_text(one: KeyAction | Attempt) -> str:
    """Tool and arguments; of a lone text among them not its name."""
    lone = _LONE_TEXT.match(one.arguments)
    given = lone[1] if lone is not None and _NEXT_FIELD.search(lone[1]) is None else one.arguments
    return in_line(f"{one.tool}({given})")


def path_written_by(action: KeyAction) -> str:
    """The file that a tool for files wrote; of a shell's call its command, which says more."""
    first = _FIRST_FIELD.match(action.arguments) if action.sort == "change" else None
    return first[1] if first is not None else ""


def reads_line(reads: Sequence[KeyAction], texts: Texts) -> str:
    """Return the line of reads of files that follow one another."""
    files = ", ".join(_read_file(action, texts) for action in reads)
    return f"{place(reads[0].position, reads[-1].position)}{texts.read}: {files}"


def _read_file(action: KeyAction, texts: Texts) -> str:
    times = f" ({texts.times.format(times=action.times)})" if action.times > 1 else ""
    return f"{in_line(action.about)}{times}"


def place(first: int, last: int | None = None) -> str:
    """The beginning of a line about the messages from one to another; what is of older records may have no position."""
    if first < 0:
        return "- "
    return f"- [{first}] " if last in (None, first) else f"- [{first}-{last}] "


def rank_of_call(action: KeyAction, covered: Set[Call]) -> int:
    """Return how early a call is shown, from 0.

    First comes what failed, or did something that no file shows, then changes and checks, then checks that were run
    again, last what only looked and read.
    """
    if call_of(action) in covered:
        return 2
    if action.outcome == "failed" or not action.sort:
        return 0
    return 3 if action.sort in ("look", "read") else 1


def note_of(change: Change | None, texts: Texts) -> str:
    """What is said beside a check that was run before the last change; empty where there is none."""
    if change is None:
        return ""
    text = texts.unchecked if change.is_rerun else texts.not_rerun
    return text.format(position=change.position)


def without_place(line: str) -> str:
    return _PLACE.sub("", line)


def in_line(text: str) -> str:
    """Foreign text as part of one line of ours."""
    return escape(" ".join(text.split()))
