"""The blocks of a record about the work: plan, failures, running work, files, calls and reports."""

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
# Maximum reads in one line.
_MOST_READS = 8
# Started work is matched with its call by this many characters. Longer commands are shortened at different places.
_COMPARED = 100
_MARKS = {"open": "[ ]", "active": "[ ]", "done": "[x]", "dropped": "[-]"}
# The places of a plan's lines: the text first, then the items.
_TEXT, _ITEM = 0, 1


class Room(NamedTuple):
    """Shares of a record's room.

    floor: the share reserved for a block.
    share: its maximum while other blocks need room.
    """

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
"""The shares of every block except the user's words and the summary."""


def block(name: str, title: str, lines: Sequence[Line], room: int, count: CountTokens) -> Block:
    """Return a block with its shares from `ROOMS`. room: tokens of the record."""
    return Block(title, lines, int(ROOMS[name].floor * room), ROOMS[name].share, heading=count(f"## {title}") + 2)


def newest_first(lines: Iterable[str]) -> list[Line]:
    """Return lines for texts in chronological order. The newest is the most important."""
    return _as_shown(lines)[::-1]


def state_blocks(
    work: Work, texts: Texts, room: int, count: CountTokens, before: Mapping[Call, Change] = NOTHING
) -> list[Block]:
    """Return the blocks about the state of the work. before: see `outdated_checks`."""
    failures = [_failure_line(attempt, texts, before) for attempt in work.attempts]
    tried = [line._replace(place=(0, at)) for at, line in enumerate(reversed(failures[-_MOST_TRIED:]))]
    older = [line.left_out for line in failures[:-_MOST_TRIED] if line.left_out is not None]
    running = newest_first(running_line(started, texts) for started in work.running)
    browsed = _as_shown(reversed([_step_line(step, texts) for step in work.steps]))
    plan = block("plan", texts.plan, _plan_lines(work.plan, texts), room, count)
    return [
        plan._replace(note=lambda missing: _plan_note(work.plan, missing, texts)),
        block("tried", texts.tried, tried, room, count)._replace(left_out=older),
        block("running", texts.running, running, room, count),
        block("browsed", texts.browsed, browsed, room, count),
    ]


def work_blocks(work: Work, reports: Sequence[Report], texts: Texts, room: int, count: CountTokens) -> list[Block]:
    """Return the blocks about the work, the most important first. Omit calls that another block shows."""
    before = outdated_checks(work.actions, work.files)
    files = block("files", texts.files, newest_first(file_line(file, texts) for file in work.files), room, count)
    calls = block("calls", texts.actions, _call_lines(_calls_not_shown(work), texts, before), room, count)
    return [
        *state_blocks(work, texts, room, count, before),
        files._replace(note=lambda missing: texts.files_left_out.format(files=len(missing))),
        calls._replace(note=lambda missing: texts.calls_left_out.format(calls=sum(line.items for line in missing))),
        block("reported", texts.reported, newest_first(map(report_line, reports)), room, count),
    ]


def _as_shown(lines: Iterable[str]) -> list[Line]:
    return [Line(text, (0, at)) for at, text in enumerate(lines)]


def _calls_not_shown(work: Work) -> list[KeyAction]:
    """Return the calls that no other block shows in full: failures, running work, the plan or a written file."""
    failed = {call_of(attempt) for attempt in work.attempts[-_MOST_TRIED:]}
    is_planned = bool(work.plan.items or work.plan.text)
    written = {(file.position, file.path) for file in work.files}
    return [
        action
        for action in work.actions
        if not _is_shown_elsewhere(action, failed, work.running, is_planned=is_planned)
        and (action.position, path_written_by(action)) not in written
    ]


def _is_shown_elsewhere(
    action: KeyAction, failed: Set[Call], running: Sequence[StartedWork], *, is_planned: bool
) -> bool:
    if call_of(action) in failed:
        return True
    if action.sort == "plan":
        return is_planned and action.outcome != "failed"
    return action.outcome == "unknown" and any(
        started.position == action.position
        and started.tool == action.tool
        and started.what[:_COMPARED] in action.arguments
        for started in running
    )


