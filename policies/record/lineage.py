"""The state of one conversation apart from its records: its past compactions, and when not to call a model.

R3's CompactionState and CompactionRecord; docs/design.md, "When to compact". Best effort: losing a lineage costs a
summary, never a response.
"""

from math import ceil

import msgspec

from policies.decision.budget import Budget
from policies.decision.stability import backoff
from policies.record.record import Record

HISTORY = 100
# After this many ineffective compactions in a row, no model is called ...
_INEFFECTIVE = 2
# ... until the conversation has grown by this share of M, or this many seconds have passed. Each further ineffective
# compaction doubles both.
_REGROWTH = 0.15
_PATIENCE = 600.0
# The promised price of growth: one summary per this share of M (docs/design.md, "When to compact").
_GROWTH_PER_CALL = 0.35
# After a record that gained nothing, the history must grow by this factor before the next record.
_REGAINING = 1.1
# Spare calls for units so large that a summary lasts less long.
_SPARE_CALLS = 2


class Compaction(msgspec.Struct, frozen=True):
    """A compaction of a conversation. at: Unix seconds. messages, tokens: of the whole request."""

    at: float
    trigger: str
    algorithm: str
    digest: str
    generation: int
    messages_before: int
    messages_after: int
    tokens_before: int
    tokens_after: int
    calls: int


class Lineage(msgspec.Struct, frozen=True):
    """The state of one conversation.

    first_seen:     Unix seconds.
    ineffective:    compactions in a row after which the provider still counted the threshold or more.
    ineffective_at: time of the last of these, and the tokens of the client's history then.
    judged:         digest of the newest record whose effect is known.
    failures:       compactions in a row that failed.
    calls:          summarizer calls in all.
    gained_nothing: tokens of the client's history when the last record was discarded because it gained nothing.
    """

    first_seen: float
    compactions: int = 0
    last_compaction: float | None = None
    ineffective: int = 0
    ineffective_at: tuple[float, int] = (0.0, 0)
    judged: str = ""
    failures: int = 0
    calls: int = 0
    history: tuple[Compaction, ...] = ()
    gained_nothing: int = 0


def after_compaction(lineage: Lineage, record: Record, *, messages: int, now: float) -> Lineage:
    """Return the lineage after a compaction of a request of `messages` messages."""
    making = record.making
    entry = Compaction(
        at=now,
        trigger=making.trigger,
        algorithm=making.algorithm,
        digest=record.digest,
        generation=record.generation,
        messages_before=messages,
        messages_after=messages - record.covered + 1,
        tokens_before=making.tokens.before,
        tokens_after=making.tokens.after,
        calls=making.calls,
    )
    return msgspec.structs.replace(
        lineage,
        compactions=lineage.compactions + 1,
        last_compaction=now,
        failures=0,
        calls=lineage.calls + making.calls,
        history=(*lineage.history, entry)[-HISTORY:],
    )


def after_failure(lineage: Lineage) -> Lineage:
    """Return the lineage after a compaction that failed."""
    return msgspec.structs.replace(lineage, failures=lineage.failures + 1)


def after_showing(
    lineage: Lineage, digest: str, *, share: float, threshold: float, history_tokens: int, now: float
) -> Lineage:
    """Return the lineage after a record was sent for the first time.

    The record was ineffective if the provider counts a `share` of the room at or above `threshold`.
    """
    if digest == lineage.judged:
        return lineage
    if share < threshold:
        return msgspec.structs.replace(lineage, judged=digest, ineffective=0)
    return msgspec.structs.replace(
        lineage, judged=digest, ineffective=lineage.ineffective + 1, ineffective_at=(now, history_tokens)
    )


def without_gain(lineage: Lineage, history_tokens: int) -> Lineage:
    """Return the lineage after a record of a history of `history_tokens` was discarded."""
    return msgspec.structs.replace(lineage, gained_nothing=history_tokens)


def may_gain(lineage: Lineage, history_tokens: int) -> bool:
    """Return True if a record of this history may gain something. The last record may have gained nothing."""
    tokens = lineage.gained_nothing
    return not tokens <= history_tokens < _REGAINING * tokens


def may_ask_model(lineage: Lineage, budget: Budget, *, history_tokens: int, now: float) -> bool:
    """Return True if another summary by a model may help. Otherwise the existing record is sent."""
    if lineage.ineffective < _INEFFECTIVE:
        return True
    at, tokens = lineage.ineffective_at
    factor = backoff(lineage.ineffective - _INEFFECTIVE)
    has_grown = history_tokens - tokens >= factor * _REGROWTH * budget.movable
    return has_grown or now - at >= factor * _PATIENCE


def may_rebuild(lineage: Lineage, budget: Budget, threshold: float, *, history_tokens: int, calls: int) -> bool:
    """Return True if `calls` summarizer calls keep the promised price: one call per 0.35 M of growth, plus one."""
    if calls == 1:
        return True
    growth = history_tokens - budget.at(threshold)
    promised = ceil(growth / (_GROWTH_PER_CALL * budget.movable)) + 1
    return lineage.calls + calls + _SPARE_CALLS <= promised
