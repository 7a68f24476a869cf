"""The overview: health, figures, and sessions near their window."""

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
# The minimum of an axis.
_LEAST_USD = 0.0001
_LEAST_SECONDS = 0.1
MOST_ROWS = 8
_PERCENTILE = 0.95
# The minimum number of requests for a meaningful share.
_WORTH_SHARING = 20
_MOST_FAILED_OPEN = 0.01


class TimeSpan(NamedTuple):
    """A span of time for figures.

    hours: including the current hour. step: hours per part.
    """

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
    """The figures of a span of time. None means unknown.

    net, received: tokens. waits: requests that waited for a summary, of this process since its start. wait_p95: the
    maximum seconds of 19 in 20 of them. cost, cost_of_summaries: US dollars at list price. saved: estimated difference
    to the cost of the unchanged requests. unpriced: models without a price.
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
    """A minute of the last hour.

    at: its start, in Unix seconds. received, sent: tokens.
    """

    at: int
    requests: int
    received: int
    sent: int


class SpanPart(msgspec.Struct, frozen=True):
    """An hour or a day of the span.

    at: its start, in Unix seconds. received, sent: tokens. net: tokens that were not sent, minus the tokens of
    summaries. kept_alive: requests that would have been refused unchanged. failed: requests without a 2xx response, or
    with an unknown format. cost: US dollars; None if no price is known. cost_of_summaries: part of it. saved: estimated
    difference to the cost of the unchanged requests. latency_p50, latency_p95: estimated seconds of the answered
    requests; None without any.
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
    """A compaction and its reason."""

    event: CompactionEnded
    why: str


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The overview.

    since: the start of this replica, in Unix seconds. minutes: the sixty of the last hour, the newest last. parts: the
    hours or days of the span, the first and the last one only as far as they are in it.
    span: the name of the figures' span. is_whole: True if they are of all replicas, False if only of this one.
    near, compactions: None for visitors who may not see sessions.
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
    """Return the figures of one tenant, or of all.

    sums: of all replicas, by tenant and model. tallies: of this replica.
    """
    tallies_by_model = [(model, tally) for (owner, model), tally in sums.items() if tenant in (None, owner)]
    tally = total(each for _, each in tallies_by_model)
    tallies.fold()
    waits = tallies.histograms["summary_wait_seconds"]
    wait_count = sum(sum(each.counts) for each in waits.of.values())
    spent = spend_of(tallies_by_model, price)
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
        waits=wait_count if tenant is None else None,
        wait_p95=percentile(waits.bounds, waits.of.values()) if tenant is None else None,
        cost=spent.cost,
        cost_of_summaries=spent.summaries,
        saved=spent.saved,
        unpriced=spent.unpriced,
    )


def percentile(bounds: Sequence[float], histograms: Iterable[Histogram]) -> float | None:
    """Return the bound of 19 in 20 observations; None without any."""
    counts = [sum(column) for column in zip(*(each.counts for each in histograms), strict=True)]
    target = _PERCENTILE * sum(counts)
    running_total = 0
    for bound, count in zip((*bounds, bounds[-1]), counts, strict=False):
        running_total += count
        if running_total and running_total >= target:
            return bound
    return None


def minutes(tallies_by_minute: Iterable[tuple[int, Tally]], now: float) -> list[Minute]:
    """Return all minutes of the last hour, including those without requests."""
    minute_tallies = dict(tallies_by_minute)
    newest = int(now) // 60 * 60
    spans = range(newest - 60 * (_MINUTES - 1), newest + 60, 60)
    tallies = ((at, minute_tallies.get(at) or Tally()) for at in spans)
    return [Minute(at, tally.requests, tally.received, tally.sent) for at, tally in tallies]


def parts(
    sums_by_hour: Mapping[int, Mapping[tuple[str, str], Tally]],
    tenant: str | None,
    span: TimeSpan,
    now: float,
    price: Prices,
) -> list[SpanPart]:
    """Return all hours or days of a span, including those without requests.

    sums_by_hour: by hours since 1970.
    """
    newest = int(now) // HOUR
    oldest = newest - span.hours + 1
    return [
        _part(at * HOUR, sums_by_hour.get(at, {}), tenant, price)
        for at in range(oldest - oldest % span.step, newest + 1, span.step)
    ]


def _part(at: int, sums: Mapping[tuple[str, str], Tally], tenant: str | None, price: Prices) -> SpanPart:
    tallies_by_model = [(model, tally) for (owner, model), tally in sums.items() if tenant in (None, owner)]
    used, tally = totals_of("", tallies_by_model, price), total(each for _, each in tallies_by_model)
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
    """Two numbers per stretch of time, as bars.

    titles: their tooltips. label: the text for screen readers.
    """

    drawn: list[chart.Bars]
    titles: list[str]
    label: str


