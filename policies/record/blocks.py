"""The blocks of a record about the work: the plan, what was tried in vain, what runs, files, calls and reports."""

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import groupby
from typing import NamedTuple

from policies.conversation.transcript import CountTokens, escape
from policies.record.actions import FileChange, KeyAction, Work
from policies.record.allocate import Block, Line
from policies.record.call_lines import (
    NOTHING,
    Call,
    Change,
    action_line,
    call_of,
    call_text,
    covered_checks,
    in_line,
    note_of,
    outdated_checks,
    path_written_by,
    rank_of_call,
    reads_line,
)
from policies.record.left_out import LeftOut
from policies.record.reports import Report, report_line
from policies.record.texts import Texts
from policies.tool_calls.attempts import Attempt
from policies.tool_calls.browsing import BrowserStep
from policies.tool_calls.plan_forms import PlanItem
from policies.tool_calls.running import StartedWork
from policies.tool_calls.todo import Plan

_MOST_TRIED = 10
# Reads in one line.
_MOST_READS = 8
# Characters of what was started by which its call is known; a longer command is cut at different places.
_COMPARED = 100
_MARKS = {"open": "[ ]", "active": "[ ]", "done": "[x]", "dropped": "[-]"}
# Of a plan, what is shown: a text first, then the items.
_TEXT, _ITEM = 0, 1


class Room(NamedTuple):
    """Shares of a record's room: what a block has for certain, and at most as long as others need it."""

    floor: float
    share: float


ROOMS: Mapping[str, Room] = {
    "plan": Room(0.05, 0.14),
    "tried": Room(0.02, 0.05),
    "running": Room(0.01, 0.04),
    "browsed": Room(0.03, 0.10),
    "files": Room(0.04, 0.15),
    "calls": Room(0.06, 0.20),
    "timeline": Room(0.0, 0.06),
    "reported": Room(0.0, 0.03),
    "recent": Room(0.02, 0.08),
    "names": Room(0.15, 1.0),
}
"""Of every block but the user's words and the summary."""


def block(name: str, title: str, lines: Sequence[Line], room: int, count: CountTokens) -> Block:
    """Return a block with its place in `ROOMS`. room: tokens of the record."""
    return Block(title, lines, int(ROOMS[name].floor * room), ROOMS[name].share, heading=count(f"## {title}") + 2)


def newest_first(lines: Iterable[str]) -> list[Line]:
    """Return lines that come oldest first and are shown so, the newest of them being the most important."""
    return _as_shown(lines)[::-1]


def state_blocks(
    work: Work, texts: Texts, room: int, count: CountTokens, before: Mapping[Call, Change] = NOTHING
) -> list[Block]:
    """Return the blocks about the state of the work. before: see `outdated_checks`."""
    failures = [_failure_line(attempt, texts, before) for attempt in work.attempts]
    tried = [line._replace(place=(0, at)) for at, line in enumerate(reversed(failures[-_MOST_TRIED:]))]
    older = [line.left_out for line in failures[:-_MOST_TRIED] if line.left_out is not None]
    running = newest_first(running_line(one, texts) for one in work.running)
    browsed = _as_shown(reversed([_step_line(step, texts) for step in work.steps]))
    plan = block("plan", texts.plan, _plan_lines(work.plan, texts), room, count)
    return [
        plan._replace(note=lambda missing: _plan_note(work.plan, missing, texts)),
        block("tried", texts.tried, tried, room, count)._replace(left_out=older),
        block("running", texts.running, running, room, count),
        block("browsed", texts.browsed, browsed, room, count),
    ]


def work_blocks(work: Work, reports: Sequence[Report], texts: Texts, room: int, count: CountTokens) -> list[Block]:
    """Return the blocks about the work, the most important first. A call that another block shows is no line."""
    before = outdated_checks(work.actions, work.files)
    files = block("files", texts.files, newest_first(file_line(file, texts) for file in work.files), room, count)
    calls = block("calls", texts.actions, _call_lines(_calls_alone(work), texts, before), room, count)
    return [
        *state_blocks(work, texts, room, count, before),
        files._replace(note=lambda missing: texts.files_left_out.format(files=len(missing))),
        calls._replace(note=lambda missing: texts.calls_left_out.format(calls=sum(line.items for line in missing))),
        block("reported", texts.reported, newest_first(map(report_line, reports)), room, count),
    ]


def _as_shown(lines: Iterable[str]) -> list[Line]:
    return [Line(text, (0, at)) for at, text in enumerate(lines)]


def _calls_alone(work: Work) -> list[KeyAction]:
    """Return the calls of which no other block tells all: why it failed, that it runs, the plan or file it wrote."""
    failed = {call_of(one) for one in work.attempts[-_MOST_TRIED:]}
    is_planned = bool(work.plan.items or work.plan.text)
    written = {(file.position, file.path) for file in work.files}
    return [
        action
        for action in work.actions
        if not _is_told(action, failed, work.running, is_planned=is_planned)
        and (action.position, path_written_by(action)) not in written
    ]


