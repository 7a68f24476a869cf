"""Lines of a record about calls: what became of each, and which checks were run before the last change to a file."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple

from policies.record.actions import FileChange, KeyAction
from policies.record.texts import Texts
from policies.transcript import CountTokens, escape
from policies.voices.parts import is_asking
from policies.work.attempts import Attempt
from policies.work.sorts import covers

Call = tuple[int, str, str]
"""Position, tool and arguments of a call."""
# Arguments as `readable` gives them: one field, a text, and where another field would begin.
_LONE_TEXT = re.compile(r'\{"[\w-]{1,40}": "([^\n]{0,1000})"\}\Z')
_FIRST_FIELD = re.compile(r'\{"[\w-]{1,40}": "([^"\n]{1,1000})"')
_PLACE = re.compile(r"\A- (?:\[\d{1,9}(?:-\d{1,9})?\] )?")
_NEXT_FIELD = re.compile(r'", "[\w-]{1,40}": ')


class Change(NamedTuple):
    """The last change to a file that is known to have worked.

    is_rerun: whether a call behind it may have checked it.
    """

    path: str
    position: int
    is_rerun: bool


def last_change(actions: Sequence[KeyAction], files: Sequence[FileChange]) -> Change | None:
    """None where none is known. Reads and changes check nothing; what any other call does may."""
    changed = max((file for file in files if file.sure), key=lambda file: file.position, default=None)
    if changed is None or changed.position < 0:
        return None
    later = (action for action in actions if action.position > changed.position)
    return Change(changed.path, changed.position, any(action.sort in ("", "check") for action in later))


def outdated_checks(actions: Sequence[KeyAction], files: Sequence[FileChange]) -> dict[Call, Change]:
    """Checks that were run before the last change to a file, each but where a later run covers it."""
    change = last_change(actions, files)
    found: dict[Call, Change] = {}
    if change is None:
        return found
    later: list[str] = []
    for action in reversed(actions):
        if action.sort != "check":
            continue
        is_before = action.outcome != "unknown" and action.position < change.position
        if is_before and not any(covers(run, action.about) for run in later):
            found[call_of(action)] = change
        later.append(action.about)
    return found


NOTHING: Mapping[Call, Change] = MappingProxyType({})


def call_of(one: KeyAction | Attempt) -> Call:
    return one.position, one.tool, one.arguments


def action_line(action: KeyAction, texts: Texts, change: Change | None = None) -> str:
    """A call and what became of it: why it failed, the line of a check or a commit that says so, else its own words.

    change: the one that it, a check, was run before.
    """
    told, why = texts.outcomes[action.outcome], in_line(action.why)
    if action.outcome != "failed" and is_asking(action.tool):
        told = texts.asked
    elif action.outcome == "unknown" and action.sure and why:
        told = texts.told.format(text=why)
    elif why and action.outcome == "ok" and action.sort not in ("check", "change"):
        told = f"{told}: {texts.told.format(text=why)}"
    elif why:
        told = f"{told}: {why}"
    return f"{place(action.position)}{call_text(action)} -> {told}{note_of(change, texts)}"


def call_text(one: KeyAction | Attempt) -> str:
    """Tool and arguments; of a lone text among them not its name."""
    lone = _LONE_TEXT.match(one.arguments)
    given = lone[1] if lone is not None and _NEXT_FIELD.search(lone[1]) is None else one.arguments
    return in_line(f"{one.tool}({given})")


def path_written_by(action: KeyAction) -> str:
    """The file that a tool for files wrote; of a shell's call its command, which says more."""
    first = _FIRST_FIELD.match(action.arguments) if action.sort == "change" else None
    return first[1] if first is not None else ""


def action_lines(
    actions: Sequence[KeyAction], texts: Texts, before: Mapping[Call, Change], room: int, count: CountTokens
) -> list[str]:
    """The calls that fit, in their order, files that were only read one behind the other, and how many do not fit.

    First go those that failed, changed or checked something, last those that only read, and of these the newest.
    """
    reserved = count(texts.calls_left_out.format(calls=len(actions))) + 1
    order = sorted(range(len(actions)), key=lambda at: (_rank(actions[at]), -at))
    lines = {at: action_line(actions[at], texts, before.get(call_of(actions[at]))) for at in _told_alone(actions)}
    left, kept = room, list[int]()
    for at in order:
        left -= count(lines[at] if at in lines else f"{_read_file(actions[at], texts)}, ") + 1
        if at not in lines and (at == 0 or at - 1 in lines):
            left -= count(_reads_line(actions[at : at + 1], texts))
        if left < 0:
            break
        kept.append(at)
    found = _join_reads(actions, lines, kept, texts)
    if len(kept) == len(actions) and cost_of(found, count) <= room:
        return found
    while kept and cost_of(found, count) + reserved > room:
        kept.pop()
        found = _join_reads(actions, lines, kept, texts)
    return [*found, texts.calls_left_out.format(calls=len(actions) - len(kept))] if kept else []


def _told_alone(actions: Sequence[KeyAction]) -> Iterator[int]:
    return (at for at, action in enumerate(actions) if not action.is_plain_read)


def _join_reads(actions: Sequence[KeyAction], lines: Mapping[int, str], kept: Sequence[int], texts: Texts) -> list[str]:
    """The lines of what is kept, in its order: of reads with no other call between them one."""
    found: list[str] = []
    for is_alone, run in groupby(sorted(kept), key=lines.__contains__):
        if is_alone:
            found += [lines[at] for at in run]
        else:
            found.append(_reads_line([actions[at] for at in run], texts))
    return found


def _reads_line(reads: Sequence[KeyAction], texts: Texts) -> str:
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


def _rank(action: KeyAction) -> int:
    if action.outcome == "failed" or action.sort in ("change", "check"):
        return 0
    return 2 if action.sort == "read" else 1


def note_of(change: Change | None, texts: Texts) -> str:
    """What is said beside a check that was run before the last change; empty where there is none."""
    if change is None:
        return ""
    text = texts.unchecked if change.is_rerun else texts.not_rerun
    return text.format(position=change.position, path=in_line(change.path))


def without_place(line: str) -> str:
    return _PLACE.sub("", line)


def in_line(text: str) -> str:
    """Foreign text as part of one line of ours."""
    return escape(" ".join(text.split()))


def cost_of(lines: Sequence[str], count: CountTokens) -> int:
    return sum(count(line) + 1 for line in lines)
