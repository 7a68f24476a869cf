"""The figures that are shown, each by its definition."""

from __future__ import annotations

import pytest

from proxy.telemetry import figures
from proxy.telemetry.history_entries import make_request_entry
from proxy.telemetry.tally import Tally, total
from tests.support.events import answered


def test_what_summaries_took_is_subtracted_and_the_net_may_be_negative() -> None:
    tally = Tally(received=10_000, sent=9_000, summary_in=4_000, summary_out=300)
    assert (figures.not_sent(tally), figures.summaries(tally), figures.net(tally)) == (1_000, 4_300, -3_300)


@pytest.mark.parametrize(
    ("tally", "share"),
    [(Tally(), None), (Tally(billed=500), None), (Tally(billed=900, cached_of=400, cached=100), 0.25)],
)
def test_the_cache_share_is_of_those_whose_upstream_tells_it(tally: Tally, share: float | None) -> None:
    assert figures.cache_share(tally) == share


@pytest.mark.parametrize(
    ("took", "median", "p95"),
    [
        ([], None, None),
        ([0.1], 0.125, 0.2375),
        ([0.25, 0.3], 0.25, 0.475),
        ([3.0] * 100, 3.0, 3.9),
        ([0.3] * 90 + [20.0] * 10, 0.25 + 0.25 * 50 / 90, 24.0),
        ([1_000.0], 256.0, 256.0),
    ],
)
def test_latency_lies_between_two_bounds_and_adds_up(
    took: list[float], median: float | None, p95: float | None
) -> None:
    """In any order, and of any process."""
    one, other = Tally(), Tally()
    for number, seconds in enumerate(took):
        event = answered(ms=1_000 * seconds)
        (one, other)[number % 2].add_requests([make_request_entry(event)])
    found = total([one, other])
    assert (figures.latency(found, 0.5), figures.latency(found, 0.95)) == (median, p95)
    refused = answered(status=400, ms=9_000.0)
    found.add_requests([make_request_entry(refused)])
    assert figures.latency(found, 0.95) == p95, "of what was answered alone"


def test_costs_are_in_dollars_and_what_was_saved_may_be_negative() -> None:
    tally = Tally(cost=3_000_000_000, cost_received=5_000_000_000, cost_summaries=500_000_000)
    assert (figures.cost_of_answers(tally), figures.cost_of_summaries(tally)) == (3.0, 0.5)
    assert (figures.cost_as_received(tally), figures.usd_saved(tally)) == (5.0, 1.5)
    assert figures.usd_saved(Tally(cost_summaries=500_000_000)) == -0.5


@pytest.mark.parametrize(
    ("changed", "fill", "is_near"),
    [
        ({"tokens_sent": 700, "usable": 1_000}, 0.7, False),
        ({"tokens_sent": 900, "usable": 1_000}, 0.9, True),
        ({"tokens_sent": 600, "usable": 1_000, "calibration": 1.5}, 0.9, True),
        ({"usable": None}, None, False),
        ({"tokens_sent": None}, None, False),
    ],
)
def test_near_the_window_is_by_what_a_prompt_may_take(
    changed: dict[str, object], fill: float | None, is_near: bool
) -> None:
    assert figures.fill(answered(**changed)) == fill
    assert figures.is_near(answered(**changed)) is is_near
