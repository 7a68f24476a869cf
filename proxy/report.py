"""What is told about a request: headers to the client, a log line to the operator. No content, no keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from proxy.sessions import session_label
from proxy.wire.headers import Headers

if TYPE_CHECKING:
    from proxy.drafts import Case, Draft
    from proxy.gateway import Incoming
    from proxy.routes import Route


@dataclass(frozen=True, slots=True)
class Report:
    """A request that was answered. `prepared` is when it was ready to be sent, on the clock of `incoming.started`."""

    incoming: Incoming
    route: Route
    case: Case | None
    sent: Draft | None
    status: int
    prepared: float

    @property
    def overhead_ms(self) -> float:
        return 1000 * (self.prepared - self.incoming.started)

    def fields(self, size: int, now: float) -> dict[str, object]:
        """The log line's fields; `size` is the bytes of the answer's body."""
        exchange, caller = self.incoming.exchange, self.incoming.caller
        fields: dict[str, object] = {
            "tenant": caller.tenant,
            "policy": caller.policy_name,
            "upstream": self.route.name,
            "method": exchange.method,
            "status": self.status,
            "ms": round(1000 * (now - self.incoming.started), 1),
            "overhead_ms": round(self.overhead_ms, 2),
            "bytes": size,
        }
        if self.sent is not None:
            fields |= {"compaction": self.sent.outcome, "reason": self.sent.reason, "tokens_sent": self.sent.tokens}
        if self.case is not None:
            fields |= {"tokens_received": self.case.request.tokens, "session": self.case.lineage}
        if self.sent is not None and self.sent.record is not None:
            fields["checkpoint"] = self.sent.record.digest[:16]
        return fields


def headers_of(report: Report) -> Headers:
    """`x-compaction*` and `Server-Timing`, for the answer to a chat request."""
    sent, case = report.sent, report.case
    if sent is None:
        return []
    overhead = b"%.1f" % report.overhead_ms
    headers = [
        (b"x-compaction", sent.outcome.encode()),
        (b"x-compaction-reason", sent.reason.encode()),
        (b"x-compaction-overhead-ms", overhead),
        (b"server-timing", b"concertina;dur=" + overhead),
    ]
    if case is not None:
        session = session_label(report.incoming.exchange, case.request) or case.lineage
        headers += [
            (b"x-compaction-session", session.encode()),
            (b"x-compaction-tokens-received", b"%d" % case.request.tokens),
            (b"x-compaction-tokens-sent", b"%d" % sent.tokens),
        ]
    if report.route.window is not None:
        headers.append((b"x-compaction-window", b"%d" % report.route.window.tokens))
    if sent.record is not None:
        headers.append((b"x-compaction-checkpoint", sent.record.digest[:16].encode()))
    return headers
