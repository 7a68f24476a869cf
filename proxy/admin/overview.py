"""What an operator sees first: whether it is well, what it has done, and who is near the window."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from proxy.admin.sessions import listing, why
from proxy.admin.sessions.listing import Row
from proxy.admin.spend import Prices, spend_of
from proxy.observing import figures
from proxy.observing.events import CompactionEnded
from proxy.observing.histograms import Histogram
from proxy.observing.session_trails import SessionTrail
from proxy.observing.tallies import Tallies
from proxy.observing.tally import Tally, total

_MINUTES = 60
_LABELLED_EVERY = 10
_MOST_ROWS = 8
_PERCENTILE = 0.95
# Requests from which on a share of them says something.
_WORTH_SHARING = 20
_MOST_FAILED_OPEN = 0.01


class Span(NamedTuple):
    """A span of time that figures are of; hours: this one and those before it."""

    name: str
    words: str
    hours: int


DAY = Span("24h", "last 24 hours", 24)
SPANS = (Span("1h", "hour so far", 1), DAY, Span("7d", "last 7 days", 7 * 24), Span("30d", "last 30 days", 30 * 24))


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What has happened in a span of time; None where it is not known.

    net, received: tokens. waits: requests that waited for a summary, of this process since it started; wait_p95:
    seconds that 19 of 20 of them took at most. cost, cost_of_summaries: US dollars at list price; saved: what the same
    requests would have cost more as they came, an estimate; unpriced: models without a price.
    """

    requests: int
    answered: int
    kept_alive: int
    passed_on: int
    failed_open: int
    received: int
    not_sent: int
    summaries: int
    net: int
    cache_share: float | None
    waits: int | None
    wait_p95: float | None
    cost: float | None
    cost_of_summaries: float | None
    saved: float | None
    unpriced: list[str]


class Minute(msgspec.Struct, frozen=True):
    """A minute of the last hour. at: when it began, in Unix seconds. received, sent: tokens."""

    at: int
    requests: int
    received: int
    sent: int


class Told(msgspec.Struct, frozen=True):
    """A compaction and why it was made."""

    event: CompactionEnded
    why: str


class Health(msgspec.Struct, frozen=True):
    """How the process is. level: the worst of what `words` tell."""

    level: str
    words: list[str]


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """since: when this replica started, in Unix seconds. minutes: all sixty of it, the newest last.

    span: that of the figures, by its name; is_whole: whether they are of all replicas, or of this one alone since the
    store does not answer.
    near, compactions: None for those who may see no sessions.
    """

    health: Health
    since: float
    span: str
    is_whole: bool
    figures: Figures
    minutes: list[Minute]
    near: list[Row] | None
    compactions: list[Told] | None
    advice: list[str]


def figures_of(sums: Mapping[tuple[str, str], Tally], tallies: Tallies, tenant: str | None, price: Prices) -> Figures:
    """Of one tenant, or of all. sums: of all replicas, by tenant and model; tallies: of this one."""
    found = [(model, tally) for (owner, model), tally in sums.items() if tenant in (None, owner)]
    tally = total(each for _, each in found)
    waits = tallies.histograms["summary_wait_seconds"]
    waited = sum(sum(each.counts) for each in waits.of.values())
    spent = spend_of(found, price)
    return Figures(
        requests=tally.requests,
        answered=tally.answered,
        kept_alive=tally.kept_alive,
        passed_on=tally.passed_on,
        failed_open=tally.failed_open,
        received=tally.received,
        not_sent=figures.not_sent(tally),
        summaries=figures.summaries(tally),
        net=figures.net(tally),
        cache_share=figures.cache_share(tally),
        waits=waited if tenant is None else None,
        wait_p95=percentile(waits.bounds, waits.of.values()) if tenant is None else None,
        cost=spent.cost,
        cost_of_summaries=spent.summaries,
        saved=spent.saved,
        unpriced=spent.unpriced,
    )


def percentile(bounds: Sequence[float], histograms: Iterable[Histogram]) -> float | None:
    """The bound below which 19 of 20 observations lie; None without any."""
    counts = [sum(column) for column in zip(*(each.counts for each in histograms), strict=True)]
    most = _PERCENTILE * sum(counts)
    seen = 0
    for bound, count in zip((*bounds, bounds[-1]), counts, strict=False):
        seen += count
        if seen and seen >= most:
            return bound
    return None


def minutes(found: Iterable[tuple[int, Tally]], now: float) -> list[Minute]:
    """All minutes of the last hour, quiet ones too."""
    known = dict(found)
    newest = int(now) // 60 * 60
    spans = range(newest - 60 * (_MINUTES - 1), newest + 60, 60)
    tallies = ((at, known.get(at) or Tally()) for at in spans)
    return [Minute(at, tally.requests, tally.received, tally.sent) for at, tally in tallies]


def labels(shown: Sequence[Minute]) -> list[str]:
    """What is written below the bars: every tenth minute."""
    told = [f"{datetime.fromtimestamp(each.at, UTC):%H:%M}" for each in shown]
    return [text if shown[at].at // 60 % _LABELLED_EVERY == 0 else "" for at, text in enumerate(told)]


def near(trails: Iterable[SessionTrail]) -> list[Row]:
    """Sessions near their window, the fullest first."""
    found = [listing.row_of(trail) for trail in trails if figures.is_near(trail.newest)]
    return sorted(found, key=lambda row: -(row.used or 0.0))[:_MOST_ROWS]


def told(events: Iterable[CompactionEnded]) -> list[Told]:
    """The newest compactions."""
    return [Told(event, why.compaction(event)) for event, _ in zip(events, range(_MOST_ROWS), strict=False)]


def advice(shown: Figures) -> Iterator[str]:
    """What an operator can do better, where a rule says so."""
    if shown.passed_on:
        yield (
            "Overflows reached clients. Look at the failing sessions: the window may be smaller than is believed, or"
            " the newest message alone too large."
        )
    if shown.requests >= _WORTH_SHARING and shown.failed_open > _MOST_FAILED_OPEN * shown.requests:
        yield "More than 1 % of the requests went out as they came after something of ours failed; the log says what."
    if shown.net < 0:
        yield "Summaries have cost more tokens than they saved so far: a higher soft_threshold makes fewer of them."
    if shown.unpriced and shown.cost is not None:
        yield f"No price is known for {', '.join(shown.unpriced[:5])}: cost leaves it out."
