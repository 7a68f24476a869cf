"""The entries of a session's history, one per request or compaction, in the store's format.

The entry of a request also has the figures that log, metrics and pages share, so that they are computed once.
"""

from typing import NamedTuple

import msgspec

from proxy.telemetry.events import CompactionEnded, RequestEnded


class RequestEntry(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """The figures of a finished request. Fields are those of `RequestEnded`. New fields go to the end, with a default.

    received, sent: tokens of the prompt, by the upstream's own count if its calibration is known.
    """

    id: str
    at: float
    ms: float
    status: int
    is_answered: bool
    model: str | None
    compaction: str | None
    reason: str | None
    checkpoint: str | None
    received: int | None
    sent: int | None
    window: int | None
    usable: int | None
    calibration: float | None
    messages: int | None
    billed: int | None
    cached: int | None
    cache_written: int | None
    cache_written_long: int | None
    output: int | None
    usd: float | None
    usd_received: float | None
    overflow: str | None
    warning: str | None
    prefixes: str | None = None


class CompactionEntry(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """A compaction of a session. Fields are those of `CompactionEnded`; `checkpoint` is None if it made no record."""

    at: float
    checkpoint: str | None
    calls: int
    tokens_in: int
    tokens_out: int
    usd: float | None


HistoryEntry = RequestEntry | CompactionEntry


class Point(NamedTuple):
    """A request for a session's page.

    at: Unix seconds. number: its position in the history, from 1. cached: the cached share of the billed prompt; None
    if the provider reports none.
    """

    number: int
    at: float
    received: int
    sent: int
    window: int | None
    messages: int
    outcome: str
    reason: str
    checkpoint: str
    cached: float | None
    status: int
    overflow: str | None
    is_cut_off: bool


def make_request_entry(event: RequestEnded) -> RequestEntry:
    """Return the figures of a finished request."""
    received, sent = event.tokens_received, event.tokens_sent
    if event.calibration is not None:
        received, sent = event.received, event.sent
    return RequestEntry(
        event.id,
        event.at,
        event.ms,
        event.status,
        event.is_answered,
        event.model,
        event.compaction,
        event.reason,
        event.checkpoint,
        received,
        sent,
        event.window,
        event.usable,
        event.calibration,
        event.messages,
        event.billed,
        event.cached,
        event.cache_written,
        event.cache_written_long,
        event.output,
        event.usd,
        event.usd_received,
        event.overflow,
        event.warning,
        event.prefixes,
    )


def make_compaction_entry(event: CompactionEnded) -> CompactionEntry:
    """Return the figures of a compaction."""
    return CompactionEntry(event.at, event.checkpoint, event.calls, event.tokens_in, event.tokens_out, event.usd)


def make_point(number: int, entry: RequestEntry) -> Point:
    """Return a request for a session's page."""
    cached = None
    if entry.billed and entry.cached is not None:
        cached = min(100, 100 * entry.cached // entry.billed) / 100
    overflow = entry.overflow
    if overflow is not None:
        overflow = "passed_on" if overflow in ("passed_on", "observed") else "solved"
    return Point(
        number,
        round(entry.at, 3),
        entry.received or 0,
        entry.sent or 0,
        entry.window,
        entry.messages or 0,
        entry.compaction or "",
        entry.reason or "",
        entry.checkpoint or "",
        cached,
        entry.status,
        overflow,
        entry.warning == "prompt_cut_off",
    )
