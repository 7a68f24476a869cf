"""Lines of a record about calls: what became of each, and which checks were run before the last change to a file."""

from collections.abc import Container, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from policies.record.actions import FileChange, KeyAction
from policies.record.texts import Texts
from policies.transcript import CountTokens, escape
from policies.work.attempts import Attempt
from policies.work.sorts import covers

Call = tuple[int, str, str]
"""Position, tool and arguments of a call."""


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


def outdated(actions: Sequence[KeyAction], files: Sequence[FileChange]) -> dict[Call, Change]:
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


def action_line(action: KeyAction, texts: Texts, change: Change | None = None, *, is_told: bool = False) -> str:
    """A call and what became of it: of a failed one why, of one that is not known its own words.

    change: the one that it, a check, was run before. is_told: both, and why it failed, are told elsewhere.
    """
    told, why = texts.outcomes[action.outcome], in_line(action.why)
    call = action.arguments
    if action.outcome == "unknown" and action.sure and why:
        told = texts.told.format(text=why)
    elif why and not is_told:
        told = f"{told}: {why}"
    if action.times > 1:
        call = action.about
        told += f" ({texts.reads.format(times=action.times, position=action.position)})"
    return f"- {in_line(f'{action.tool}({call})')} -> {told}{'' if is_told else note_of(change, texts)}"


def action_lines(
    actions: Sequence[KeyAction],
    texts: Texts,
    before: Mapping[Call, Change],
    told: Container[Call],
    room: int,
    count: CountTokens,
) -> list[str]:
    """The calls that fit, in their order, and how many do not.

    First go those that failed, changed or checked something, last those that only read, and of these the newest.
    told: those of which it is told elsewhere why they failed.
    """
    most = room
    reserved = count(texts.calls_left_out.format(calls=len(actions))) + 1
    kept: dict[int, str] = {}
    for at in sorted(range(len(actions)), key=lambda at: (_rank(actions[at]), -at)):
        call = call_of(actions[at])
        line = action_line(actions[at], texts, before.get(call), is_told=call in told)
        room -= count(line) + 1
        if room < 0:
            break
        kept[at] = line
    if len(kept) == len(actions):
        return [kept[at] for at in sorted(kept)]
    while kept and cost_of([*kept.values()], count) + reserved > most:
        kept.popitem()
    left_out = texts.calls_left_out.format(calls=len(actions) - len(kept))
    return [*(kept[at] for at in sorted(kept)), left_out] if kept else []


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


def in_line(text: str) -> str:
    """Foreign text as part of one line of ours."""
    return escape(" ".join(text.split()))


def cost_of(lines: Sequence[str], count: CountTokens) -> int:
    return sum(count(line) + 1 for line in lines)
