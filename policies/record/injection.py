"""The text in place of the covered messages: the summary, and what code carries (docs/design.md, "The record")."""

from collections.abc import Sequence, Set

from policies.budget import SMALL_RECORD, Budget
from policies.ledger import ledger
from policies.ledger.entries import Entry, order_of
from policies.record.actions import FileChange, KeyAction
from policies.record.call_lines import (
    Call,
    action_line,
    action_lines,
    call_of,
    cost_of,
    outdated_checks,
    path_written_by,
    without_place,
)
from policies.record.names import Names, NamesOf, names_in
from policies.record.reports import Report, report_lines
from policies.record.state import attempt_line, file_line, running_line, state_blocks
from policies.record.texts import ALL_TEXTS, Texts
from policies.record.titles import is_carried
from policies.record.working_set import NameUse, name_lines
from policies.settings import LedgerSettings
from policies.transcript import CountTokens, escape, newest_within, shorten
from policies.work.attempts import Attempt
from policies.work.browsing import BrowserStep
from policies.work.running import StartedWork
from policies.work.todo import Plan

# Of names and code, a little under what is usual: what is a guess too small costs names, one too large the tail.
_CHARACTERS_OF_A_TOKEN = 3.0
# What stands over the working set, and its sources.
_HEADING = 40
# Joined lines may count for a few tokens more than their sum.
_SLACK = 10
# Characters below which a cut summary says nothing.
_LEAST_PROSE = 120
# What files and tool calls may have of the record however much the user said: so many newest lines of each, within
# this share.
_FLOOR_LINES = 5
_FLOOR_SHARE = 5
# Tokens of room from which it is said what the numbers in brackets are.
_EXPLAINING = 500
_NO_PLAN = Plan()
_SAID = tuple(f"## {texts.said}" for texts in ALL_TEXTS)
# Characters of what was started by which its call is known; a longer command is cut at different places.
_COMPARED = 100


