"""What an operator sees first: whether it is well, what it has done, and who is near the window."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import ceil
from typing import NamedTuple

import msgspec

from proxy.admin import chart, why, words
from proxy.admin.health import Health
from proxy.admin.sessions import listing
from proxy.admin.sessions.details import with_stored
from proxy.admin.sessions.listing import SessionRow
from proxy.admin.spend import Prices, spend_of
from proxy.admin.totals import totals_of
from proxy.telemetry import figures
from proxy.telemetry.events import CompactionEnded
from proxy.telemetry.histograms import Histogram
from proxy.telemetry.session_history import SessionHistory
from proxy.telemetry.tallies import Tallies
from proxy.telemetry.tally import HOUR, Tally, total

_MINUTES = 60
_LABELLED_EVERY = 10
_MOST_LABELS = 8
# Of an axis, at its top.
_LEAST_USD = 0.0001
_LEAST_SECONDS = 0.1
MOST_ROWS = 8
_PERCENTILE = 0.95
# Requests from which on a share of them says something.
_WORTH_SHARING = 20
_MOST_FAILED_OPEN = 0.01


class TimeSpan(NamedTuple):
    """A span of time that figures are of; hours: this one and those before it. step: hours of each of its parts."""

    name: str
    words: str
    hours: int
    step: int


DAY = TimeSpan("24h", "last 24 hours", 24, 1)
SPANS = (
    TimeSpan("1h", "hour so far", 1, 1),
    DAY,
    TimeSpan("7d", "last 7 days", 7 * 24, 24),
    TimeSpan("30d", "last 30 days", 30 * 24, 24),
)


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


class SpanPart(msgspec.Struct, frozen=True):
    """An hour or a day of the span. at: when it began, in Unix seconds. received, sent: tokens.

    net: tokens that were not sent, less what summaries took. kept_alive: requests that would have been refused as they
    came. failed: requests without an answer of 2xx, or of a shape that is not understood. cost: US dollars, None where
    no price is known; cost_of_summaries: of it. saved: what the same requests would have cost more as they came, an
    estimate. latency_p50, latency_p95: seconds in which half and 19 of 20 of the answered requests had ended, by
    estimate; None without any.
    """

    at: int
    requests: int
    received: int
    sent: int
    failed: int
    passed_on: int
    cost: float | None
    cost_of_summaries: float | None
    saved: float | None
    latency_p50: float | None = None
    latency_p95: float | None = None
    net: int = 0
    kept_alive: int = 0


class CompactionNote(msgspec.Struct, frozen=True):
    """A compaction and why it was made."""

    event: CompactionEnded
    why: str


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """since: when this replica started, in Unix seconds. minutes: all sixty of the last hour, the newest last; parts:
    all hours or days of the span, the first and the last one as far as they are in it.

    span: that of the figures, by its name; is_whole: whether they are of all replicas, or of this one alone since the
    store does not answer.
    near, compactions: None for those who may see no sessions.
    """

    health: Health
    since: float
    span: str
    is_whole: bool
    figures: Figures
    parts: list[SpanPart]
    minutes: list[Minute]
    near: list[SessionRow] | None
    compactions: list[CompactionNote] | None
    advice: list[str]


def figures_of(sums: Mapping[tuple[str, str], Tally], tallies: Tallies, tenant: str | None, price: Prices) -> Figures:
    """Of one tenant, or of all. sums: of all replicas, by tenant and model; tallies: of this one."""
    found = [(model, tally) for (owner, model), tally in sums.items() if tenant in (None, owner)]
    tally = total(each for _, each in found)
    tallies.fold()
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


def parts(
    found: Mapping[int, Mapping[tuple[str, str], Tally]], tenant: str | None, span: TimeSpan, now: float, price: Prices
) -> list[SpanPart]:
    """All hours or days of a span, quiet ones too. found: sums by hours since 1970."""
    newest = int(now) // HOUR
    oldest = newest - span.hours + 1
    return [
        _part(at * HOUR, found.get(at, {}), tenant, price)
        for at in range(oldest - oldest % span.step, newest + 1, span.step)
    ]


def _part(at: int, sums: Mapping[tuple[str, str], Tally], tenant: str | None, price: Prices) -> SpanPart:
    found = [(model, tally) for (owner, model), tally in sums.items() if tenant in (None, owner)]
    used, tally = totals_of("", found, price), total(each for _, each in found)
    return SpanPart(
        at=at,
        requests=used.requests,
        received=used.received,
        sent=used.sent,
        failed=used.failed,
        passed_on=used.passed_on,
        cost=used.cost,
        cost_of_summaries=used.cost_of_summaries,
        saved=used.saved,
        latency_p50=figures.latency(tally, 0.5),
        latency_p95=figures.latency(tally, _PERCENTILE),
        net=used.net,
        kept_alive=used.kept_alive,
    )


class Series(NamedTuple):
    """Two numbers for each stretch of time, as bars. titles: what is told of each when it is pointed at. label: what
    all of it is, for those who do not see it."""

    drawn: list[chart.Bars]
    titles: list[str]
    label: str


def by_minute(shown: Sequence[Minute]) -> Series:
    labels = [_clock(each.at) if each.at // 60 % _LABELLED_EVERY == 0 else "" for each in shown]
    titles = [f"{_clock(each.at)}: {_tokens(each)}" for each in shown]
    received, sent = sum(each.received for each in shown), sum(each.sent for each in shown)
    told = f"{words.exact(received)} received, {words.exact(sent)} sent"
    drawn = _drawn([(each.received, each.sent) for each in shown], labels, chart.LOW)
    return Series(drawn, titles, f"Tokens received and sent in each minute of the last hour: {told}")


def by_part(shown: Sequence[SpanPart], span: TimeSpan) -> dict[str, Series]:
    """Tokens, failures, money and latency over the span."""
    each_one, named = ("hour", _clock) if span.step == 1 else ("day", _day)
    every = max(1, ceil(len(shown) / _MOST_LABELS))
    labels = [named(each.at) if at % every == 0 else "" for at, each in enumerate(shown)]
    money = [(each.cost or 0.0, each.cost_of_summaries or 0.0) for each in shown]
    took = [(each.latency_p95 or 0.0, each.latency_p50 or 0.0) for each in shown]
    slowest = [each.latency_p95 for each in shown if each.latency_p95 is not None]
    failed, passed_on = sum(each.failed for each in shown), sum(each.passed_on for each in shown)
    received, sent = sum(each.received for each in shown), sum(each.sent for each in shown)
    return {
        "tokens": Series(
            _drawn([(each.received, each.sent) for each in shown], labels, chart.LOW),
            [f"{named(each.at)}: {_tokens(each)}" for each in shown],
            f"Tokens by the {each_one}: {words.exact(received)} received, {words.exact(sent)} sent",
        ),
        "failures": Series(
            _drawn([(each.failed, each.passed_on) for each in shown], labels, chart.HALF),
            [f"{named(each.at)}: {_failures(each)}" for each in shown],
            f"Failed requests by the {each_one}: {words.exact(failed)}, {words.plural(passed_on, 'overflow')} of them",
        ),
        "money": Series(
            _drawn(money, labels, chart.HALF, _LEAST_USD, lambda amount: f"${words.round_number(amount)}"),
            [f"{named(each.at)}: {_money(each)}" for each in shown],
            f"Spend by the {each_one}: {words.usd(sum(cost for cost, _ in money))}",
        ),
        "latency": Series(
            _drawn(took, labels, chart.LOW, _LEAST_SECONDS, lambda seconds: f"{words.round_number(seconds)} s"),
            [f"{named(each.at)}: {_latency(each)}" for each in shown],
            f"Latency by the {each_one}: p95 of {words.span(max(slowest, default=None))} at most",
        ),
    }


def _drawn(
    spans: Sequence[tuple[float, float]],
    labels: Sequence[str],
    wide: chart.PlotArea,
    least: float = 1.0,
    written: Callable[[float], str] = words.round_number,
) -> list[chart.Bars]:
    return [chart.bars(spans, labels, frame, least, written) for frame in (wide, chart.NARROW)]


def _tokens(each: Minute | SpanPart) -> str:
    told = f"{words.exact(each.received)} received, {words.exact(each.sent)} sent"
    return f"{told}, {words.plural(each.requests, 'request')}"


def _failures(each: SpanPart) -> str:
    told = f"{words.exact(each.failed)} of {words.plural(each.requests, 'request')} failed"
    return f"{told}, {words.plural(each.passed_on, 'overflow')} passed on"


def _money(each: SpanPart) -> str:
    told = f"{words.usd(each.cost)}, {words.usd(each.cost_of_summaries)} of it for summaries"
    return told if each.saved is None else f"{told}, {words.usd(each.saved)} saved by estimate"


def _latency(each: SpanPart) -> str:
    told = f"p95 {words.span(each.latency_p95)}, half within {words.span(each.latency_p50)}"
    return f"{told}, {words.plural(each.requests - each.failed, 'answered request')}"


def _clock(at: int) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%H:%M}"


def _day(at: int) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%d %b}".lstrip("0")


def near(histories: Iterable[SessionHistory]) -> list[SessionRow]:
    """Sessions near their window, the fullest first."""
    found = [listing.row_of(history) for history in histories if figures.is_near(history.newest)]
    return sorted(found, key=lambda row: -(row.used or 0.0))[:MOST_ROWS]


def newest_compactions(seen: Iterable[CompactionEnded], stored: Sequence[CompactionEnded]) -> list[CompactionNote]:
    """Return the newest compactions of those that this process saw, and those that the store has."""
    return [CompactionNote(event, why.compaction(event)) for event in with_stored(seen, stored)[:MOST_ROWS]]


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
