"""Build the event of a compaction from its record. The result is the same at any time on any replica."""

from typing import TypedDict

from policies.price import ReadSoFar, payoff_of
from policies.record.record import Record
from proxy.telemetry.events import CompactionEnded

_DIGITS = 16


def ended_by(
    record: Record, *, tenant: str, session: str, label: str | None, for_model: str | None = None
) -> CompactionEnded:
    """Return the event of the compaction that made a record.

    session: the id of its conversation, for people. A record of version 0.2.0 or before has no cause: `used` and all
    other missing facts are None.
    """
    making, cause = record.making, record.making.cause
    tokens = making.tokens
    payoff = None if cause is None else payoff_of(tokens.before - tokens.after, tokens.after - cause.fixed)
    spent = cause.spent if cause else making.spent
    return CompactionEnded(
        at=record.compacted,
        tenant=tenant,
        session=session,
        label=label,
        trigger=making.trigger,
        result=making.algorithm,
        reason=cause.reason if cause else None,
        ms=cause.ms if cause else making.latency_ms,
        for_model=for_model,
        upstream=cause.upstream if cause else None,
        model=cause.model if cause else making.model,
        used=cause.used if cause else None,
        threshold=cause.threshold if cause else None,
        cut=making.level,
        strategy=making.split_strategy,
        fallback_reason=making.fallback_reason,
        adjustment=making.boundary_adjustment,
        adjustment_delta=making.boundary_adjustment_delta,
        rounds=making.rounds.total,
        rounds_kept=making.rounds.kept,
        covered=record.covered,
        tokens_before=tokens.before,
        refused=cause.refused if cause else (),
        calls=cause.calls if cause else making.calls,
        tokens_in=spent.prompt_tokens,
        tokens_out=spent.completion_tokens,
        usd=spent.usd,
        digest=record.digest,
        parent=record.parent,
        checkpoint=record.digest[:_DIGITS],
        generation=record.generation,
        tokens_after=tokens.after,
        tokens_summary=tokens.summary,
        ratio=record.compression_ratio,
        removed=payoff.removed if payoff else None,
        rewritten=payoff.rewritten if payoff else None,
        pays_after=payoff.pays_after if payoff else None,
        **reading_fields(cause.read_so_far if cause else None),
        chunks=making.chunk_count,
        depth=making.max_depth,
        truncated=making.truncated,
        summarizer_ms=making.latency_ms,
    )


class Reading(TypedDict):
    """The fields of `CompactionEnded` about the tokens read before."""

    read: int | None
    read_by: int | None
    paid: float | None


def reading_fields(so_far: ReadSoFar | None) -> Reading:
    """Return the fields of an event about why a compaction paid; each None for other causes."""
    if so_far is None:
        return {"read": None, "read_by": None, "paid": None}
    return {"read": so_far.read, "read_by": so_far.requests, "paid": round(so_far.times, 1)}
