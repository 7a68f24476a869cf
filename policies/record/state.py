"""Lines of a record about the work: calls, files, the plan, what was tried in vain, what still runs."""

from collections.abc import Mapping, Sequence

from policies.record.actions import FileChange
from policies.record.call_lines import NOTHING, Call, Change, call_of, call_text, cost_of, in_line, note_of
from policies.record.texts import Texts
from policies.transcript import CountTokens, escape, newest_within
from policies.work.attempts import Attempt
from policies.work.browsing import BrowserStep
from policies.work.plan_forms import PlanItem
from policies.work.running import StartedWork
from policies.work.todo import Plan

# Shares of the room that is left beside the record's frame, at most: what a plan is worth comes before all but rules.
_PLAN_SHARE = 0.45
_TRIED_SHARE = 0.12
_RUNNING_SHARE = 0.1
_BROWSED_SHARE = 0.3
_MOST_TRIED = 10
_SLACK = 6
_MARKS = {"open": "[ ]", "active": "[ ]", "done": "[x]", "dropped": "[-]"}


def file_line(file: FileChange, texts: Texts) -> str:
    """A file, what was done to it last, in which message, and the first line that changed."""
    change = texts.overwritten if file.whole else texts.changes[file.action].format(other=in_line(file.other))
    told = change if file.sure else texts.unsure.format(change=change)
    place = f" [{file.position}]" if file.position >= 0 else ""
    line = f": {in_line(file.line)}" if file.line else ""
    return f"- {in_line(file.path)} ({told}){place}{line}"


def state_blocks(
    texts: Texts,
    plan: Plan,
    attempts: Sequence[Attempt],
    running: Sequence[StartedWork],
    room: int,
    count: CountTokens,
    *,
    steps: Sequence[BrowserStep] = (),
    before: Mapping[Call, Change] = NOTHING,
) -> list[str]:
    """The blocks of which there is something, each within its share of the room. before: see `outdated`."""
    tried = [attempt_line(attempt, texts, before.get(call_of(attempt))) for attempt in attempts[-_MOST_TRIED:]]
    browsed = [_step_line(step, texts) for step in steps]
    left = [running_line(one, texts) for one in running]

    def within(title: str, share: float) -> int:
        return int(share * room) - count(f"## {title}") - _SLACK

    blocks = (
        (texts.plan, _plan_lines(plan, texts, within(texts.plan, _PLAN_SHARE), count)),
        (texts.tried, newest_within(tried, within(texts.tried, _TRIED_SHARE), count)[::-1]),
        (texts.running, newest_within(left, within(texts.running, _RUNNING_SHARE), count)),
        (texts.browsed, newest_within(browsed, within(texts.browsed, _BROWSED_SHARE), count)[::-1]),
    )
    return [line for title, lines in blocks if lines for line in ("", f"## {title}", *lines)]


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


def _plan_lines(plan: Plan, texts: Texts, room: int, count: CountTokens) -> list[str]:
    """The plan whole and in its order; without the room for that what is open first, and how much is left out."""
    told = _text_lines(plan, texts)
    listed = [*zip(plan.items, (_item_line(item, texts) for item in plan.items), strict=True)]
    if cost_of([*told, *(line for _, line in listed)], count) <= room:
        return [*told, *(line for _, line in listed)]
    room -= count(texts.plan_left_out.format(items=len(listed), open=len(listed))) + 1
    order = sorted(range(len(listed)), key=lambda at: listed[at][0].status not in ("open", "active"))
    kept: set[int] = set()
    for at in order:
        cost = count(listed[at][1]) + 1
        if cost > room:
            break
        room -= cost
        kept.add(at)
    missing = [item for at, (item, _) in enumerate(listed) if at not in kept]
    lines = [line for at, (_, line) in enumerate(listed) if at in kept]
    if missing:
        is_open = sum(item.status in ("open", "active") for item in missing)
        lines.append(texts.plan_left_out.format(items=len(missing), open=is_open))
    shown = _oldest_within(told, room, count)
    return [*shown, *lines] if kept or shown else []


def _oldest_within(lines: Sequence[str], room: int, count: CountTokens) -> list[str]:
    """The first lines that fit, and a mark where that is not all."""
    kept: list[str] = []
    for line in lines:
        room -= count(line) + 1
        if room < _SLACK:
            return [*kept, "…"] if kept else []
        kept.append(line)
    return kept


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
