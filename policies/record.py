"""The record of a compaction: what is stored once and injected ever after (docs/design.md, section 7)."""

from __future__ import annotations

from typing import Literal

import msgspec

from policies import ledger
from policies.actions import FileChange, KeyAction, file_changes, key_actions
from policies.bisect import Outcome
from policies.budget import Budget
from policies.half_window import Cut
from policies.injection import render
from policies.ledger import Entry
from policies.plan import Trigger
from policies.settings import LedgerSettings
from policies.texts import Language, Texts, language_of, texts_for
from policies.transcript import CountTokens, Utterance, shorten

VERSION = 1
SEGMENT_CHARACTERS = 500
SEGMENTS_KEPT = 3
_ACTIONS_STORED = 200
_FILES_STORED = 200

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


class Making(msgspec.Struct, frozen=True):
    """How the summary came about; zero and empty for a deterministic record."""

    algorithm: Algorithm
    trigger: Trigger
    level: str
    split_strategy: str
    boundary_adjustment: str
    boundary_adjustment_delta: int
    rounds: RoundCounts
    tokens: TokenCounts
    chunk_count: int = 0
    max_depth: int = 0
    truncated: bool = False
    calls: int = 0
    model: str | None = None
    latency_ms: int = 0


class Record(msgspec.Struct, frozen=True):
    """Immutable. `text` is exactly what is injected; the rest is what the next generation is made from.

    digest: of the covered prefix, hex. covered: messages of the body it stands for. generation: 1 for the first.
    compacted: when it was made, Unix seconds (R3's time.compacted).
    """

    version: int
    digest: str
    parent: str | None
    covered: int
    generation: int
    language: Language
    text: str
    text_tokens: int
    summary: str
    segments: tuple[str, ...]
    entries: tuple[Entry, ...]
    actions: tuple[KeyAction, ...]
    files: tuple[FileChange, ...]
    making: Making
    first_digest: str
    last_digest: str
    compacted: float


class Written(msgspec.Struct, frozen=True):
    """A validated summary: the running text and this span's segment."""

    summary: str
    segment: str
    outcome: Outcome | None = None
    model: str | None = None
    latency_ms: int = 0


class Span(msgspec.Struct, frozen=True):
    """What a record is made of: the newly covered messages and where they lie.

    first_user and anchor are positions in the body; digests are hex.
    """

    utterances: tuple[Utterance, ...]
    cut: Cut
    digest: str
    first_digest: str
    last_digest: str
    first_user: int | None
    anchor: int | None


def build(
    span: Span,
    parent: Record | None,
    written: Written | None,
    *,
    budget: Budget,
    settings: LedgerSettings,
    trigger: Trigger,
    tokens_before: int,
    tokens_kept: int,
    now: float,
    count: CountTokens,
) -> Record:
    """The next generation. `written` is None for a deterministic record; `tokens_kept` counts all that still goes
    upstream beside the injected text."""
    entries = ledger.merge(
        parent.entries if parent else (),
        ledger.extract(span.utterances, settings.directives, first_user=span.first_user),
    )
    language = language_for(parent, span)
    texts = texts_for(language)
    actions = [*(parent.actions if parent else ()), *key_actions(span.utterances)][-_ACTIONS_STORED:]
    files = file_changes(parent.files if parent else (), span.utterances)[-_FILES_STORED:]
    written = written or _deterministic(span, parent, texts, budget, count)
    segments = (*(parent.segments if parent else ()), written.segment)[-SEGMENTS_KEPT:]
    text = render(
        texts,
        written.summary,
        segments,
        entries,
        actions,
        files,
        budget=budget,
        settings=settings,
        count=count,
        anchor=span.anchor,
    )
    text_tokens = count(text)
    return Record(
        version=VERSION,
        digest=span.digest,
        parent=parent.digest if parent else None,
        covered=span.cut.position,
        generation=parent.generation + 1 if parent else 1,
        language=language,
        text=text,
        text_tokens=text_tokens,
        summary=written.summary,
        segments=segments,
        entries=tuple(ledger.fit(entries, 4 * budget.record, count)),
        actions=tuple(actions),
        files=tuple(files),
        making=_making(span.cut, written, trigger, tokens_before, tokens_kept + text_tokens, text_tokens),
        first_digest=span.first_digest,
        last_digest=span.last_digest,
        compacted=now,
    )


def language_for(parent: Record | None, span: Span) -> Language:
    """The language of a record is that of its parent, and of the user's words at first."""
    return parent.language if parent else language_of(u.text for u in span.utterances if u.role == "user")


def _making(cut: Cut, written: Written, trigger: Trigger, before: int, after: int, summary: int) -> Making:
    outcome = written.outcome
    algorithm: Algorithm = "deterministic" if outcome is None else "single" if outcome.chunk_count == 1 else "bisect_v1"
    return Making(
        algorithm=algorithm,
        trigger=trigger,
        level=cut.level,
        split_strategy=cut.strategy,
        boundary_adjustment=cut.adjustment,
        boundary_adjustment_delta=cut.adjustment_delta,
        rounds=RoundCounts(cut.units_total, cut.units_total - cut.units_kept, cut.units_kept),
        tokens=TokenCounts(before, after, summary),
        chunk_count=outcome.chunk_count if outcome else 0,
        max_depth=outcome.max_depth if outcome else 0,
        truncated=outcome.truncated if outcome else False,
        calls=outcome.calls if outcome else 0,
        model=written.model,
        latency_ms=written.latency_ms,
    )


def _deterministic(span: Span, parent: Record | None, texts: Texts, budget: Budget, count: CountTokens) -> Written:
    """A summary without a model: what stood before, and the last things the assistant said."""
    said = [u.text.strip() for u in span.utterances if u.role == "assistant" and u.text.strip()]
    last = [shorten(" ".join(text.split()), 300).replace("\n", " ") for text in said[-5:]]
    calls = sum(len(u.calls) for u in span.utterances)
    users = sum(1 for u in span.utterances if u.role == "user")
    segment = texts.segment.format(messages=len(span.utterances), users=users, calls=calls)
    older = parent.summary if parent else ""
    summary = "\n".join([*([older, ""] if older else []), texts.recent, *(f"- {text}" for text in last or [segment])])
    while count(summary) > budget.summary and len(summary) > 200:
        summary = shorten(summary, len(summary) * 3 // 4)
    return Written(summary=summary, segment=segment)
