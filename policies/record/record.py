"""The record of a compaction: what is stored once and injected ever after (docs/design.md, "The record")."""

import re
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

import msgspec

from policies.conversation.transcript import CountTokens, Utterance, escape, shorten
from policies.decision.budget import Budget
from policies.decision.cut import Cut
from policies.decision.plan import Trigger
from policies.price import ReadSoFar
from policies.record import working_set
from policies.record.actions import FileChange, KeyAction, Work, work_behind
from policies.record.allocate import cost_of
from policies.record.bisect import BisectOutcome
from policies.record.briefs import briefs_in
from policies.record.call_lines import place, without_place
from policies.record.left_out import LeftOut, counts_of, gather_left_out, list_left_out, list_unfitted
from policies.record.names import NamesOf, names_in
from policies.record.pins import Pin, SpanPins, pins_block
from policies.record.render import Contents, names_weight, render, with_files, with_names
from policies.record.reports import Report, reports_in
from policies.record.rules import FileReadBy, RuleFile, file_read_by, files_block, rule_files
from policies.record.texts import Language, Texts, language_of, texts_for
from policies.record.working_set import NameUse
from policies.settings import LedgerSettings
from policies.statements import ledger
from policies.statements.entries import Entry, folded, order_of
from policies.statements.sentences import prose_of
from policies.tool_calls.attempts import Attempt
from policies.tool_calls.browsing import BrowserStep
from policies.tool_calls.calls import Judge, judge_call
from policies.tool_calls.running import StartedWork
from policies.tool_calls.todo import Plan

VERSION = 2
SEGMENT_CHARACTERS = 500
_SEGMENTS_STORED = 20
# The part of the usable input that files of rules may take.
_RULES_SHARE = 4
# Tokens of what a person pointed to.
_BRIEFS = 1_000
# What a message costs beside its text, as we count (proxy.dialects.chat.messages).
MESSAGE_TOKENS = 4
# Characters of what an assistant said in a summary without a model, and of either end of it that are read for them.
_LINE = 300
_READ = 2_000
# A block of code in what an assistant said: the files tell of it.
_CODE = re.compile(r"```[^`]{0,20000}```")
_CODE_READ = 40_000
_CUT_OUT = " …"
# Of what an assistant said beside its last words before a person's, so many newest are told.
_NEWEST_SAID = 5
_MOST_SAID = 200
# Of a message, so many characters tell its language.
_LANGUAGE_READ = 2_000

Algorithm = Literal["single", "bisect_v1", "deterministic"]


class RoundCounts(msgspec.Struct, frozen=True):
    total: int
    summarized: int
    kept: int


class TokenCounts(msgspec.Struct, frozen=True):
    """Of the whole request before and after, and of the injected text."""

    before: int
    after: int
    summary: int


class Segment(msgspec.Struct, frozen=True):
    """One entry of the timeline: what happened in one span, and what was found out in it (R2)."""

    text: str
    insights: tuple[str, ...] = ()


