"""The record of a compaction, which is stored once and injected into later requests (docs/design.md, "The record")."""

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
from policies.record.actions import FileChange, KeyAction, Work, update_work
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
# The fraction of the usable input for files of rules: one part in this many.
_RULES_SHARE = 4
# Maximum tokens of documents and issues that a person refers to.
_BRIEFS = 1_000
# The tokens of a message in addition to its text, as proxy.dialects.chat.messages counts them.
MESSAGE_TOKENS = 4
# Maximum characters of an assistant's text in a summary without a model, and of either end of it that is read.
_LINE = 300
_READ = 2_000
# A block of code in an assistant's text. The files of the record cover it.
_CODE = re.compile(r"```[^`]{0,20000}```")
_CODE_READ = 40_000
_CUT_OUT = " …"
# The summary without a model has this many newest assistant texts, and all that precede a person's message.
_NEWEST_SAID = 5
_MOST_SAID = 200
# Characters of a message from which its language is determined.
_LANGUAGE_READ = 2_000

Algorithm = Literal["single", "bisect_v1", "deterministic"]


class RoundCounts(msgspec.Struct, frozen=True):
    """Rounds of the request: all, those summarized and those kept."""

    total: int
    summarized: int
    kept: int


class TokenCounts(msgspec.Struct, frozen=True):
    """Tokens of the whole request before and after, and of the injected text."""

    before: int
    after: int
    summary: int


class Segment(msgspec.Struct, frozen=True):
    """An entry of the timeline: the events of one span, and the insights gained in it (R2)."""

    text: str
    insights: tuple[str, ...] = ()


class Spent(msgspec.Struct, frozen=True):
    """The cost of a summary: tokens as billed, or estimated if the provider does not report them.

    usd: None if the price is unknown.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float | None = None


class Cause(msgspec.Struct, frozen=True):
    """The reason for a record, and its total effort including unusable responses.

    used, threshold: shares of the room: that of the request, and the limit it exceeded. The limit is None for other
    triggers.
    reason: why no model wrote the summary.
    refused: why responses were unusable.
    ms: duration of the whole compaction.
    upstream, model: of the configured summarizer.
    fixed: tokens of tools and system prompt.
    read_so_far: what had been read, if the record was made because it pays.
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
    """The way the summary was made; zero and empty for a deterministic record.

    cause: None in records of versions that did not store it.
    """

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
    """The immutable record of a compaction.

    `text` is exactly the injected text. The other fields are the input of the next generation.
    digest: of the covered prefix, hex.
    root: digest of the lineage's first record.
    covered: number of messages it replaces.
    generation: 1 for the first record, and for one whose summary was rebuilt from the whole history.
    title: for people (R3, BR-10).
    first_digest, last_digest: of the newly covered messages.
    uses: the working set, packed. Names that are not shown now may be shown in the next record.
    started, compacted: Unix seconds of the first request and of this compaction (R3's time.compacted).
    is_masked: True if recognized secrets are masked.
    seen: files that existed when they were read or listed.
    attempts, running: failed attempts, and started work that has not ended.
    plan: its newest state in everything covered.
    reports: texts of hooks, tasks and other agents.
    rules: files of rules in no message that is sent.
    forgotten: number of the user's statements that are no longer among the entries.
    briefs: documents and issues that a person refers to.
    steps: of an agent in a browser.
    pins: the pins of everything covered; without text if they did not fit.
    left_out: covered things that the prompt does not show.
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
        """Return the state of the work that the record covers."""
        return Work(self.actions, self.files, self.seen, self.attempts, self.running, self.plan, self.steps)

    @property
    def left_out_counts(self) -> dict[str, int]:
        """Return the number of things that the prompt leaves out, by kind."""
        return counts_of(self.left_out)

    @property
    def compression_ratio(self) -> float:
        """Return the share of tokens that remains (R1)."""
        return round(self.making.tokens.after / max(1, self.making.tokens.before), 3)


class WrittenSummary(msgspec.Struct, frozen=True):
    """A validated summary: the running text, the segment of this span, and how the model made them.

    named: the response in which the model may have named statements that a later one replaces.
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
    """The newly covered messages and their positions in the body.

    first_user: the first message of a person.
    repeated: messages sent next to the record.
    ruled: messages with files of rules sent next to it, of `rules_sent` tokens.
    request: start of the newest request; None if it is not covered.
    pins: the pins of everything covered.
    Digests are hex.
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
    """The user's statements: those that are valid, all of them, and those dropped from both for lack of room."""

    entries: Sequence[Entry]
    said: Sequence[Entry]
    forgotten: Sequence[Entry] = ()


