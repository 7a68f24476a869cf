"""What this process remembers of sessions: exact sums, a bounded number of entries, and nothing of erased sessions."""

from __future__ import annotations

from collections import deque

import pytest

from proxy.admin.recent import Recent
from proxy.telemetry import figures
from proxy.telemetry.events import note
from proxy.telemetry.session_history import ENTRIES, MOST_UNSAVED, SESSIONS, SessionHistories
from tests.support.session_events import AT, compacted, requested

CHECKPOINT = "c" * 16


def followed(*events: object) -> SessionHistories:
    histories = SessionHistories()
    deque(map(histories, events), 0)  # type: ignore[arg-type]
    return histories


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
    (history,) = followed(requested(), event).newest()
    first, point = history.view(None).points
    assert (first.number, first.at, first.cached, first.overflow, first.checkpoint) == (1, AT, None, None, "")
    assert point == (
        *(2, AT + 90, 13_500, 4_500, 8_000, 40, "reused", "below_threshold", CHECKPOINT, 0.72, 200, "solved"),
        True,
    )


def test_sums_count_every_request_though_the_oldest_entries_go() -> None:
    number = MOST_UNSAVED + 50
    histories = followed(*(requested(at=AT + at, tokens_received=10, tokens_sent=4) for at in range(number)))
    (history,) = histories.newest()
    view = history.view(None)
    assert (view.sums.tally.requests, figures.not_sent(view.sums.tally)) == (number, 6 * number)
    assert MOST_UNSAVED - 64 <= len(view.points) <= MOST_UNSAVED
    assert [point.number for point in view.points] == [*range(number - len(view.points) + 1, number + 1)]
    histories.mark_saved(history, number)
    assert (history.sums, history.unsaved) == (view.sums, [])
    assert len(history.view(None).points) < len(view.points)


def test_net_takes_what_summaries_cost_off_also_below_zero() -> None:
    (history,) = followed(requested(), compacted(), compacted(digest=None, checkpoint=None, usd=None)).newest()
    assert (history.sums.records, figures.summaries(history.sums.tally), figures.net(history.sums.tally)) == (
        1,
        8_600,
        -8_600,
    )
    assert history.sums.usd == pytest.approx(0.02)


def test_a_compaction_that_ends_before_its_request_counts_too() -> None:
    (history,) = followed(compacted(), requested()).newest()
    assert history.sums.records == 1


def test_two_labels_of_one_conversation_are_two_sessions() -> None:
    histories = followed(requested(label="a"), requested(label="b"), requested(tenant="acme", label="a"))
    assert [history.key.label for history in histories.of("default", requested().session or "")] == ["b", "a"]
    assert len([*histories.newest()]) == 3


def test_relayed_requests_and_other_events_leave_no_history() -> None:
    histories = followed(requested(session=None), note("config_reloaded"), compacted())
    assert not [*histories.newest()]


def test_the_session_that_was_used_longest_ago_is_forgotten() -> None:
    histories = followed(*(requested(session=f"{number:016x}") for number in range(SESSIONS + 1)))
    names = [history.key.id for history in histories.newest()]
    assert (len(names), f"{0:016x}" in names) == (SESSIONS, False)


def test_the_entries_of_all_sessions_together_are_bounded() -> None:
    sessions = ENTRIES // MOST_UNSAVED
    names = [f"{number:016x}" for number in range(sessions + 1)]
    histories = followed(*(requested(session=name) for name in names for _ in range(MOST_UNSAVED)))
    assert [history.key.id for history in histories.newest()] == names[:0:-1]
    for history in histories.newest():
        histories.mark_saved(history, history.added)
    histories(requested(session=names[0]))
    assert len([*histories.newest()]) == sessions + 1


def test_of_an_erased_session_nothing_is_left() -> None:
    histories, recent = SessionHistories(), Recent()
    for event in (requested(label="a"), requested(label="b")):
        histories(event)
        recent(event)
    for kept in (histories, recent):
        kept.forget("default", requested().session or "", "a".__eq__)
    assert [history.key.label for history in histories.newest()] == ["b"]
    assert [entry.event.label for entry in recent.newest()] == ["b"]  # type: ignore[union-attr]