class Spent(msgspec.Struct, frozen=True):
    """What a summary cost: tokens as billed, or as estimated where that was not said; `usd` where a price is known."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float | None = None


class Cause(msgspec.Struct, frozen=True):
    """Why a record was made, and all that this took, answers of no use included.

    used, threshold: shares of the room: what the request took, and from which on that was too much; None for the
    latter if the record was due for something else. reason: why no model wrote it. refused: why answers were of no use.
    ms: of the whole compaction. upstream, model: of the summarizer that was to be asked. fixed: tokens of tools and
    system prompt. read_so_far: what had been read, if it was made because it pays.
    """

    used: float
    threshold: float | None
    reason: str | None
    refused: tuple[str, ...]
    ms: float
    upstream: str | None
    model: str | None
    calls: int
    spent: Spent
    fixed: int
    read_so_far: ReadSoFar | None = None


class Making(msgspec.Struct, frozen=True):
    """How the summary came about; zero and empty for a deterministic record. cause: None if the record is of a version
    that did not keep it."""

    algorithm: Algorithm
    trigger: Trigger
    level: str
    split_strategy: str
    boundary_adjustment: str
    boundary_adjustment_delta: int
    fallback_reason: str | None
    rounds: RoundCounts
    tokens: TokenCounts
    chunk_count: int = 0
    max_depth: int = 0
    truncated: bool = False
    calls: int = 0
    model: str | None = None
    latency_ms: int = 0
    spent: Spent = Spent()
    rebuilt: bool = False
    cause: Cause | None = None


class Record(msgspec.Struct, frozen=True):
    """Immutable. `text` is exactly what is injected; the rest is what the next generation is made from.

    digest: of the covered prefix, hex; root: of the lineage's first record. covered: messages it stands for.
    generation: 1 for the first, and again after the summary was made anew from the whole history.
    title: for people (R3, BR-10). first_digest, last_digest: of the newly covered messages.
    uses: the working set, packed; what is not shown of it now may be the next time.
    started, compacted: when the conversation was first seen, and when this was made (R3's time.compacted), in seconds.
    is_masked: whether no secret is in it, as far as they are recognised.
    seen: files that were there when they were read or listed. attempts, running: what was tried in vain, and what was
    started and not ended. plan: its newest state in what is covered.
    reports: what hooks, tasks and other agents said. rules: files of rules in no message that is sent.
    forgotten: how many statements of the user are not among the entries any more. briefs: what a person pointed to.
    steps: of an agent in a browser. pins: texts that stay, of all that is covered; without text those that did not fit.
    left_out: what of all this, and of the statements, the prompt does not show.
    """

    version: int
    digest: str
    root: str
    parent: str | None
    covered: int
    generation: int
    language: Language
    text: str
    text_tokens: int
    summary: str
    segments: tuple[Segment, ...]
    entries: tuple[Entry, ...]
    actions: tuple[KeyAction, ...]
    files: tuple[FileChange, ...]
    making: Making
    first_digest: str
    last_digest: str
    title: str
    started: float
    compacted: float
    uses: bytes = b""
    is_masked: bool = False
    seen: tuple[str, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    running: tuple[StartedWork, ...] = ()
    plan: Plan = Plan()
    reports: tuple[Report, ...] = ()
    rules: tuple[RuleFile, ...] = ()
    forgotten: int = 0
    briefs: tuple[RuleFile, ...] = ()
    steps: tuple[BrowserStep, ...] = ()
    pins: tuple[Pin, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    @property
    def work(self) -> Work:
        """What it carries of the calls that it covers."""
        return Work(self.actions, self.files, self.seen, self.attempts, self.running, self.plan, self.steps)

    @property
    def left_out_counts(self) -> dict[str, int]:
        """How many things the prompt leaves out, by kind."""
        return counts_of(self.left_out)

    @property
    def compression_ratio(self) -> float:
        """Share of the tokens that are left (R1)."""
        return round(self.making.tokens.after / max(1, self.making.tokens.before), 3)


class WrittenSummary(msgspec.Struct, frozen=True):
    """A validated summary: the running text, this span's segment, and how the model came to them.

    named: the answer in which the model may have named statements that a later one replaces.
    """

    summary: str
    segment: Segment
    outcome: BisectOutcome | None = None
    model: str | None = None
    latency_ms: int = 0
    spent: Spent = Spent()
    named: str = ""
    rebuilt: bool = False


class Span(msgspec.Struct, frozen=True):
    """The newly covered messages and where they are.

    first_user and repeated are positions in the body: of the first message in which a person speaks, and of those that
    are sent next to the record; so `ruled`, with files of rules, of `rules_sent` tokens. Digests are hex.
    request: the position from which on the newest request is, None if it is not among what is covered.
    pins: texts of all that is covered that stay word for word.
    """

    utterances: tuple[Utterance, ...]
    cut: Cut
    digest: str
    first_digest: str
    last_digest: str
    first_user: int | None
    repeated: Collection[int] = ()
    ruled: Collection[int] = ()
    rules_sent: int = 0
    request: int | None = None
    pins: SpanPins = SpanPins()


class Statements(NamedTuple):
    """The user's statements: those that hold, all of them, and those in neither, for want of room."""

    entries: Sequence[Entry]
    said: Sequence[Entry]
    forgotten: Sequence[Entry] = ()


@dataclass(frozen=True, kw_only=True)
class RecordContext:
    """What a record is made of, and the room that it has.

    segments:   how many of the newest are shown. kept: the texts that are sent next to the record.
    most_names: tokens that the working set may take of what the rest leaves; None for its own budget.
    names, judge, read_by: read the names of a text, the outcome of a call, and the file that it reads.
    """

    span: Span
    parent: Record | None
    statements: Statements
    budget: Budget
    settings: LedgerSettings
    segments: int
    count: CountTokens
    kept: Sequence[str] = ()
    most_names: int | None = None
    names: NamesOf = names_in
    judge: Judge = judge_call
    read_by: FileReadBy = file_read_by


class Occasion(NamedTuple):
    """When and why a record is made. tokens_before, tokens_kept: of the request, and of what is sent next to the text.

    started, now: when the conversation was first seen, and the time of the compaction, in Unix seconds.
    """

    trigger: Trigger
    tokens_before: int
    tokens_kept: int
    title: str
    started: float
    now: float


def build(context: RecordContext, written: WrittenSummary | None, occasion: Occasion) -> Record:
    """Return the next generation. `written` is None for a record without a model."""
    context = replace(context, count=cache(context.count))  # what may be injected is counted again for what is stored
    span, parent, budget, count = context.span, context.parent, context.budget, context.count
    draft = _draft(context, written)
    written, entries, work = draft.written, draft.entries, draft.work
    texts = texts_for(draft.language)
    rendered = render(draft.contents, texts, budget, context.settings, count)
    text = with_names(
        rendered.text, texts, draft.uses, context.kept, span.cut.position, budget, count,
        most=context.most_names, names_of=context.names,
    )  # fmt: skip
    text = with_files(text, draft.files.lines, texts)
    text_tokens = count(text) + MESSAGE_TOKENS
    stored = tuple(ledger.fit(entries, 4 * budget.injected, count))
    left_out = gather_left_out(
        parent.left_out if parent else (), {order_of(entry) for entry in parent.entries} if parent else (),
        [*draft.files.left_out, *rendered.left_out],
        [*list_left_out(context.statements.forgotten), *list_unfitted(entries, stored, ledger.CUT_OFF)],
        span.repeated, (text, *context.kept),
    )  # fmt: skip
    return Record(
        version=VERSION, digest=span.digest, root=parent.root if parent else span.digest,
        parent=parent.digest if parent else None, covered=span.cut.position,
        generation=1 if parent is None or written.rebuilt else parent.generation + 1,
        language=draft.language, text=text, text_tokens=text_tokens, summary=written.summary, segments=draft.timeline,
        entries=stored, actions=work.actions, files=work.files,
        making=_making(span.cut, written, occasion, text_tokens),
        first_digest=span.first_digest, last_digest=span.last_digest, title=occasion.title, started=occasion.started,
        compacted=occasion.now, uses=working_set.pack_names(draft.uses), seen=work.seen, attempts=work.attempts,
        running=work.running, plan=work.plan, reports=draft.reports, rules=draft.files.rules, briefs=draft.files.briefs,
        forgotten=draft.contents.forgotten + ledger.statements(entries) - ledger.statements(stored), steps=work.steps,
        pins=(*draft.files.pins, *span.pins.beside),
        left_out=left_out,
    )  # fmt: skip


def files_weight(
    span: Span, parent: Record | None, budget: Budget, count: CountTokens, read_by: FileReadBy = file_read_by
) -> int:
    """Return the tokens of the pins, the files of rules, and what the user pointed to, in a record not made yet."""
    files = _files(span, parent, budget, (), texts_for(language_for(parent, span)), count, read_by).lines
    return count("\n".join(files)) if files else 0


class _Files(NamedTuple):
    """What a record carries word for word, and the lines of that. left_out: what has no room."""

    pins: tuple[Pin, ...]
    rules: tuple[RuleFile, ...]
    briefs: tuple[RuleFile, ...]
    lines: Sequence[str]
    left_out: Sequence[LeftOut]


def _files(
    span: Span, parent: Record | None, budget: Budget, told: Sequence[str], texts: Texts, count: CountTokens,
    read_by: FileReadBy,
) -> _Files:  # fmt: skip
    """Return the files of everything covered. told: what a person said in it, beside the new messages."""
    pins = pins_block(span.pins.held, texts, budget.pins, count)
    rules = rule_files(parent.rules if parent else (), span.utterances, {*span.ruled, *span.repeated}, read_by)
    rule_block = files_block(texts.rules, rules, texts, _room_for_rules(budget) - span.rules_sent, count)
    briefs = briefs_in(parent.briefs if parent else (), span.utterances, told, read_by)
    brief_block = files_block(texts.briefs, briefs, texts, min(_BRIEFS, budget.record), count)
    lines = [*pins.lines, *rule_block.lines, *brief_block.lines]
    unpinned = [LeftOut("pin", pin.position, pin.source) for pin in pins.pins if not pin.text]
    return _Files(pins.pins, rules, briefs, lines, (*rule_block.left_out, *unpinned))


class _Draft(NamedTuple):
    """What a record says, before it is text."""

    contents: Contents
    language: Language
    files: _Files
    written: WrittenSummary
    entries: Sequence[Entry]
    timeline: tuple[Segment, ...]
    work: Work
    reports: tuple[Report, ...]
    uses: Sequence[NameUse]


def _draft(context: RecordContext, written: WrittenSummary | None) -> _Draft:
    span, parent, budget, count = context.span, context.parent, context.budget, context.count
    language = language_for(parent, span)
    texts = texts_for(language)
    written = written or _deterministic(span, parent, texts, budget, count)
    entries = ledger.supersede(context.statements.entries, written.named)
    timeline = (*(parent.segments if parent else ()), *([written.segment] if written.segment.text else []))
    timeline = timeline[-_SEGMENTS_STORED:]
    work = work_behind(parent.work if parent else Work(), span.utterances, context.judge)
    reports = reports_in(parent.reports if parent else (), span.utterances)
    told = [entry.text for entry in entries if entry.opening or entry.kind in ("task", "directive", "message")]
    files = _files(span, parent, budget, told, texts, count, context.read_by)
    uses = _uses(span, parent, context.statements, entries, context.names)
    shown = [segment.text for segment in timeline[-context.segments :] if segment.text] if context.segments else []
    contents = Contents(
        written.summary, shown, [entry for entry in entries if entry.position not in span.repeated], work, reports,
        span.request, _forgotten(parent, context.statements),
        names_weight(uses, context.kept, _most_names(context), context.names),
    )  # fmt: skip
    return _Draft(contents, language, files, written, entries, timeline, work, reports, uses)


def _most_names(context: RecordContext) -> int:
    return context.budget.names if context.most_names is None else context.most_names


def _room_for_rules(budget: Budget) -> int:
    return budget.usable // _RULES_SHARE if budget.rules is None else budget.rules


def _uses(
    span: Span, parent: Record | None, statements: Statements, entries: Sequence[Entry], names: NamesOf
) -> list[NameUse]:
    """The working set: the parent's and the span's, without what the user replaced."""
    older = working_set.unpack_names(parent.uses) if parent else ()
    uses = working_set.name_uses(older, span.utterances, span.cut.position, names)
    return working_set.without(uses, *_replaced_statements(statements, entries))


def _forgotten(parent: Record | None, statements: Statements) -> int:
    """How many statements of the user are not among the entries any more."""
    return (parent.forgotten if parent else 0) + ledger.statements(statements.forgotten)


def _replaced_statements(statements: Statements, entries: Sequence[Entry]) -> tuple[list[str], set[str]]:
    """What the user said and no longer means: the texts, and the names in them that no other statement has."""
    holds = set(map(folded, entries))
    texts = [entry.text for entry in statements.said if folded(entry) not in holds]
    names = set[str]().union(*map(names_in, texts)) if texts else set()
    return texts, names.difference(*(names_in(entry.text) for entry in entries)) if names else set()


def text_with(record: Record, said: Sequence[Entry], most: int, count: CountTokens) -> str:
    """Return the record's text with further statements of the user, as many as fit into `most` tokens."""
    texts = texts_for(record.language)
    lines = [escape(ledger.line(entry)) for entry in ledger.fit(said, most, count)]
    if not lines:
        return record.text
    told = "\n".join([f"## {texts.said}", *lines])
    return f"{record.text.removesuffix(texts.closing)}\n{told}\n{texts.closing}"


def statements_of(span: Span, parent: Record | None, settings: LedgerSettings) -> Statements:
    """Return the user's statements in all that is covered. Those of the span are merged into the parent's."""
    older = parent.entries if parent else ()
    newer = ledger.said_in(span.utterances, settings.directives, first_user=span.first_user)
    holds = ledger.merge_ledgers(older, newer.entries)
    return Statements(holds.entries, (*older, *newer.entries), (*newer.forgotten, *holds.forgotten))


def language_for(parent: Record | None, span: Span) -> Language:
    """Return the language of the parent; without one, that of the user's words."""
    if parent:
        return parent.language
    users = [u for u in span.utterances if u.role == "user"]
    texts = [u.text for u in [u for u in users if u.voice == "person"] or users]
    prose = [sentence for text in texts for sentence in prose_of(text[:_LANGUAGE_READ])]
    return language_of(prose or texts)


def _making(cut: Cut, written: WrittenSummary, occasion: Occasion, summary: int) -> Making:
    outcome = written.outcome
    algorithm: Algorithm = "deterministic" if outcome is None else "single" if outcome.chunk_count == 1 else "bisect_v1"
    return Making(
        algorithm=algorithm,
        trigger=occasion.trigger,
        level=cut.level,
        split_strategy=cut.strategy,
        boundary_adjustment=cut.adjustment,
        boundary_adjustment_delta=cut.adjustment_delta,
        fallback_reason=cut.fallback_reason,
        rounds=RoundCounts(cut.units_total, cut.units_total - cut.units_kept, cut.units_kept),
        tokens=TokenCounts(occasion.tokens_before, occasion.tokens_kept + summary, summary),
        chunk_count=outcome.chunk_count if outcome else 0,
        max_depth=outcome.max_depth if outcome else 0,
        truncated=outcome.truncated if outcome else False,
        calls=outcome.calls if outcome else 0,
        model=written.model,
        latency_ms=written.latency_ms,
        spent=written.spent,
        rebuilt=written.rebuilt,
    )


def _deterministic(
    span: Span, parent: Record | None, texts: Texts, budget: Budget, count: CountTokens
) -> WrittenSummary:
    """Return a summary without a model.

    It holds what a model or the client wrote before, and what the assistant said since: once, the newest last.
    """
    last = _spoken(span.utterances)
    older, before = _told_before(parent, texts)
    room = budget.summary
    if told := [u.text for u in span.utterances if u.voice == "summary" and u.position not in span.repeated]:
        quoted = "\n".join(f"> {line}" for line in told[-1].strip().splitlines())
        older, before, room = quoted, [], max(room, budget.record // 2)
    newest = {_said_of(line): line for line in [*before, *last]}
    said = [line for line in [*before, *last] if newest[_said_of(line)] is line][-_MOST_SAID:]
    taken = [*accumulate(cost_of([line], count) for line in reversed(said))]
    said = said[len(said) - max(1, bisect_right(taken, room)) :] if said else []
    while count(summary := _summary(older, texts.recent, said)) > room and len(said) > 1:
        del said[0]
    while count(summary) > room and len(summary) > 200:
        summary = shorten(summary, len(summary) * 3 // 4)
    return WrittenSummary(summary=summary, segment=Segment(""))


def _spoken(utterances: Sequence[Utterance]) -> list[str]:
    """Return lines of what the assistant said: its last words before each message of a person, and the newest of all.

    Names alone say nothing.
    """
    said = [u for u in utterances if (u.role == "assistant" and u.text.strip()) or u.is_persons]
    answers = [(u, following) for u, following in pairwise([*said, None]) if u is not None and u.role == "assistant"]
    newest = len(answers) - _NEWEST_SAID
    closing = [u for at, (u, following) in enumerate(answers) if at >= newest or (following and following.is_persons)]
    lines = ((u.position, _line(u.text.strip())) for u in closing)
    return [f"{place(position)}{line}" for position, line in lines if not _is_name(line.removesuffix(_CUT_OUT))]


def _is_name(text: str) -> bool:
    return text in names_in(text)


def _said_of(line: str) -> str:
    return without_place(line).removesuffix(_CUT_OUT)


def _line(text: str) -> str:
    """Return both ends of a text in one line, without code."""
    text = _CODE.sub(f"{_CUT_OUT} ", text[:_CODE_READ]) + text[_CODE_READ:]
    ends = text if len(text) <= 2 * _READ else f"{text[:_READ]} {text[-_READ:]}"
    return shorten(" ".join(ends.split()), _LINE, len(text) - len(ends)).replace("\n", " ")


def _told_before(parent: Record | None, texts: Texts) -> tuple[str, list[str]]:
    """What a model wrote in an earlier generation, and what the ones without a model added."""
    if parent is None or parent.making.algorithm != "deterministic":
        return parent.summary if parent else "", []
    older, _, said = f"\n{parent.summary}".partition(f"\n{texts.recent}\n")
    return older.strip(), [line for line in said.splitlines() if line.startswith("- ")]


def _summary(older: str, heading: str, said: Sequence[str]) -> str:
    recent = "\n".join([heading, *said]) if said else ""
    return "\n\n".join(filter(None, (older, recent)))