def by_minute(shown: Sequence[Minute]) -> Series:
    """Return the tokens of each minute as bars."""
    labels = [_clock(each.at) if each.at // 60 % _LABELLED_EVERY == 0 else "" for each in shown]
    titles = [f"{_clock(each.at)}: {_tokens(each)}" for each in shown]
    received, sent = sum(each.received for each in shown), sum(each.sent for each in shown)
    total_text = f"{words.exact(received)} received, {words.exact(sent)} sent"
    drawn = _drawn([(each.received, each.sent) for each in shown], labels, chart.LOW)
    return Series(drawn, titles, f"Tokens received and sent in each minute of the last hour: {total_text}")


def by_part(shown: Sequence[SpanPart], span: TimeSpan) -> dict[str, Series]:
    """Return tokens, failures, cost and latency over the span."""
    each_one, format_time = ("hour", _clock) if span.step == 1 else ("day", _day)
    every = max(1, ceil(len(shown) / _MOST_LABELS))
    labels = [format_time(each.at) if at % every == 0 else "" for at, each in enumerate(shown)]
    money = [(each.cost or 0.0, each.cost_of_summaries or 0.0) for each in shown]
    took = [(each.latency_p95 or 0.0, each.latency_p50 or 0.0) for each in shown]
    slowest = [each.latency_p95 for each in shown if each.latency_p95 is not None]
    failed, passed_on = sum(each.failed for each in shown), sum(each.passed_on for each in shown)
    received, sent = sum(each.received for each in shown), sum(each.sent for each in shown)
    return {
        "tokens": Series(
            _drawn([(each.received, each.sent) for each in shown], labels, chart.LOW),
            [f"{format_time(each.at)}: {_tokens(each)}" for each in shown],
            f"Tokens by the {each_one}: {words.exact(received)} received, {words.exact(sent)} sent",
        ),
        "failures": Series(
            _drawn([(each.failed, each.passed_on) for each in shown], labels, chart.HALF),
            [f"{format_time(each.at)}: {_failures(each)}" for each in shown],
            f"Failed requests by the {each_one}: {words.exact(failed)}, {words.plural(passed_on, 'overflow')} of them",
        ),
        "money": Series(
            _drawn(money, labels, chart.HALF, _LEAST_USD, lambda amount: f"${words.round_number(amount)}"),
            [f"{format_time(each.at)}: {_money(each)}" for each in shown],
            f"Spend by the {each_one}: {words.usd(sum(cost for cost, _ in money))}",
        ),
        "latency": Series(
            _drawn(took, labels, chart.LOW, _LEAST_SECONDS, lambda seconds: f"{words.round_number(seconds)} s"),
            [f"{format_time(each.at)}: {_latency(each)}" for each in shown],
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
    text = f"{words.exact(each.received)} received, {words.exact(each.sent)} sent"
    return f"{text}, {words.plural(each.requests, 'request')}"


def _failures(each: SpanPart) -> str:
    text = f"{words.exact(each.failed)} of {words.plural(each.requests, 'request')} failed"
    return f"{text}, {words.plural(each.passed_on, 'overflow error')} to clients"


def _money(each: SpanPart) -> str:
    text = f"{words.usd(each.cost)}, {words.usd(each.cost_of_summaries)} of it for summaries"
    return text if each.saved is None else f"{text}, {words.usd(each.saved)} saved by estimate"


def _latency(each: SpanPart) -> str:
    text = f"p95 {words.span(each.latency_p95)}, half within {words.span(each.latency_p50)}"
    return f"{text}, {words.plural(each.requests - each.failed, 'answered request')}"


def _clock(at: int) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%H:%M}"


def _day(at: int) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%d %b}".lstrip("0")


def near(histories: Iterable[SessionHistory]) -> list[SessionRow]:
    """Return the sessions near their window, the fullest first."""
    rows = [listing.row_of(history) for history in histories if figures.is_near(history.newest)]
    return sorted(rows, key=lambda row: -(row.used or 0.0))[:MOST_ROWS]


def newest_compactions(in_memory: Iterable[CompactionEnded], stored: Sequence[CompactionEnded]) -> list[CompactionNote]:
    """Return the newest compactions of those that this process made, and those in the store."""
    return [CompactionNote(event, why.compaction(event)) for event in with_stored(in_memory, stored)[:MOST_ROWS]]


def advice(shown: Figures) -> Iterator[str]:
    """Yield what an operator can improve."""
    if shown.passed_on:
        yield (
            "Clients got overflow errors. Check the failing sessions: the window may be smaller than assumed, or"
            " the newest message too large."
        )
    if shown.requests >= _WORTH_SHARING and shown.failed_open > _MOST_FAILED_OPEN * shown.requests:
        yield "More than 1 % of the requests were sent unchanged after a fault of the proxy; the log has the reason."
    if shown.net < 0:
        yield "So far summaries took more tokens than they saved: a higher soft_threshold makes fewer of them."
    if shown.unpriced and shown.cost is not None:
        yield f"No price is known for {', '.join(shown.unpriced[:5])}: the cost does not include it."