@dataclass(frozen=True, kw_only=True)
class RecordContext:
    """The input of a record, and its room.

    segments:   how many of the newest segments to show.
    kept:       the texts sent next to the record.
    most_names: maximum tokens of the working set in the remaining room; None for its own budget.
    names, judge, read_by: read the names of a text, the outcome of a call, and the file that a call reads.
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
    """When and why a record is made.

    tokens_before, tokens_kept: of the request, and of what is sent next to the text.
    started, now: Unix seconds of the first request and of the compaction.
    """

    trigger: Trigger
    tokens_before: int
    tokens_kept: int
    title: str
    started: float
    now: float


def build(context: RecordContext, written: WrittenSummary | None, occasion: Occasion) -> Record:
    """Return the next generation. written: None for a record without a model."""
    context = replace(context, count=cache(context.count))  # the injected texts are counted again for the stored ones
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
    """Return the tokens of pins, files of rules, documents and issues in a record that is not built yet."""
    files = _files(span, parent, budget, (), texts_for(language_for(parent, span)), count, read_by).lines
    return count("\n".join(files)) if files else 0


class _Files(NamedTuple):
    """The files and pins that a record holds word for word, and their lines.

    left_out: what has no room.
    """

    pins: tuple[Pin, ...]
    rules: tuple[RuleFile, ...]
    briefs: tuple[RuleFile, ...]
    lines: Sequence[str]
    left_out: Sequence[LeftOut]


def _files(
    span: Span, parent: Record | None, budget: Budget, statements: Sequence[str], texts: Texts, count: CountTokens,
    read_by: FileReadBy,
) -> _Files:  # fmt: skip
    """Return the files of everything covered. statements: earlier statements of a person."""
    pins = pins_block(span.pins.held, texts, budget.pins, count)
    rules = rule_files(parent.rules if parent else (), span.utterances, {*span.ruled, *span.repeated}, read_by)
    rule_block = files_block(texts.rules, rules, texts, _room_for_rules(budget) - span.rules_sent, count)
    briefs = briefs_in(parent.briefs if parent else (), span.utterances, statements, read_by)
    brief_block = files_block(texts.briefs, briefs, texts, min(_BRIEFS, budget.record), count)
    lines = [*pins.lines, *rule_block.lines, *brief_block.lines]
    unpinned = [LeftOut("pin", pin.position, pin.source) for pin in pins.pins if not pin.text]
    return _Files(pins.pins, rules, briefs, lines, (*rule_block.left_out, *unpinned))


class _Draft(NamedTuple):
    """The contents of a record before they are rendered."""

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
    work = update_work(parent.work if parent else Work(), span.utterances, context.judge)
    reports = reports_in(parent.reports if parent else (), span.utterances)
    statements = [entry.text for entry in entries if entry.opening or entry.kind in ("task", "directive", "message")]
    files = _files(span, parent, budget, statements, texts, count, context.read_by)
    uses = _uses(span, parent, context.statements, entries, context.names)
    shown = [segment.text for segment in timeline[-context.segments :] if segment.text] if context.segments else []
    contents = Contents(
        written.summary, shown, [entry for entry in entries if entry.position not in span.repeated], work, reports,
        span.request, _count_forgotten(parent, context.statements),
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
    """Return the working set of the parent and the span, without what the user replaced."""
    older = working_set.unpack_names(parent.uses) if parent else ()
    uses = working_set.name_uses(older, span.utterances, span.cut.position, names)
    return working_set.without(uses, *_replaced_statements(statements, entries))


def _count_forgotten(parent: Record | None, statements: Statements) -> int:
    """Return the number of the user's statements that are no longer among the entries."""
    return (parent.forgotten if parent else 0) + ledger.statements(statements.forgotten)


def _replaced_statements(statements: Statements, entries: Sequence[Entry]) -> tuple[list[str], set[str]]:
    """Return the texts of replaced statements, and the names that occur in no other statement."""
    valid = set(map(folded, entries))
    texts = [entry.text for entry in statements.said if folded(entry) not in valid]
    names = set[str]().union(*map(names_in, texts)) if texts else set()
    return texts, names.difference(*(names_in(entry.text) for entry in entries)) if names else set()


