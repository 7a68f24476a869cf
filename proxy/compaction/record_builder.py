"""Building the record of a compaction, from a model's summary or without a model."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import assert_never

from msgspec import structs

from policies.conversation.transcript import CountTokens
from policies.decision.plan import expected_weight, fit_cut, may_be_fitted, soft_share
from policies.record import record as records
from policies.record.record import Cause, Occasion, Record, WrittenSummary
from proxy.callers.spending import Spending
from proxy.compaction.job import Job
from proxy.compaction.summary_writer import Bill, SummaryWriter
from proxy.models.table import MAX_NAME
from proxy.models.tokenizer import Tokenizer
from proxy.runtime.deadlines import within
from proxy.runtime.workers import Workers
from proxy.telemetry.compactions import ended_by, reading_fields
from proxy.telemetry.events import CompactionEnded, CompactionStarted, Hook
from proxy.telemetry.hooks import observe_traced
from proxy.upstreams.routes import NO_MODEL, SummaryTarget
from proxy.upstreams.summarizer import Summarizer, SummarizerError

# A record that leaves more than this share, without tools and head, is not worth its cost (docs/design.md, "Budget").
_MOST_LEFT = 0.9
# The most reasons that are kept why the summarizer's responses were unusable.
_MOST_REASONS = 8


class CompactionError(Exception):
    """No record could be made, and the request can continue without one. The text is the reason."""


@dataclass(eq=False, repr=False)
class RecordBuilder:
    """Builds records and stores none; one per engine. `clock` returns Unix seconds."""

    _summarizer: Summarizer
    _summary_writer: SummaryWriter
    _spending: Spending
    _tokenizer: Tokenizer
    _workers: Workers
    _observe: Hook
    _clock: Callable[[], float]

    async def fit(self, job: Job) -> Job:
        """Return the job with the cut that its record leaves room for."""
        return await self._workers.run(_fitted_job, job, self._count(job))

    def _count(self, job: Job) -> CountTokens:
        """Return a function that counts the tokens of a text. Each text of the job is counted once."""
        encoding, counted = job.plan_input.request.encoding, job.counted

        def count(text: str) -> int:
            if text not in counted:
                counted[text] = self._tokenizer.count(text, encoding=encoding)
            return counted[text]

        return count

    async def build(self, job: Job) -> Record:
        """Build the record of a job. Emits CompactionStarted and CompactionEnded. Raises CompactionError."""
        bill, started = Bill(), time.perf_counter()
        self._observe(_started_event(job, self._clock()))
        record, result = None, "internal_error"
        try:
            record = _with_cause(await self._worthwhile(job, bill), job, bill, _ms_since(started))
        except CompactionError as error:
            result = str(error)
            raise
        except asyncio.CancelledError:
            result = "cancelled"
            raise
        finally:
            if record is None:
                ended = _failed_event(job, result, self._clock(), _ms_since(started), bill)
            else:
                plan_input = job.plan_input
                ended = ended_by(
                    record,
                    tenant=plan_input.caller.tenant,
                    session=plan_input.chain.name,
                    label=plan_input.label or None,
                    for_model=plan_input.request.settings.model[:MAX_NAME],
                )
            observe_traced(self._observe, ended, job.plan_input.route.trace)
        return record

    async def _worthwhile(self, job: Job, bill: Bill) -> Record:
        """Build the record. Raises CompactionError if it saves too little."""
        record = await (self._build(job, None) if job.target is None else self._record_by_model(job, job.target, bill))
        tokens, fixed = record.making.tokens, job.cooled.conversation.fixed_tokens
        if job.plan.trigger not in ("overflow_retry", "client") and tokens.after - fixed > _MOST_LEFT * (
            tokens.before - fixed
        ):
            raise CompactionError("no_gain")
        return record

    async def _record_by_model(self, job: Job, target: SummaryTarget, bill: Bill) -> Record:
        caller = job.plan_input.caller
        if not self._spending.allows(caller.tenant, caller.summary_tokens_per_day):
            return await self._without_model(job, bill, "over_budget")
        if self._summarizer.is_cooling_down(target):
            return await self._without_model(job, bill, "summarizer_cooling_down")
        try:
            async with within(job.deadline) as deadline:
                written = await self._summary_writer.write(job, target, bill, deadline)
        except TimeoutError:
            self._summarizer.note_failure(target, "transient")
            if bill.asks_aligned:
                self._summarizer.note_failure(target, "timeout", is_aligned=True)
            return await self._without_model(job, bill, "summarizer_timeout")
        except SummarizerError as error:
            return await self._without_model(job, bill, f"summarizer_{error.kind}")
        self._summarizer.note_success(target)
        return await self._build(job, written)

    async def _without_model(self, job: Job, bill: Bill, reason: str) -> Record:
        bill.reason = reason
        if not job.plan.must:
            raise CompactionError(reason)
        return await self._build(job, None)

    async def _build(self, job: Job, written: WrittenSummary | None) -> Record:
        return await self._workers.run(self._build_now, job, written)

    def _build_now(self, job: Job, written: WrittenSummary | None) -> Record:
        now = self._clock()
        occasion = Occasion(
            job.plan.trigger,
            job.plan.tokens_before,
            job.cooled.conversation.fixed_tokens + job.plan.cut.kept,
            _title(job.started, now),
            job.started,
            now,
        )
        record = records.build(job.context(self._count(job)), written, occasion)
        # All its sources were masked.
        return structs.replace(record, is_masked=job.policy.secrets == "mask")


def _fitted_job(job: Job, count: CountTokens) -> Job:
    """Return the job with the cut that its record leaves room for (docs/design.md, "The cut").

    The record's size is estimated from the newly covered tokens, so every replica computes the same cut. A record that
    replaces a late summary covers what was planned.
    """
    if job.plan.target is None or (
        job.target is None and job.plan.with_model and job.plan_input.summarizer is not None
    ):
        return job
    if not may_be_fitted(job.plan, job.cooled.conversation, job.policy):
        return job
    parent_tokens = job.parent.text_tokens if job.parent else 0
    covered = job.cooled.conversation.body[job.covered : job.plan.cut.position]
    files = records.files_weight(job.span, job.parent, job.plan.budget, count, job.read_by)
    weight = expected_weight(parent_tokens, covered, job.plan.budget, files)
    plan = fit_cut(job.plan, job.cooled.conversation, job.policy, weight)
    return job if plan is job.plan else replace(job, plan=replace(plan, target=None))


def _title(started: float, ended: float) -> str:
    start, end = (datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds") for at in (started, ended))
    return f"Summary of conversation from {start} to {end}"


def _started_event(job: Job, at: float) -> CompactionStarted:
    plan_input, plan, target = job.plan_input, job.plan, job.target
    return CompactionStarted(
        at=at,
        tenant=plan_input.caller.tenant,
        session=plan_input.chain.name,
        label=plan_input.label or None,
        trigger=plan.trigger,
        upstream=target.name if target else None,
        model=target.model if target else None,
        covered=plan.cut.position,
        tokens_before=plan.tokens_before,
    )


def _ms_since(started: float) -> float:
    return round(1000 * (time.perf_counter() - started), 1)


def _with_cause(record: Record, job: Job, bill: Bill, ms: float) -> Record:
    """Return the record with its cause, duration and cost."""
    target = job.target
    cause = Cause(
        used=_used_share(job),
        threshold=_threshold(job),
        reason=bill.reason,
        refused=_refusal_reasons(job, bill),
        ms=ms,
        upstream=target.name if target else None,
        model=target.model if target else None,
        calls=bill.calls,
        spent=bill.spent,
        fixed=job.cooled.conversation.fixed_tokens,
        read_so_far=job.plan.read_so_far,
    )
    return structs.replace(record, making=structs.replace(record.making, cause=cause))


def _used_share(job: Job) -> float:
    return round(job.plan.budget.share(job.plan.tokens_before), 3)


def _failed_event(job: Job, result: str, at: float, ms: float, bill: Bill) -> CompactionEnded:
    plan_input, plan, cut, target, spent = job.plan_input, job.plan, job.plan.cut, job.target, bill.spent
    return CompactionEnded(
        at=at,
        tenant=plan_input.caller.tenant,
        session=plan_input.chain.name,
        label=plan_input.label or None,
        trigger=plan.trigger,
        result=result,
        reason=bill.reason or result,
        ms=ms,
        for_model=plan_input.request.settings.model[:MAX_NAME],
        upstream=target.name if target else None,
        model=target.model if target else None,
        used=_used_share(job),
        threshold=_threshold(job),
        cut=cut.level,
        strategy=cut.strategy,
        fallback_reason=cut.fallback_reason,
        adjustment=cut.adjustment,
        adjustment_delta=cut.adjustment_delta,
        rounds=cut.units_total,
        rounds_kept=cut.units_kept,
        covered=cut.position,
        tokens_before=plan.tokens_before,
        refused=_refusal_reasons(job, bill),
        calls=bill.calls,
        tokens_in=spent.prompt_tokens,
        tokens_out=spent.completion_tokens,
        usd=spent.usd,
        **reading_fields(plan.read_so_far),
    )


def _refusal_reasons(job: Job, bill: Bill) -> tuple[str, ...]:
    plan_input = job.plan_input
    if plan_input.summarizer is None and plan_input.route.is_login and job.policy.summarizer.model != NO_MODEL:
        return ("login",)
    return tuple(bill.refused[:_MOST_REASONS])


def _threshold(job: Job) -> float | None:
    """Return the share of the room from which the compaction was due; None if something else made it due."""
    match job.plan.trigger:
        case "background":
            return round(soft_share(job.plan.budget, job.policy), 3)
        case "economy":
            return job.policy.economy_from
        case "proactive" | "tool_execution":
            due = job.policy.compaction_threshold
            return due if job.plan.budget.share(job.plan.tokens_before) >= due else None  # by messages
        case "manual" | "overflow_retry" | "client":
            return None
        case _:
            assert_never(job.plan.trigger)