def render(
    texts: Texts,
    summary: str,
    segments: Sequence[str],
    entries: Sequence[Entry],
    actions: Sequence[KeyAction],
    files: Sequence[FileChange],
    *,
    attempts: Sequence[Attempt] = (),
    running: Sequence[StartedWork] = (),
    plan: Plan = _NO_PLAN,
    steps: Sequence[BrowserStep] = (),
    reports: Sequence[Report] = (),
    forgotten: int = 0,
    budget: Budget,
    settings: LedgerSettings,
    count: CountTokens,
) -> str:
    """The injected text, within budget.record tokens: the blocks a model cannot be trusted with are filled first.

    Where there is little room, rules come before the model's prose, and facts before all but a sixth of it.
    forgotten: statements of the user that are not among the entries any more.
    """
    left = budget.record - count("\n".join([texts.opening, texts.closing, f"\n## {texts.said}\n"])) - _SLACK
    numbers = [texts.numbers] if left >= _EXPLAINING else []
    left -= cost_of(numbers, count)
    before = outdated_checks(actions, files)
    state = state_blocks(texts, plan, attempts, running, left, count, steps=steps, before=before)
    shown_lines = set(state)
    failed = {call_of(one) for one in attempts if attempt_line(one, texts, before.get(call_of(one))) in shown_lines}
    started = [one for one in running if running_line(one, texts) in shown_lines]
    is_planned = f"## {texts.plan}" in shown_lines
    actions = [action for action in actions if not _is_told(action, failed, started, is_planned=is_planned)]
    left -= cost_of(state, count)
    changed = [file_line(file, texts) for file in files]
    newest = [action_line(action, texts) for action in actions[-_FLOOR_LINES:]]
    left -= (floor := min(left // _FLOOR_SHARE, cost_of([*changed[-_FLOOR_LINES:], *newest], count)))
    share = left // 6 if budget.record <= SMALL_RECORD else left
    prose = min(count(summary), share)
    said: list[Entry] = []
    ledger_left = min(_ledger_budget(settings, budget), left if share < left else left - prose)
    rules = [entry for entry in entries if _is_rule(entry)]
    others = [entry for entry in entries if entry.kind == "fact"]
    unsaid = ledger.statements(entries) + forgotten
    if forgotten or _is_over([*rules, *others], ledger_left, count):
        pressed = cost_of([texts.unsaid.format(statements=unsaid)], count)
        left, ledger_left = left - pressed, ledger_left - pressed
    for entries_of_kind, reserved in ((rules, 0), (others, prose if share < left else 0)):
        fitted = ledger.fit(entries_of_kind, ledger_left - reserved, count)
        cost = cost_of([ledger.line(entry) for entry in fitted], count)
        said, left, ledger_left = [*said, *fitted], left - cost, ledger_left - cost
    told = _told_summary(summary, said, left, count)
    left -= count(told) + 2 - floor
    timeline = _block(texts.timeline, [f"- {_of_a_model(segment)}" for segment in segments], left // 4, count)
    left -= cost_of(timeline, count)
    changed = _block(texts.files, changed, max(left // 3, floor // 2), count)
    left -= cost_of(changed, count)
    shown_lines.update(changed)
    written = {
        (file.position, file.path)
        for file in files
        if file.sure and (file.whole or file.action == "created") and file_line(file, texts) in shown_lines
    }
    actions = [action for action in actions if (action.position, path_written_by(action)) not in written]
    reported = report_lines(reports, left // 4 - count(texts.reported) - 4, count)
    reported = ["", f"## {texts.reported}", *reported] if reported else []
    left -= cost_of(reported, count)
    room = max(left // 2, floor - floor // 2) - count(f"## {texts.actions}") - 2
    done = action_lines(actions, texts, before, room, count)
    done = ["", f"## {texts.actions}", *done] if done else []
    left -= cost_of(done, count)
    said += ledger.fit([e for e in entries if e.kind == "message"], min(left, ledger_left), count)
    lines = [escape(ledger.line(entry)) for entry in sorted(said, key=order_of)]
    unsaid -= ledger.statements(said)
    lines += [texts.unsaid.format(statements=unsaid)] if unsaid else []
    spoken = ["", f"## {texts.said}", *lines] if lines else []
    prose_lines = ["", told] if told else []
    return "\n".join(
        [texts.opening, *numbers, *prose_lines, *timeline, *spoken, *state, *reported, *done, *changed, texts.closing]
    )


def with_names(
    text: str,
    texts: Texts,
    uses: Sequence[NameUse],
    kept: Sequence[str],
    now: int,
    budget: Budget,
    count: CountTokens,
    *,
    most: int | None = None,
    names_of: NamesOf = names_in,
) -> str:
    """The injected text with the working set behind it, less what stands in it or in the `kept` messages.

    most: tokens that the working set may take where the rest leaves them; unset: what it has beside the rest.
    """
    room = (
        min(budget.names if most is None else most, budget.injected - count(text))
        - count(f"\n## {texts.names}\n- \n")
        - _SLACK
    )
    if room <= 0 or not uses:
        return text
    sent = Names((text, *kept), names_of)
    lines, names = name_lines(uses, room, now, sent.have, count, names_of)
    lines = [line for line in lines if not is_carried(line)]
    if names:
        lines.append(f"- {escape(' '.join(names))}")
    block = ["", f"## {texts.names}", *lines] if lines else []
    return "\n".join([text.removesuffix(f"\n{texts.closing}"), *block, texts.closing])


def with_files(text: str, block: Sequence[str], texts: Texts) -> str:
    """The injected text with files in front of what it says of the work."""
    if not block:
        return text
    return "\n".join([texts.opening, *block, "", text.removeprefix(texts.opening).lstrip("\n")])


def names_weight(text: str, uses: Sequence[NameUse], kept: Sequence[str], room: int, names_of: NamesOf) -> int:
    """Tokens that the working set takes of a room, about: names and their lines by their characters."""
    sent = Names((text, *kept), names_of)
    lines: set[str] = set()
    tokens = 0.0
    for use in uses:
        if not sent.have(use.name):
            tokens += len(use.name) / _CHARACTERS_OF_A_TOKEN if not use.line or use.line in lines else 0
            tokens += 0 if use.line in lines else len(use.line) / _CHARACTERS_OF_A_TOKEN
            lines.add(use.line)
        if tokens >= room:
            return room
    return min(room, int(tokens + _HEADING)) if tokens else 0


def _is_told(action: KeyAction, failed: Set[Call], started: Sequence[StartedWork], *, is_planned: bool) -> bool:
    """Whether another block tells all that is known of a call: why it failed, that it runs, or the plan it made."""
    if call_of(action) in failed:
        return True
    if action.sort == "plan":
        return is_planned and action.outcome != "failed"
    return action.outcome == "unknown" and any(
        one.position == action.position and one.tool == action.tool and one.what[:_COMPARED] in action.arguments
        for one in started
    )


def _is_rule(entry: Entry) -> bool:
    return entry.kind in ("task", "directive")


def _told_summary(summary: str, said: Sequence[Entry], room: int, count: CountTokens) -> str:
    """The summary without lines that stand in the ledger word for word, cut to the room that is left."""
    verbatim = {" ".join(entry.text.split()) for entry in said}
    lines = [line for line in summary.splitlines() if without_place(" ".join(line.split())) not in verbatim]
    text = _of_a_model("\n".join(lines).strip())
    while text and count(text) + 2 > room:
        text = shorten(text, len(text) * 3 // 4) if len(text) > _LEAST_PROSE else ""
    return text


def _of_a_model(text: str) -> str:
    """Prose without the heading of the user's words: what stands below that is read back as the user's."""
    text = escape(text)
    if not any(heading in text for heading in _SAID):
        return text
    return "\n".join(line for line in text.split("\n") if line.strip() not in _SAID)


def _block(title: str, lines: Sequence[str], room: int, count: CountTokens) -> list[str]:
    """A heading and the newest lines that fit under it; nothing if none does."""
    kept = newest_within(lines, room - count(f"## {title}") - 2, count)
    return ["", f"## {title}", *kept] if kept else []


def _is_over(entries: Sequence[Entry], room: int, count: CountTokens) -> bool:
    for entry in entries:
        room -= count(ledger.line(entry)) + 1
        if room < 0:
            return True
    return False


def _ledger_budget(settings: LedgerSettings, budget: Budget) -> int:
    if settings.budget_ratio is None:
        return settings.max_tokens
    return min(int(settings.budget_ratio * budget.movable), settings.max_tokens)