def _call_lines(actions: Sequence[KeyAction], texts: Texts, before: Mapping[Call, Change]) -> list[Line]:
    """Return the lines of calls, the most important first (`rank_of_call`), then the newest first.

    Consecutive reads of files share a line.
    """
    ranked: list[tuple[int, Line]] = []
    covered = covered_checks(actions)
    for is_read, run in groupby(actions, lambda action: action.is_plain_read):
        group = [*run]
        for start in range(0, len(group), _MOST_READS if is_read else 1):
            batch = group[start : start + (_MOST_READS if is_read else 1)]
            text = reads_line(batch, texts) if is_read else action_line(batch[0], texts, before.get(call_of(batch[0])))
            ranked.append((rank_of_call(batch[0], covered), Line(text, (0, len(ranked)), len(batch))))
    return [line for _, line in sorted(ranked, key=lambda each: (each[0], -each[1].place[1]))]


def _failure_line(attempt: Attempt, texts: Texts, before: Mapping[Call, Change]) -> Line:
    text = attempt_line(attempt, texts, before.get(call_of(attempt)))
    return Line(text, left_out=LeftOut("failures", attempt.position, text.removeprefix(f"- [{attempt.position}] ")))


def _plan_lines(plan: Plan, texts: Texts) -> list[Line]:
    """Return the lines of a plan: open items first, then done items, then its text."""
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
    """Return the line of a file: its last change, the positions of its messages, and the first line changed last."""
    change = texts.overwritten if file.whole else texts.changes[file.action].format(other=in_line(file.other))
    details = change if file.sure else texts.unsure.format(change=change)
    if file.says:
        details = f"{details}; {texts.says.format(text=texts.told.format(text=in_line(file.says)))}"
    positions = f" [{', '.join(map(str, (*file.earlier, file.position)))}]" if file.position >= 0 else ""
    line = f": {in_line(file.line)}" if file.line else ""
    return f"- {in_line(file.path)} ({details}){positions}{line}"


def attempt_line(attempt: Attempt, texts: Texts, change: Change | None = None) -> str:
    """Return the line of a failed attempt: how often it was made, and why it failed.

    change: a later change, if the attempt is a check that was run before it.
    """
    why = f": {in_line(attempt.why)}" if attempt.why else ""
    times = f" ({texts.times.format(times=attempt.times)})" if attempt.times > 1 else ""
    return f"- [{attempt.position}] {call_text(attempt)}{times}{why}{note_of(change, texts)}"


def running_line(started: StartedWork, texts: Texts) -> str:
    """Return the line of started work, with the ids by which a tool can stop or query it."""
    names = f" ({', '.join(map(in_line, started.ids))})" if started.ids else ""
    label = f"{texts.agent}: " if started.is_agent else ""
    return f"- [{started.position}] {label}{in_line(f'{started.tool}: {started.what}')}{names}"


def _step_line(step: BrowserStep, texts: Texts) -> str:
    """Return the line of a browser step: the page, typed text, the agent's note and its next goal."""
    page = " ".join(filter(None, (step.title, f"<{step.url}>" if step.url else "")))
    typed = ", ".join(f'"{value}"' for value in step.typed)
    facts = (
        page,
        f"{texts.typed}: {typed}" if typed else "",
        step.memory,
        f"{texts.next_goal}: {step.goal}" if step.goal else "",
    )
    return f"- [{step.position}] {in_line('; '.join(filter(None, facts)))}"


def _text_lines(plan: Plan, texts: Texts) -> list[str]:
    """Return the text of a plan as quoted lines, so that none is taken for a heading of the record."""
    if not plan.text:
        return []
    title = texts.plan_stale if plan.stale else texts.plan_text
    lines = [f"> {escape(line.rstrip())}" for line in plan.text.splitlines() if line.strip()]
    return [title.format(source=in_line(plan.source)), *lines]


def _item_line(item: PlanItem, texts: Texts) -> str:
    """Return the line of an item of a plan."""
    state = {"active": f" ({texts.active})", "dropped": f" ({texts.dropped})"}.get(item.status, "")
    return f"- {_MARKS[item.status]} {in_line(item.text)}{state}"
