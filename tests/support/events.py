"""Events as they come, with all that is beside the point filled in."""

from __future__ import annotations

from msgspec import structs

from proxy.telemetry.events import CompactionEnded, RequestEnded, SummarizerCalled

_REQUEST = RequestEnded(
    at=1_000_000.0, end="complete", tenant="acme", policy="default", method="POST", path="/v1/chat/completions",
    route="/v1/chat/completions", wire="chat", stream=False, id="0123456789abcdef", status=200, ms=100.0, attempts=1,
    bytes=300, upstream="main", model="gpt-4o", compaction="none", reason="below_floor", tokens_received=900,
    tokens_sent=400, window=8_192, window_source="policy", usable=7_000, messages=9, billed=410, output=20,
    session="5e55105e55105e55",
)  # fmt: skip
_COMPACTION = CompactionEnded(
    at=1_000_000.0, tenant="acme", session="5e55105e55105e55", trigger="proactive", result="single", ms=900.0,
    for_model="gpt-4o", upstream="main", model="gpt-4o-mini", used=0.82, threshold=0.8, cut="L0",
    strategy="turn-boundary", fallback_reason=None, adjustment="exact", adjustment_delta=0, rounds=30, rounds_kept=9,
    covered=42, tokens_before=5_900, calls=1, tokens_in=4_000, tokens_out=300, digest="d1" * 32, checkpoint="d1" * 8,
    generation=1, tokens_after=2_200, tokens_summary=300, ratio=0.37, chunks=1, depth=0, truncated=False,
    summarizer_ms=700,
)  # fmt: skip
_CALL = SummarizerCalled(
    tenant="acme", upstream="main", model="gpt-4o", wire="chat", result="ok", ms=700.0, tokens_in=700, tokens_out=60
)


def answered(**changed: object) -> RequestEnded:
    """A request that the upstream has answered, in which this is otherwise."""
    return structs.replace(_REQUEST, **changed)


def compacted(**changed: object) -> CompactionEnded:
    return structs.replace(_COMPACTION, **changed)


def called(**changed: object) -> SummarizerCalled:
    return structs.replace(_CALL, **changed)
