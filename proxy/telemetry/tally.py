"""Sums over the requests of conversations, in all and by the hour."""

from bisect import bisect_left
from collections.abc import Callable, Iterable

import msgspec

from proxy.telemetry.events import SummarizerCalled
from proxy.telemetry.histograms import OTHER
from proxy.telemetry.history_entries import RequestEntry

HOUR = 3600
DAY_HOURS = 24
MOST_ROWS = 100
_DAYS = 2

Row = tuple[int, str, str]
"""Hours since 1970, tenant, model."""


class Tally(msgspec.Struct, gc=False, omit_defaults=True):
    """Sums over requests with a 2xx response. The first three are over all requests.

    failed_open:    sent unchanged after a fault of the proxy.
    kept_alive:     larger than the window and sent smaller, or refused for that before.
    passed_on:      overflows that reached the client.
    received, sent: prompt tokens as received and as sent, by the upstream's count if the calibration is known.
    unbilled:       responses without usage. The next five do not include them.
    cached_of:      those of `billed` whose upstream reports cached tokens.
    cache_written:  those that were written to caches. cache_written_long: for an hour.
    summary_in, summary_out: tokens of all calls of summarizers, including rejected ones.
    cost:           billionths of a US dollar, of responses and their prompts. cost_received: an estimate of the same
    for the unchanged requests. cost_summaries: of summarizers. All for models with a known price.
    ms_250 …:       requests that took at most so many milliseconds, and more than the previous bound. ms_more: longer.
    """

    requests: int = 0
    passed_on: int = 0
    failed_open: int = 0
    answered: int = 0
    kept_alive: int = 0
    received: int = 0
    sent: int = 0
    unbilled: int = 0
    billed: int = 0
    cached: int = 0
    cached_of: int = 0
    cache_written: int = 0
    output: int = 0
    summary_calls: int = 0
    summary_in: int = 0
    summary_out: int = 0
    cache_written_long: int = 0
    cost: int = 0
    cost_received: int = 0
    cost_summaries: int = 0
    ms_250: int = 0
    ms_500: int = 0
    ms_1000: int = 0
    ms_2000: int = 0
    ms_4000: int = 0
    ms_8000: int = 0
    ms_16000: int = 0
    ms_32000: int = 0
    ms_64000: int = 0
    ms_128000: int = 0
    ms_256000: int = 0
    ms_more: int = 0

    def add(self, other: "Tally") -> None:
        """Add another tally."""
        for field in self.__struct_fields__:
            setattr(self, field, getattr(self, field) + getattr(other, field))

    def add_requests(self, entries: Iterable[RequestEntry]) -> None:
        """Add requests of conversations. Locals are faster than fields, and every request passes here."""
        requests = passed_on = failed_open = kept_alive = received = sent = unbilled = billed = output = 0
        cached = cached_of = cache_written = cache_written_long = cost = cost_received = answered = 0
        latencies = [0] * len(LATENCIES)
        for entry in entries:
            requests += 1
            overflow, tokens_billed = entry.overflow, entry.billed
            tokens_received, tokens_sent = entry.received, entry.sent
            if overflow == "passed_on":
                passed_on += 1
            if entry.compaction == "failed-open":
                failed_open += 1
            if not entry.is_answered or tokens_received is None or tokens_sent is None:
                continue
            answered += 1
            received += tokens_received
            sent += tokens_sent
            latencies[bisect_left(LATENCY_BOUNDS, entry.ms)] += 1
            if overflow == "solved" or (
                entry.window is not None and tokens_received > entry.window and tokens_sent < tokens_received
            ):
                kept_alive += 1
            if tokens_billed is None:
                unbilled += 1
                continue
            billed += tokens_billed
            output += entry.output or 0
            if entry.usd is not None:
                cost += billionths(entry.usd)
                cost_received += billionths(entry.usd_received)
            cache_written += entry.cache_written or 0
            cache_written_long += entry.cache_written_long or 0
            if entry.cached is not None:
                cached += entry.cached
                cached_of += tokens_billed
        self.add(
            Tally(
                requests=requests, passed_on=passed_on, failed_open=failed_open, answered=answered,
                kept_alive=kept_alive, received=received, sent=sent, unbilled=unbilled, billed=billed, cached=cached,
                cached_of=cached_of, cache_written=cache_written, cache_written_long=cache_written_long, output=output,
                cost=cost, cost_received=cost_received, **dict(zip(LATENCIES, latencies, strict=True)),
            )
        )  # fmt: skip

    def take_call(self, event: SummarizerCalled) -> None:
        """Add a summarizer's call."""
        self.summary_calls += 1
        self.summary_in += event.tokens_in
        self.summary_out += event.tokens_out
        self.cost_summaries += billionths(event.usd)


LATENCIES = tuple(name for name in Tally.__struct_fields__ if name.startswith("ms_"))
LATENCY_BOUNDS = tuple(float(name.removeprefix("ms_")) for name in LATENCIES[:-1])


def billionths(usd: float | None) -> int:
    """Return billionths of a US dollar. Whole numbers have the same sum in any order."""
    return round(1e9 * (usd or 0.0))


def total(tallies: Iterable[Tally]) -> Tally:
    """Return the sum of tallies."""
    result = Tally()
    for tally in tallies:
        result.add(tally)
    return result


class Hours:
    """Sums by the hour. One instance per process.

    changed: days with sums that are not stored yet. day: of the last requested hour.
    """

    def __init__(self, clock: Callable[[], float], fold: Callable[[], None] = lambda: None) -> None:
        """Create empty sums. `clock` returns Unix seconds; `fold` adds pending requests to the rows."""
        self._clock = clock
        self._fold = fold
        self._open: dict[tuple[str, str], Tally] = {}
        self._hour = 0
        self.day = 0
        self._days: dict[int, dict[Row, Tally]] = {}
        self.changed: set[int] = set()

    @property
    def days(self) -> dict[int, dict[Row, Tally]]:
        """Return the rows by days since 1970."""
        self._fold()
        return self._days

    def row(self, tenant: str, model: str) -> Tally:
        """Return the row of this hour to add to. Of more than `MOST_ROWS` rows, the last is for all others."""
        hour = int(self._clock()) // HOUR
        if hour != self._hour:
            self._begin(hour)
        self.changed.add(self.day)
        rows = self._open
        if (tenant, model) not in rows and len(rows) >= MOST_ROWS - 1:
            tenant = model = OTHER
        tally = rows.get((tenant, model))
        if tally is None:
            tally = rows[tenant, model] = self._days[self.day][hour, tenant, model] = Tally()
        return tally

    def _begin(self, hour: int) -> None:
        """Begin an hour. After the clock was set back, an earlier hour continues."""
        self.day = day = hour // DAY_HOURS
        rows = self._days.setdefault(day, {})
        self._hour = hour
        self._open = {(tenant, model): tally for (at, tenant, model), tally in rows.items() if at == hour}
        for old in [known_day for known_day in self._days if known_day <= day - _DAYS]:
            del self._days[old]
            self.changed.discard(old)