def _is_told(action: KeyAction, failed: Set[Call], started: Sequence[StartedWork], *, is_planned: bool) -> bool:
    if call_of(action) in failed:
        return True
    if action.sort == "plan":
        return is_planned and action.outcome != "failed"
    return action.outcome == "unknown" and any(
        one.position == action.position and one.tool == action.tool and one.what[:_COMPARED] in action.arguments
        for one in started
    )


def _call_lines(actions: Sequence[KeyAction], texts: Texts, before: Mapping[Call, Change]) -> list[Line]:
    """Return lines of calls, the most important first, see `rank_of_call`.

    Of these the newest come first. Reads of files with no other call between them are one line.
    """
    ranked: list[tuple[int, Line]] = []
    covered = covered_checks(actions)
    for is_read, run in groupby(actions, lambda action: action.is_plain_read):
        together = [*run]
        for start in range(0, len(together), _MOST_READS if is_read else 1):
            some = together[start : start + (_MOST_READS if is_read else 1)]
            text = reads_line(some, texts) if is_read else action_line(some[0], texts, before.get(call_of(some[0])))
            ranked.append((rank_of_call(some[0], covered), Line(text, (0, len(ranked)), len(some))))
    return [line for _, line in sorted(ranked, key=lambda each: (each[0], -each[1].place[1]))]


def _failure_line(attempt: Attempt, texts: Texts, before: Mapping[Call, Change]) -> Line:
    text = attempt_line(attempt, texts, before.get(call_of(attempt)))
    return Line(text, left_out=LeftOut("failures", attempt.position, text.removeprefix(f"- [{attempt.position}] ")))


def _plan_lines(plan: Plan, texts: Texts) -> list[Line]:
    """Return the lines of a plan: what is open first, then what is done, then the plan in words."""
    items = [
        Line(_item_line(item, texts), (_ITEM, at), left_out=LeftOut("plan", plan.position, in_line(item.text), at))
        for at, item in enumerate(plan.items)
    ]
    words = [
        Line(text, (_TEXT, at), left_out=LeftOut("plan", plan.position, text.removeprefix("> "), at) if at else None)
        for at, text in enumerate(_text_lines(plan, texts))
    ]
    return [*sorted(items, key=lambda line: not _is_open(plan.items[line.place[1]])), *words]


def _plan_note(plan: Plan, missing: Sequence[Line], texts: Texts) -> str:
    items = [plan.items[line.place[1]] for line in missing if line.place[0] == _ITEM]
    return texts.plan_left_out.format(items=len(items), open=sum(map(_is_open, items))) if items else "…"


def _is_open(item: PlanItem) -> bool:
    return item.status in ("open", "active")


def file_line(file: FileChange, texts: Texts) -> str:
    """Return the line of a file: what was done to it last, in which messages, and the first line changed last."""
    change = texts.overwritten if file.whole else texts.changes[file.action].format(other=in_line(file.other))
    told = change if file.sure else texts.unsure.format(change=change)
    if file.says:
        told = f"{told}; {texts.says.format(text=texts.told.format(text=in_line(file.says)))}"
    place = f" [{', '.join(map(str, (*file.earlier, file.position)))}]" if file.position >= 0 else ""
    line = f": {in_line(file.line)}" if file.line else ""
    return f"- {in_line(file.path)} ({told}){place}{line}"


def attempt_line(attempt: Attempt, texts: Texts, change: Change | None = None) -> str:
    """What was tried in vain, how often and why. change: the one that it, a check, was run before."""
    why = f": {in_line(attempt.why)}" if attempt.why else ""
    times = f" ({texts.times.format(times=attempt.times)})" if attempt.times > 1 else ""
    return f"- [{attempt.position}] {call_text(attempt)}{times}{why}{note_of(change, texts)}"


def running_line(one: StartedWork, texts: Texts) -> str:
    """What was started, and by which names it may be ended or asked for."""
    names = f" ({', '.join(map(in_line, one.ids))})" if one.ids else ""
    label = f"{texts.agent}: " if one.is_agent else ""
    return f"- [{one.position}] {label}{in_line(f'{one.tool}: {one.what}')}{names}"


def _step_line(step: BrowserStep, texts: Texts) -> str:
    """A step in a browser: the page, what was typed, what the agent noted and wanted next."""
    page = " ".join(filter(None, (step.title, f"<{step.url}>" if step.url else "")))
    typed = ", ".join(f'"{value}"' for value in step.typed)
    told = (
        page,
        f"{texts.typed}: {typed}" if typed else "",
        step.memory,
        f"{texts.next_goal}: {step.goal}" if step.goal else "",
    )
    return f"- [{step.position}] {in_line('; '.join(filter(None, told)))}"


def _text_lines(plan: Plan, texts: Texts) -> list[str]:
    """A plan in words, as lines of a quotation: none of them is a heading of the record's."""
    if not plan.text:
        return []
    title = texts.plan_stale if plan.stale else texts.plan_text
    lines = [f"> {escape(line.rstrip())}" for line in plan.text.splitlines() if line.strip()]
    return [title.format(source=in_line(plan.source)), *lines]


def _item_line(item: PlanItem, texts: Texts) -> str:
    state = {"active": f" ({texts.active})", "dropped": f" ({texts.dropped})"}.get(item.status, "")
    return f"- {_MARKS[item.status]} {in_line(item.text)}{state}"
