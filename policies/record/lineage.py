"""What is known of one conversation beside its records: how its compactions went, and when to stop asking a model.

R3's CompactionState and CompactionRecord; docs/design.md, "When to compact". Best effort: a lineage that is forgotten
costs a summary, never an answer.
"""

from math import ceil

import msgspec

from policies.decision.budget import Budget
from policies.decision.stability import backoff
from policies.record.record import Record

HISTORY = 100
# After so many compactions in a row that did not help, models are left alone ...
_INEFFECTIVE = 2
# ... until the conversation has grown by this share of M, or so many seconds have passed: twice as much
# with every further one in vain.
_REGROWTH = 0.15
_PATIENCE = 600.0
# The promised price of growth: one summary per this share of M (docs/design.md, "When to compact").
_GROWTH_PER_CALL = 0.35
# After a record that gained nothing none is made of the same history until it is larger by this.
_REGAINING = 1.1
# What is left of it for units so large that a summary lasts less long.
_SPARE_CALLS = 2


class Compaction(msgspec.Struct, frozen=True):
    """One compaction in a lineage's history; `at` is Unix seconds, messages and tokens are of the whole request."""

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
    ineffective:    compactions in a row after which the provider still reported the threshold or more.
    ineffective_at: when the last of them showed, and at how many tokens of the client's history.
    judged:         digest of the newest record whose effect is known.
    failures:       compactions in a row that failed.
    calls:          of summarizers, in all.
    gained_nothing: tokens of the client's history of which the last record was thrown away, for it gained nothing.
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
    """The lineage after a compaction of a request of `messages` messages."""
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
    return msgspec.structs.replace(lineage, failures=lineage.failures + 1)


def after_showing(
    lineage: Lineage, digest: str, *, share: float, threshold: float, history_tokens: int, now: float
) -> Lineage:
    """After a record was first sent: in vain if the provider counts a `share` that triggers all the same."""
    if digest == lineage.judged:
        return lineage
    if share < threshold:
        return msgspec.structs.replace(lineage, judged=digest, ineffective=0)
    return msgspec.structs.replace(
        lineage, judged=digest, ineffective=lineage.ineffective + 1, ineffective_at=(now, history_tokens)
    )


def without_gain(lineage: Lineage, history_tokens: int) -> Lineage:
    """After a record that was thrown away, of a history of so many tokens."""
    return msgspec.structs.replace(lineage, gained_nothing=history_tokens)


def may_gain(lineage: Lineage, history_tokens: int) -> bool:
    """Whether a record of a history may gain something although the last one gained nothing."""
    tokens = lineage.gained_nothing
    return not tokens <= history_tokens < _REGAINING * tokens


def may_ask_model(lineage: Lineage, budget: Budget, *, history_tokens: int, now: float) -> bool:
    """Whether another model's summary may help; without one, what stands is sent on."""
    if lineage.ineffective < _INEFFECTIVE:
        return True
    at, tokens = lineage.ineffective_at
    longer = backoff(lineage.ineffective - _INEFFECTIVE)
    grown = history_tokens - tokens >= longer * _REGROWTH * budget.movable
    return grown or now - at >= longer * _PATIENCE


def may_rebuild(lineage: Lineage, budget: Budget, threshold: float, *, history_tokens: int, calls: int) -> bool:
    """Whether `calls` summarizer calls instead of one keep the promised price: one per 0.35 M of growth, and one."""
    if calls == 1:
        return True
    growth = history_tokens - budget.at(threshold)
    promised = ceil(growth / (_GROWTH_PER_CALL * budget.movable)) + 1
    return lineage.calls + calls + _SPARE_CALLS <= promised
