"""The figures that are seen first, with what they are of."""

from __future__ import annotations

import pytest

from policies.price import Price
from proxy.admin import overview, words
from proxy.telemetry.histograms import Histograms
from proxy.telemetry.pricing import Pricing
from proxy.telemetry.tallies import Tallies
from proxy.telemetry.tally import Tally
from tests.support.events import called
from tests.support.session_events import AT, compacted, requested

PRICE = Price(prompt=1e-6, completion=1e-5, cached=1e-7, written=1e-6, written_long=1e-6)


def folded(*events: object) -> Tallies:
    tallies = Tallies(lambda: AT)
    for event in events:
        tallies(event)  # type: ignore[arg-type]
    return tallies


def shown(*events: object, tenant: str | None = None) -> overview.Figures:
    prices = {"m": PRICE, "gpt-4o": PRICE}
    tallies = Tallies(lambda: AT)
    priced = Pricing(prices.get, tallies)
    for event in events:
        priced(event)  # type: ignore[arg-type]
    sums = {(owner, model): tally for rows in tallies.hours.days.values() for (_, owner, model), tally in rows.items()}
    return overview.figures_of(sums, tallies, tenant, prices.get)


def test_figures_are_those_of_the_tallies() -> None:
    found = shown(
        requested(tokens_received=9_000, tokens_sent=3_000, billed=3_000, cached=2_000, output=100, wait_ms=700.0),
        requested(status=400, overflow="passed_on"),
        requested(compaction="failed-open", reason="internal_error"),
        called(tenant="default", tokens_in=4_000, tokens_out=300),
    )
    assert (found.requests, found.answered, found.kept_alive, found.passed_on, found.failed_open) == (3, 2, 1, 1, 1)
    assert (found.not_sent, found.summaries, found.net) == (6_000, 4_300, 1_700)
    assert found.cache_share == pytest.approx(2 / 3)
    assert (found.waits, found.wait_p95) == (1, 1.0)
    assert found.cost_of_summaries == pytest.approx(0.007)
    assert found.cost == pytest.approx(0.007 + 0.001 + 0.0002 + 0.001)
    assert found.saved == pytest.approx(9_000e-6 + 0.001 + 3_000e-6 + 0.001 - found.cost, abs=0.01)
    assert found.unpriced == []


def test_what_is_not_known_stays_unknown() -> None:
    found = shown(requested(model="unheard-of"))
    assert (found.cache_share, found.wait_p95, found.cost) == (None, None, None)
    assert found.unpriced == ["unheard-of"]


def test_a_tenant_is_shown_its_own_figures_alone() -> None:
    events = [requested(), requested(tenant="acme"), requested(tenant="acme", compaction="failed-open")]
    found = shown(*events, tenant="acme")
    assert (found.requests, found.failed_open, found.waits) == (2, 1, None)


@pytest.mark.parametrize(
    ("seconds", "percentile"),
    [([], None), ([0.1], 0.2), ([0.1] * 19 + [3.0], 0.2), ([0.1] * 18 + [3.0] * 2, 5.0), ([9.0], 5.0)],
)
def test_of_a_percentile_the_bound_is_known(seconds: list[float], percentile: float | None) -> None:
    histograms = Histograms((0.2, 5.0), 9)
    for value in seconds:
        histograms.observe(("x",), value)
    assert overview.percentile(histograms.bounds, histograms.of.values()) == percentile


def test_the_last_hour_has_sixty_minutes_the_quiet_ones_too() -> None:
    found = overview.minutes([(int(AT) - 120, Tally(requests=2, received=50, sent=20))], AT)
    assert (len(found), found[-1].at, found[-1].requests) == (60, AT, 0)
    assert found[-3] == overview.Minute(int(AT) - 120, 2, 50, 20)
    drawn = overview.by_minute(found)
    assert [tick.text for tick in drawn.drawn[0].across] == ["07:10", "07:20", "07:30", "07:40", "07:50", "08:00"]
    assert drawn.titles[-3] == "07:58: 50 received, 20 sent, 2 requests"
    assert drawn.label.endswith("50 received, 20 sent")


