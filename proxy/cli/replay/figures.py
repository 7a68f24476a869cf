"""The figures of a replay: the sums over requests, and the rows of its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import msgspec

NO_PROXY = "no proxy"
# The minimum tokens of providers' prompt caches: OpenAI's, and Anthropic's for most models.
LEAST_CACHED = 1_024
# The meaning of the figures, for people.
LEGEND = (
    "Summaries are lines of the transcript, priced as if a model had written target_tokens. Those made in the"
    " background are ready at the next request.",
    "inline, background: compactions while a request waited, and in the background; shortened: batches of large"
    " messages; calls: of summarizers.",
    "reuse: share of a request's messages that the next one repeats from the start; over: requests that exceed"
    " the window.",
    f"cost: prompts and summaries at list prices, a prefix of the request before (from {LEAST_CACHED:,} tokens on)"
    " at the cache's price; responses cost the same under every policy and are not included.",
    f"net: difference to {NO_PROXY}, as if every request had fitted.",
)


class PolicyRow(msgspec.Struct, frozen=True):
    """The figures of one policy for a session, or for several.

    tokens_*:       of prompts, by the proxy's count. saved: share of the received tokens that was not sent.
    compactions_*:  made while a request waited, and in the background. cooled_batches: of shortened large messages.
    prefix_reuse:   average share of a request's messages that the next request repeats byte for byte from the start;
    None for a single request.
    over_window:    requests that exceed the window; None if it is unknown. first_over: the number of the first one in
    its session; None for several sessions.
    cost_usd:       of prompts and summaries. net_usd: the difference to the cost without a proxy. None if a price is
    unknown.
    """

    tokens_received: int
    tokens_sent: int
    saved: float
    compactions_inline: int
    compactions_background: int
    cooled_batches: int
    summarizer_calls: int
    prefix_reuse: float | None
    over_window: int | None
    first_over: int | None
    cost_usd: float | None
    net_usd: float | None


class ReplayedSession(msgspec.Struct, frozen=True):
    """The figures of one session, or of all together, by policy. `no proxy` is the first policy."""

    name: str
    requests: int
    policies: dict[str, PolicyRow]


class Replayed(msgspec.Struct, frozen=True):
    """The result of a replay.

    total:    of all sessions; None for a single session.
    windows:  of the models, in tokens; None if unknown. unpriced: models with an unknown price.
    watching: policies in mode `shadow`, which send everything unchanged.
    """

    windows: dict[str, int | None]
    sessions: list[ReplayedSession]
    total: ReplayedSession | None
    unpriced: list[str]
    watching: list[str]


@dataclass
class ReplayTally:
    """Sums over the requests of a session.

    reuse: a share for each pair of requests. over: numbers of the requests over the window.
    unmeasured: requests with an unknown window. unpriced: prompts with an unknown price.
    """

    requests: int = 0
    received: int = 0
    sent: int = 0
    inline: int = 0
    background: int = 0
    batches: int = 0
    calls: int = 0
    unmeasured: int = 0
    unpriced: int = 0
    cost: float = 0.0
    reuse: list[float] = field(default_factory=list)
    over: list[int] = field(default_factory=list)

    def __add__(self, other: ReplayTally) -> ReplayTally:
        """Return the sums of both tallies."""
        return ReplayTally(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


def session_of(name: str, tallies: Mapping[str, ReplayTally]) -> ReplayedSession:
    """Return the figures of a session from its tallies by policy."""
    without = tallies[NO_PROXY]
    return ReplayedSession(name, without.requests, {policy: _row(tally, without) for policy, tally in tallies.items()})


def total_of(tallies: Mapping[str, ReplayTally]) -> ReplayedSession:
    """Return the sums of several sessions."""
    session = session_of("all sessions", tallies)
    rows = {policy: msgspec.structs.replace(row, first_over=None) for policy, row in session.policies.items()}
    return msgspec.structs.replace(session, policies=rows)


def _row(tally: ReplayTally, without: ReplayTally) -> PolicyRow:
    return PolicyRow(
        tokens_received=tally.received,
        tokens_sent=tally.sent,
        saved=round(1 - tally.sent / max(1, tally.received), 4),
        compactions_inline=tally.inline,
        compactions_background=tally.background,
        cooled_batches=tally.batches,
        summarizer_calls=tally.calls,
        prefix_reuse=round(sum(tally.reuse) / len(tally.reuse), 4) if tally.reuse else None,
        over_window=None if tally.unmeasured else len(tally.over),
        first_over=min(tally.over, default=None),
        cost_usd=None if tally.unpriced else round(tally.cost, 6),
        net_usd=None if tally.unpriced or without.unpriced else round(tally.cost - without.cost, 6),
    )
