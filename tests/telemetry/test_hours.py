"""Sums by the hour: bounded, of two days, and right where a clock is set back."""

from __future__ import annotations

from proxy.telemetry.tally import DAY_HOURS, HOUR, MOST_ROWS, Hours, Tally, total
from tests.support.clock import Clock

NOON = 1_800_014_400.0  # a full hour
HOURS = int(NOON) // HOUR
DAY = HOURS // DAY_HOURS


def test_what_is_added_is_of_its_hour_tenant_and_model() -> None:
    clock = Clock(NOON)
    hours = Hours(clock)
    for at, tenant in ((0, "a"), (HOUR - 1, "a"), (HOUR, "a"), (HOUR, "b")):
        clock.now = NOON + at
        hours.row(tenant, "m").requests += 1
    assert hours.changed == {DAY}
    assert hours.days == {
        DAY: {
            (HOURS, "a", "m"): Tally(requests=2),
            (HOURS + 1, "a", "m"): Tally(requests=1),
            (HOURS + 1, "b", "m"): Tally(requests=1),
        }
    }


def test_an_hour_that_a_clock_returns_to_goes_on() -> None:
    clock = Clock(NOON)
    hours = Hours(clock)
    for at in (0, HOUR, 0, HOUR):
        clock.now = NOON + at
        hours.row("a", "m").requests += 1
    assert [tally.requests for tally in hours.days[DAY].values()] == [2, 2]


def test_the_day_before_yesterday_is_let_go_of() -> None:
    clock = Clock(NOON)
    hours = Hours(clock)
    for _ in range(4):
        hours.row("a", "m").requests += 1
        clock.now += DAY_HOURS * HOUR
    assert (sorted(hours.days), hours.changed) == ([DAY + 2, DAY + 3], {DAY + 2, DAY + 3})


def test_what_has_no_row_of_its_own_is_counted_all_the_same() -> None:
    hours = Hours(Clock(NOON))
    for number in range(3 * MOST_ROWS):
        hours.row("a", f"model {number}").requests += 1
    rows = hours.days[DAY]
    assert len(rows) == MOST_ROWS
    assert rows[HOURS, "other", "other"].requests == 2 * MOST_ROWS + 1
    assert total(rows.values()).requests == 3 * MOST_ROWS