HOUR = int(AT) // 3600
SUMS = {
    HOUR: {
        ("a", "m"): Tally(5, answered=3, passed_on=1, received=90, sent=40, cost=4_000_000, ms_4000=3),
        ("b", "x"): Tally(2),
    },
    HOUR - 30: {("a", "m"): Tally(4, answered=4, cost=1_000_000, cost_summaries=1_000_000)},
}


@pytest.mark.parametrize(
    ("name", "number", "begins"), [("1h", 1, "08:00"), ("24h", 24, "09:00"), ("7d", 8, "00:00"), ("30d", 31, "00:00")]
)
def test_a_span_has_all_its_hours_or_days_the_quiet_ones_too(name: str, number: int, begins: str) -> None:
    span = next(each for each in overview.SPANS if each.name == name)
    by_step = {at - at % span.step: rows for at, rows in SUMS.items()}
    found = overview.parts(by_step, None, span, AT, {"m": PRICE}.get)
    assert (len(found), words.clock(found[0].at)[:5]) == (number, begins)
    assert (found[-1].requests, found[-1].failed, found[-1].passed_on, found[-1].cost) == (7, 4, 1, 0.004)
    (other,) = overview.parts({HOUR: SUMS[HOUR]}, "b", overview.SPANS[0], AT, {"m": PRICE}.get)
    assert (other.requests, other.cost) == (2, None)


def test_a_span_is_drawn_as_tokens_failures_money_and_latency() -> None:
    span = overview.SPANS[2]
    shown = overview.parts({at - at % 24: rows for at, rows in SUMS.items()}, None, span, AT, {"m": PRICE}.get)
    drawn = overview.by_part(shown, span)
    assert drawn["tokens"].titles[-1] == "15 Jan: 90 received, 40 sent, 7 requests"
    assert drawn["failures"].titles[-1] == "15 Jan: 4 of 7 requests failed, 1 overflow error to clients"
    assert drawn["failures"].label == "Failed requests by the day: 4, 1 overflow of them"
    assert drawn["money"].titles[-1] == "15 Jan: $0.004, $0.00 of it for summaries, −$0.004 saved by estimate"
    assert drawn["latency"].titles[-1] == "15 Jan: p95 3.9 s, half within 3 s, 3 answered requests"
    assert drawn["latency"].label == "Latency by the day: p95 of 3.9 s at most"
    assert [tick.text for tick in drawn["latency"].drawn[0].up] == ["0 s", "1 s", "2 s", "3 s", "4 s"]
    wide, narrow = drawn["money"].drawn
    assert [tick.text for tick in wide.up] == ["$0", "$0.001", "$0.002", "$0.003", "$0.004"]
    assert [tick.text for tick in narrow.across] == [
        "8 Jan",
        "9 Jan",
        "10 Jan",
        "11 Jan",
        "12 Jan",
        "13 Jan",
        "14 Jan",
        "15 Jan",
    ]


def test_the_newest_compactions_are_told_and_no_more_than_fit() -> None:
    told = overview.newest_compactions((compacted(digest=f"{number:064x}") for number in range(100)), [])
    assert len(told) == 8
    assert told[0].why.startswith("At 08:00:00 the upstream reported")


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([requested(status=400, overflow="passed_on")], "Clients got overflow errors"),
        ([requested(compaction="failed-open")] * 20, "More than 1 %"),
        ([requested(), called(tenant="default")], "more tokens than they saved"),
        ([requested(), requested(model="unheard-of")], "No price is known for unheard-of"),
        ([requested()] * 30, None),
    ],
)
def test_advice_is_given_where_a_rule_says_so(events: list[object], words: str | None) -> None:
    found = [*overview.advice(shown(*events))]
    assert len(found) == (words is not None)
    assert all((words or "") in text for text in found)
