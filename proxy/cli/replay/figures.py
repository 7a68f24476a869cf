"""The figures of a replay: what is added up request by request, and the rows that are shown of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import msgspec

NO_PROXY = "no proxy"
# Prompt caches of providers begin at so many tokens: OpenAI's, and Anthropic's for most models.
LEAST_CACHED = 1_024
# What the figures mean, for people.
LEGEND = (
    "Summaries are stood in for by lines of the transcript and priced as if a model had written target_tokens; those"
    " made ahead are there by the next request.",
    "inline, ahead: compactions while a request waited, and in the background; cooled: batches of large messages made"
    " short; calls: of summarizers.",
    "reuse: share of a request's messages that the next one repeats from the start; over: requests that the window"
    " would not have taken.",
    f"cost: prompts and summaries at list prices, a prefix that was sent just before (from {LEAST_CACHED:,} tokens on)"
    " at the cache's; answers cost the same everywhere and are left out.",
    f"net: against {NO_PROXY}, as if everything had fitted.",
)


class PolicyRow(msgspec.Struct, frozen=True):
    """What one policy did with a session, or with several.

    tokens_*:       of prompts, by our count. saved: share of the received tokens that was not sent.
    compactions_*:  made while a request waited, and ahead of need. cooled_batches: of large messages made short.
    prefix_reuse:   share of a request's messages that the next one repeats byte for byte from the start, on average;
                    None for a single request.
    over_window:    requests that the window would not have taken, None where it is unknown; first_over: the number of
                    the first in its session, None for several sessions.
    cost_usd:       of prompts and of summaries; net_usd: what that is above the same without a proxy. None where a
                    price is unknown.
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
    """One session, or all of them together, by policy; `no proxy` is the first of these."""

    name: str
    requests: int
    policies: dict[str, PolicyRow]


class Replayed(msgspec.Struct, frozen=True):
    """Everything that was played. total: None for a single session.

    windows:  of the models met, in tokens; None where unknown. unpriced: models whose price is unknown.
    watching: policies in mode `shadow`, which send everything as it came.
    """

    windows: dict[str, int | None]
    sessions: list[ReplayedSession]
    total: ReplayedSession | None
    unpriced: list[str]
    watching: list[str]


@dataclass
class ReplayTally:
    """What is added up. reuse: a share for each pair of requests; over: numbers of the requests over the window.

    unmeasured, unpriced: requests whose window is unknown, and prompts whose price is.
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
        return ReplayTally(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


def session_of(name: str, tallies: Mapping[str, ReplayTally]) -> ReplayedSession:
    without = tallies[NO_PROXY]
    return ReplayedSession(name, without.requests, {policy: _row(tally, without) for policy, tally in tallies.items()})


def total_of(tallies: Mapping[str, ReplayTally]) -> ReplayedSession:
    """The rows of several sessions added up."""
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
