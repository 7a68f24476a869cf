"""Rendering of the text that replaces the covered messages (docs/design.md, "The record")."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from policies.conversation.transcript import CountTokens, escape
from policies.decision.budget import Budget
from policies.numbers import SMALL_RECORD
from policies.record.actions import Work
from policies.record.allocate import Block, Line, Shown, allocate
from policies.record.blocks import ROOMS, block, newest_first, work_blocks
from policies.record.call_lines import without_place
from policies.record.left_out import LeftOut, list_unfitted
from policies.record.names import Names, NamesOf, names_in
from policies.record.reports import Report
from policies.record.texts import ALL_TEXTS, Texts
from policies.record.titles import is_carried
from policies.record.user_words import word_blocks
from policies.record.working_set import NameUse, name_lines
from policies.settings import LedgerSettings
from policies.statements import ledger
from policies.statements.entries import Entry

# For names and code, a little below the usual. Too small a value costs names, too large a value costs the tail.
_CHARACTERS_OF_A_TOKEN = 3.0
# Tokens for the heading of the working set and its sources.
_HEADING = 40
# Joined lines may have a few tokens more than their sum.
_SLACK = 12
# The share of a small record for the summary. In a larger record the summary has all the room it needs.
_SMALL_SUMMARY_SHARE = 0.16
# Minimum room in tokens for the explanation of the numbers in brackets.
_EXPLAINING = 500
_NO_WORK = Work()
_SAID = tuple(f"## {texts.said}" for texts in ALL_TEXTS)


class Contents(NamedTuple):
    """The possible contents of a record.

    timeline:  texts of the newest segments, oldest first.
    entries:   the valid statements of the user.
    request:   position of the start of the newest request; None if unknown.
    forgotten: number of the user's statements that are no longer among the entries.
    names:     tokens that the working set needs.
    """

    summary: str
    timeline: Sequence[str]
    entries: Sequence[Entry]
    work: Work = _NO_WORK
    reports: Sequence[Report] = ()
    request: int | None = None
    forgotten: int = 0
    names: int = 0


class Rendered(NamedTuple):
    """The injected text, and what it leaves out."""

    text: str
    left_out: Sequence[LeftOut]


def render(contents: Contents, texts: Texts, budget: Budget, settings: LedgerSettings, count: CountTokens) -> Rendered:
    """Return the injected text without the working set, within `budget.injected` tokens minus the floor of that set.

    The user's words come first, then the state of the work and the summary, then the rest of the user's words. The
    other blocks and the working set share the remaining room.
    """
    room = budget.injected
    entries = ledger.fit(contents.entries, _most_words(settings, budget), count)
    total = ledger.statements(contents.entries) + contents.forgotten
    left = room - count("\n".join([texts.opening, texts.closing, ""])) - _SLACK
    numbers = [texts.numbers] if left >= _EXPLAINING else []
    left -= count(texts.numbers) + 1 if numbers else 0
    left -= count(f"\n## {texts.said}\n{texts.unsaid.format(statements=total)}") + 2 if total else 0
    words = word_blocks(entries, contents.request, left, texts.said, count)
    summary, recent = _summary_blocks(contents, texts, budget, count)
    timeline = newest_first(f"- {_model_prose(segment)}" for segment in contents.timeline)
    names = Block(texts.names, tokens=min(contents.names, room), floor=int(ROOMS["names"].floor * room))
    blocks = [
        words.request,
        words.rules,
        summary,
        words.stated,
        words.messages,
        *work_blocks(contents.work, contents.reports, texts, room, count),
        block("timeline", texts.timeline, timeline, room, count),
        recent,
        words.rest._replace(left_out=list_unfitted(contents.entries, entries, ledger.CUT_OFF)),
        names,
    ]
    parts = allocate(blocks, left, count)
    left_out = [each for part in parts for each in part.left_out]
    shown = _by_title(blocks, parts)
    unsaid = total - sum(line.items for line in shown[texts.said].lines)
    shown[texts.said] = shown[texts.said]._replace(note=texts.unsaid.format(statements=unsaid) if unsaid > 0 else "")
    prose = _texts_of(shown[""].lines)
    shown[texts.claims] = shown[texts.recent]
    order = (
        *(texts.timeline, texts.said, texts.plan, texts.tried, texts.running, texts.browsed),
        *(texts.reported, texts.actions, texts.files, texts.claims),
    )
    body = [line for title in order for line in _lines_under(title, shown[title])]
    text = "\n".join([texts.opening, *numbers, *(["", *prose] if prose else []), *body, texts.closing])
    return Rendered(text, left_out)


def _most_words(settings: LedgerSettings, budget: Budget) -> int:
    if settings.budget_ratio is None:
        return settings.max_tokens
    return min(int(settings.budget_ratio * budget.movable), settings.max_tokens)


def _by_title(blocks: Sequence[Block], shown: Sequence[Shown]) -> defaultdict[str, Shown]:
    """Return the shown lines under each title, in their places."""
    shown_by_title: defaultdict[str, Shown] = defaultdict(Shown)
    for source, part in zip(blocks, shown, strict=True):
        earlier = shown_by_title[source.title]
        lines = sorted([*earlier.lines, *part.lines], key=lambda line: line.place)
        shown_by_title[source.title] = Shown(lines, earlier.note or part.note)
    return shown_by_title


def _texts_of(lines: Iterable[Line]) -> list[str]:
    return [line.text for line in lines]


def _lines_under(title: str, shown: Shown) -> list[str]:
    lines = _texts_of(shown.lines) + ([shown.note] if shown.note else [])
    return ["", f"## {title}", *lines] if lines else []


def _summary_blocks(contents: Contents, texts: Texts, budget: Budget, count: CountTokens) -> tuple[Block, Block]:
    """Return the blocks of the summary and of the assistant's latest texts.

    The summary omits lines that are in the ledger word for word. Its beginning and its end come first.
    """
    verbatim = {" ".join(entry.text.split()) for entry in contents.entries}
    lines = [line for line in contents.summary.splitlines() if without_place(" ".join(line.split())) not in verbatim]
    lines = _model_prose("\n".join(lines).strip()).splitlines()
    at = lines.index(texts.recent) if texts.recent in lines else len(lines)
    recent = block("recent", texts.recent, newest_first(lines[at + 1 :]), budget.injected, count)
    while at and not lines[at - 1].strip():
        at -= 1
    lines = lines[:at]
    last_index = len(lines) - 1
    placed = [Line(text, (0, at)) for at, text in enumerate(lines)]
    placed.sort(key=lambda line: min(line.place[1] / 0.6, (last_index - line.place[1]) / 0.4))
    if budget.record <= SMALL_RECORD:
        return Block("", placed, share=_SMALL_SUMMARY_SHARE, heading=2), recent
    return Block("", placed, count("\n".join(lines)) + len(lines) + 2, heading=2), recent


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
    """Return the injected text with the working set at its end. Omit names that it or the `kept` messages contain.

    most: maximum tokens of the working set; None for its own budget.
    """
    room = (
        min(budget.names if most is None else most, budget.injected - count(text))
        - count(f"\n## {texts.names}\n- \n")
        - _SLACK
    )
    if room <= 0 or not uses:
        return text
    sent = Names((text, *kept), names_of)
    lines, names = name_lines(uses, room, now, sent.contains, count, names_of)
    lines = [line for line in lines if not is_carried(line)]
    if names:
        lines.append(f"- {escape(' '.join(names))}")
    block = ["", f"## {texts.names}", *lines] if lines else []
    return "\n".join([text.removesuffix(f"\n{texts.closing}"), *block, texts.closing])


def with_files(text: str, block: Sequence[str], texts: Texts) -> str:
    """Return the injected text with the files at its beginning."""
    if not block:
        return text
    return "\n".join([texts.opening, *block, "", text.removeprefix(texts.opening).lstrip("\n")])


def names_weight(uses: Sequence[NameUse], kept: Sequence[str], room: int, names_of: NamesOf) -> int:
    """Return an estimate of the tokens of the working set within a room, from the characters of names and lines."""
    sent = Names(kept, names_of)
    lines: set[str] = set()
    tokens = 0.0
    for use in uses:
        if not sent.contains(use.name):
            line = use.line if use.source else ""
            tokens += len(use.name) / _CHARACTERS_OF_A_TOKEN if not line or line in lines else 0
            tokens += 0 if line in lines else len(line) / _CHARACTERS_OF_A_TOKEN
            lines.add(line)
        if tokens >= room:
            return room
    return min(room, int(tokens + _HEADING)) if tokens else 0


def _model_prose(text: str) -> str:
    """Return a model's prose without the heading of the user's words. Text below it would be parsed as the user's."""
    text = escape(text)
    if not any(heading in text for heading in _SAID):
        return text
    return "\n".join(line for line in text.split("\n") if line.strip() not in _SAID)
