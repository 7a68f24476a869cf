"""What this process remembers of sessions: exact sums, a bounded number of points, and nothing of what was erased."""

from __future__ import annotations

from collections import deque

import pytest

from proxy.admin.recent import Recent
from proxy.observing import figures
from proxy.observing.events import ConfigReloaded
from proxy.observing.session_trails import POINTS, SessionTrails
from tests.support.session_events import AT, compacted, requested

CHECKPOINT = "c" * 16


def followed(*events: object) -> SessionTrails:
    trails = SessionTrails()
    deque(map(trails, events), 0)  # type: ignore[arg-type]
    return trails


def test_a_point_says_what_its_request_was() -> None:
    event = requested(
        at=AT + 90,
        tokens_received=9_000,
        tokens_sent=3_000,
        calibration=1.5,
        messages=40,
        compaction="reused",
        checkpoint=CHECKPOINT,
        billed=1_000,
        cached=720,
        overflow="solved",
        warning="prompt_cut_off",
    )
    (trail,) = followed(requested(), event).newest()
    first, point = trail.points
    assert (first.number, first.at, first.cached, first.overflow, first.checkpoint) == (1, AT, None, None, "")
    assert point == (
        *(2, AT + 90, 13_500, 4_500, 8_000, 40, "reused", "below_threshold", CHECKPOINT, 0.72, 200, "solved"),
        True,
    )


def test_sums_count_every_request_though_the_oldest_points_go() -> None:
    trails = followed(*(requested(at=AT + number, tokens_received=10, tokens_sent=4) for number in range(POINTS + 50)))
    (trail,) = trails.newest()
    assert (trail.requests.requests, figures.not_sent(trail.tally)) == (POINTS + 50, 6 * (POINTS + 50))
    assert (len(trail.points), trail.points[0].number, trail.points[-1].number) == (POINTS, 51, POINTS + 50)


def test_net_takes_what_summaries_cost_off_also_below_zero() -> None:
    (trail,) = followed(requested(), compacted(), compacted(digest=None, checkpoint=None, usd=None)).newest()
    assert (trail.summaries.number, figures.summaries(trail.tally), figures.net(trail.tally)) == (1, 8_600, -8_600)
    assert trail.summaries.usd == pytest.approx(0.02)


def test_a_compaction_that_ends_before_its_request_counts_too() -> None:
    (trail,) = followed(compacted(), requested()).newest()
    assert trail.summaries.number == 1


def test_two_labels_of_one_conversation_are_two_sessions() -> None:
    trails = followed(requested(label="a"), requested(label="b"), requested(tenant="acme", label="a"))
    assert [trail.key.label for trail in trails.of("default", requested().session or "")] == ["b", "a"]
    assert len([*trails.newest()]) == 3


def test_relayed_requests_and_other_events_leave_no_trail() -> None:
    trails = followed(requested(session=None), ConfigReloaded(is_taken=True), compacted())
    assert not [*trails.newest()]


def test_the_session_that_was_used_longest_ago_is_forgotten() -> None:
    trails = followed(*(requested(session=f"{number:016x}") for number in range(301)))
    names = [trail.key.id for trail in trails.newest()]
    assert (len(names), f"{0:016x}" in names) == (300, False)


def test_values_beyond_what_a_point_holds_are_cut() -> None:
    (trail,) = followed(requested(tokens_received=10**11, messages=10**6, status=4_000)).newest()
    (point,) = trail.points
    assert (point.received, point.messages, point.status) == (2**32 - 1, 65_535, 999)


def test_of_an_erased_session_nothing_is_left() -> None:
    trails, recent = SessionTrails(), Recent()
    for event in (requested(label="a"), requested(label="b")):
        trails(event)
        recent(event)
    for kept in (trails, recent):
        kept.forget("default", requested().session or "", "a".__eq__)
    assert [trail.key.label for trail in trails.newest()] == ["b"]
    assert [entry.event.label for entry in recent.newest()] == ["b"]  # type: ignore[union-attr]
