"""Events as numbers: what is summed, under which names, and how much of it there may be."""

from __future__ import annotations

import pytest

from proxy.telemetry import tallies as module
from proxy.telemetry.events import PromptBilled, RequestEnded, SummarizerCalled, note
from proxy.telemetry.tallies import MOST_FURTHER, MOST_HISTOGRAMS, MOST_SETS, Tallies
from proxy.telemetry.tally import Tally
from tests.support.clock import Clock
from tests.support.events import answered, called, compacted

SENT = {"upstream": "main", "model": "gpt-4o"}
KEY = ("acme", "main", "gpt-4o")


def folded(*told: object, clock: Clock | None = None) -> Tallies:
    tallies = Tallies(clock or Clock(1_000_000.0))
    for event in told:
        tallies(event)  # type: ignore[arg-type]
    tallies.fold()
    return tallies


@pytest.mark.parametrize(
    ("event", "tally"),
    [
        (answered(), Tally(1, answered=1, ms_250=1, received=900, sent=400, billed=410, output=20)),
        (answered(calibration=1.5, window=1_000), Tally(1, answered=1, ms_250=1, received=1350, sent=600, billed=410,
                                                        output=20, kept_alive=1)),
        (answered(window=899), Tally(1, answered=1, ms_250=1, received=900, sent=400, billed=410, output=20,
                                     kept_alive=1)),
        (answered(window=900), Tally(1, answered=1, ms_250=1, received=900, sent=400, billed=410, output=20)),
        (answered(window=None, overflow="solved"), Tally(1, answered=1, ms_250=1, received=900, sent=400, billed=410,
                                                         output=20, kept_alive=1)),
        (answered(window=899, status=429), Tally(requests=1)),
        (answered(status=400, overflow="passed_on"), Tally(requests=1, passed_on=1)),
        (answered(billed=None, output=None), Tally(1, answered=1, ms_250=1, received=900, sent=400, unbilled=1)),
        (answered(cached=0), Tally(1, answered=1, ms_250=1, received=900, sent=400, billed=410, output=20,
                                   cached_of=410)),
        (answered(cached=300, cache_written=50), Tally(1, answered=1, ms_250=1, received=900, sent=400, billed=410,
                                                       output=20, cached=300, cached_of=410, cache_written=50)),
        (called(), Tally(summary_calls=1, summary_in=700, summary_out=60)),
    ],
)  # fmt: skip
def test_what_an_event_adds(event: RequestEnded | SummarizerCalled, tally: Tally) -> None:
    tallies = folded(answered(), event)
    tally.add(Tally(1, answered=1, ms_250=1, received=900, sent=400, billed=410, output=20))
    assert tallies.sets == {KEY: tally}
    assert tallies.minutes("acme") == [(999_960, tally)]


def test_what_is_passed_on_unread_is_counted_and_nothing_is_summed_of_it() -> None:
    tallies = folded(answered(wire="relay", model=None))
    assert tallies.sets == {}
    assert tallies.counts.of["requests"] == {("acme", "main", "", "relay", "complete", "2xx"): 1}


def test_a_model_has_a_name_once_it_has_answered_there() -> None:
    tallies = folded(
        answered(model="gpt-4o", status=500),
        answered(model=None, status=404),
        answered(model="gpt-4o", upstream="other"),
        answered(model="gpt-4o", status=500),
        answered(model="gpt-4o"),
        answered(model="gpt-4o", status=500),
    )
    assert {key: tally.requests for key, tally in tallies.sets.items()} == {
        ("acme", "main", "other"): 3,
        ("acme", "other", "gpt-4o"): 1,
        ("acme", "main", "gpt-4o"): 2,
    }


def test_names_that_clients_make_up_are_bounded_everywhere() -> None:
    tallies = folded()
    for number in range(3 * MOST_FURTHER):
        tallies(answered(model=f"m{number}", cached=1))
        tallies(compacted(for_model=f"m{number}"))
        tallies(called(model=f"s{number}"))
        tallies(PromptBilled("acme", "main", f"m{number}", "s", 2_000, 900, cut_off=True))
    assert len(tallies.sets) <= MOST_SETS + 1
    assert sum(map(len, tallies.counts.of.values())) <= MOST_FURTHER + len(tallies.counts.of)
    assert all(len(each.of) <= MOST_HISTOGRAMS + 1 for each in tallies.histograms.values())
    assert len(tallies.windows) <= MOST_SETS
    (minute,) = tallies._minutes.values()
    assert len(minute) <= module._MOST_ROWS + 1
    total = sum(tally.requests for _, tally in tallies.of())
    assert total == 3 * MOST_FURTHER, "what has no name of its own is counted all the same"


