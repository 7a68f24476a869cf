"""Events as one session of the default tenant would leave them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support import events

if TYPE_CHECKING:
    from proxy.telemetry.events import CompactionEnded, RequestEnded

AT = 1_800_000_000.0
_SESSION = {"at": AT, "tenant": "default", "session": "0123456789abcdef"}
_REQUEST = {
    **_SESSION, "model": "m", "reason": "below_threshold", "tokens_received": 1_000, "tokens_sent": 1_000,
    "window": 8_000, "usable": 7_000, "messages": 2, "billed": None, "output": None,
}  # fmt: skip
_COMPACTION = {
    **_SESSION, "trigger": "background", "ms": 99.0, "for_model": "m", "model": "small", "used": 0.72,
    "threshold": 0.7, "covered": 38, "usd": 0.02, "digest": "d" * 64, "checkpoint": "d" * 16, "tokens_summary": 1_367,
}  # fmt: skip


def requested(**changes: object) -> RequestEnded:
    """A request that went through as it came, but for these fields."""
    return events.answered(**{**_REQUEST, **changes})


def compacted(**changes: object) -> CompactionEnded:
    """A summary that was made in the background, but for these fields."""
    return events.compacted(**{**_COMPACTION, **changes})