def text_with(record: Record, statements: Sequence[Entry], most: int, count: CountTokens) -> str:
    """Return the record's text with further statements of the user, as many as fit into `most` tokens."""
    texts = texts_for(record.language)
    lines = [escape(ledger.line(entry)) for entry in ledger.fit(statements, most, count)]
    if not lines:
        return record.text
    added = "\n".join([f"## {texts.said}", *lines])
    return f"{record.text.removesuffix(texts.closing)}\n{added}\n{texts.closing}"


def statements_of(span: Span, parent: Record | None, settings: LedgerSettings) -> Statements:
    """Return the user's statements in everything covered. Those of the span are merged into the parent's."""
    older = parent.entries if parent else ()
    newer = ledger.said_in(span.utterances, settings.directives, first_user=span.first_user)
    merged = ledger.merge_ledgers(older, newer.entries)
    return Statements(merged.entries, (*older, *newer.entries), (*newer.forgotten, *merged.forgotten))


def language_for(parent: Record | None, span: Span) -> Language:
    """Return the language of the parent. Without a parent, return that of the user's words."""
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

    It holds the summary of a model or client, and what the assistant has said since. Repeated lines occur once.
    """
    lines = _assistant_lines(span.utterances)
    summary_before, lines_before = _earlier_summary(parent, texts)
    room = budget.summary
    if client_summaries := [
        u.text for u in span.utterances if u.voice == "summary" and u.position not in span.repeated
    ]:
        quoted = "\n".join(f"> {line}" for line in client_summaries[-1].strip().splitlines())
        summary_before, lines_before, room = quoted, [], max(room, budget.record // 2)
    newest = {_comparable(line): line for line in [*lines_before, *lines]}
    recent = [line for line in [*lines_before, *lines] if newest[_comparable(line)] is line][-_MOST_SAID:]
    costs = [*accumulate(cost_of([line], count) for line in reversed(recent))]
    recent = recent[len(recent) - max(1, bisect_right(costs, room)) :] if recent else []
    while count(summary := _summary(summary_before, texts.recent, recent)) > room and len(recent) > 1:
        del recent[0]
    while count(summary) > room and len(summary) > 200:
        summary = shorten(summary, len(summary) * 3 // 4)
    return WrittenSummary(summary=summary, segment=Segment(""))


def _assistant_lines(utterances: Sequence[Utterance]) -> list[str]:
    """Return lines of the assistant's last texts before each message of a person, and of its newest texts.

    Texts that are only a name are omitted.
    """
    turns = [u for u in utterances if (u.role == "assistant" and u.text.strip()) or u.is_persons]
    assistant_turns = [
        (u, following) for u, following in pairwise([*turns, None]) if u is not None and u.role == "assistant"
    ]
    newest_start = len(assistant_turns) - _NEWEST_SAID
    closing = [
        u
        for at, (u, following) in enumerate(assistant_turns)
        if at >= newest_start or (following and following.is_persons)
    ]
    lines = ((u.position, _line(u.text.strip())) for u in closing)
    return [f"{place(position)}{line}" for position, line in lines if not _is_name(line.removesuffix(_CUT_OUT))]


def _is_name(text: str) -> bool:
    return text in names_in(text)


def _comparable(line: str) -> str:
    return without_place(line).removesuffix(_CUT_OUT)


def _line(text: str) -> str:
    """Return both ends of a text in one line, without code."""
    text = _CODE.sub(f"{_CUT_OUT} ", text[:_CODE_READ]) + text[_CODE_READ:]
    ends = text if len(text) <= 2 * _READ else f"{text[:_READ]} {text[-_READ:]}"
    return shorten(" ".join(ends.split()), _LINE, len(text) - len(ends)).replace("\n", " ")


def _earlier_summary(parent: Record | None, texts: Texts) -> tuple[str, list[str]]:
    """Return the last summary of a model, and the lines that records without a model have added."""
    if parent is None or parent.making.algorithm != "deterministic":
        return parent.summary if parent else "", []
    older, _, recent = f"\n{parent.summary}".partition(f"\n{texts.recent}\n")
    return older.strip(), [line for line in recent.splitlines() if line.startswith("- ")]


def _summary(older: str, heading: str, lines: Sequence[str]) -> str:
    recent = "\n".join([heading, *lines]) if lines else ""
    return "\n\n".join(filter(None, (older, recent)))