def test_an_hour_of_minutes_is_kept_and_not_one_more() -> None:
    clock = Clock(6_000.0)
    tallies = folded(clock=clock)
    for _ in range(200):
        tallies(answered())
        clock.now += 60
    clock.now -= 60
    assert len(tallies._minutes) == 60
    minutes = tallies.minutes()
    assert [begun for begun, _ in minutes] == list(range(int(clock.now) - 59 * 60, int(clock.now) + 1, 60))
    clock.now += 1_800
    assert len(tallies.minutes()) == 30
    assert tallies.minutes("nobody's")[0][1] == Tally()


def test_reasons_with_numbers_in_them_are_one() -> None:
    tallies = folded(*(answered(compaction="shadow", reason=f"would_compact_{n}_messages") for n in range(50)))
    assert tallies.counts.of["outcomes"] == {("acme", "gpt-4o", "shadow", "would_compact"): 50}


@pytest.mark.parametrize(
    ("event", "name", "labels"),
    [
        (answered(cause="dns", status=502, attempts=1), "upstream_failures", ("main", "dns")),
        (answered(code="server_overloaded", status=503), "refusals", ("server_overloaded",)),
        (answered(overflow="solved"), "overflows", ("main", "gpt-4o", "solved")),
        (compacted(), "compactions", ("acme", "other", "proactive", "L0", "single")),
        (called(result="invalid"), "summarizer_calls", ("main", "gpt-4o", "invalid")),
        (called(result="timeout"), "summarizer_calls", ("main", "other", "timeout")),
        (answered(restored=1), "results", ("main", "gpt-4o", "restored")),
        (answered(unresolved=1), "results", ("main", "gpt-4o", "unresolved")),
        (answered(shortened=1, shortened_tokens=99), "results", ("main", "gpt-4o", "shortened")),
        (note("config_refused"), "config_reloads", ("failed",)),
        (note("copy_refused", "acme", **SENT, status=400, words="no"), "copies_refused", ("acme", "main", "other")),
        (note("thinking_removed", "acme", **SENT), "thinking_removed", ("acme", "main", "other")),
        (note("media_refused", "acme", **SENT, what="one"), "media_refusals", ("main", "other", "one")),
        (note("compaction_item", "acme", **SENT, what="made"), "items", ("acme", "main", "other", "made")),
    ],
)
def test_what_is_counted_with_further_labels(event: object, name: str, labels: tuple[str, ...]) -> None:
    assert {series: number for series, number in folded(event).counts.of[name].items() if number} == {labels: 1}


def test_what_an_alert_waits_for_is_there_with_0_before_it_happens() -> None:
    counts = folded(answered()).counts.of
    assert counts["overflows"] == {("main", "gpt-4o", "passed_on"): 0}
    assert counts["config_reloads"] == {("success",): 0, ("failed",): 0}


def test_our_own_time_is_told_by_stage() -> None:
    found = folded(answered(own_ms=1.5), answered(own_ms=3.0, stages={"read": 1.0, "plan": 2.0}))
    assert {stage: of.sum for (stage,), of in found.histograms["overhead_seconds"].of.items()} == pytest.approx(
        {"total": 0.0045, "read": 0.001, "plan": 0.002}
    )


def test_durations_are_in_seconds_and_waits_of_those_that_waited() -> None:
    tallies = folded(answered(), answered(ms=2_500.0, first_byte_ms=600.0, own_ms=1.5, wait_ms=400.0))
    found = tallies.histograms
    assert found["request_duration_seconds"].of["main", "gpt-4o"].sum == pytest.approx(2.6)
    assert found["time_to_first_byte_seconds"].of["main", "gpt-4o"].sum == pytest.approx(0.6)
    assert found["overhead_seconds"].of[("total",)].sum == pytest.approx(0.0015)
    assert found["summary_wait_seconds"].of[("none",)].counts[1:3] == [0, 1]
    assert sum(found["window_used_ratio"].of["main", "gpt-4o"].counts) == 2
