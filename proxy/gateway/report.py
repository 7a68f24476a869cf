"""What is told about a request: headers to the client, a log line to the operator. No content, no keys."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from policies.record.record import Record
from proxy.callers.session_label import session_label
from proxy.lru import remember
from proxy.models.table import MAX_NAME
from proxy.observing.log import Log
from proxy.server.headers import Headers

if TYPE_CHECKING:
    from proxy.engine.case import Case, Draft
    from proxy.engine.compactor import Job
    from proxy.engine.trails import Instability
    from proxy.gateway.incoming import Incoming
    from proxy.upstream.routes import Route


# Conversations that a warning was given for.
_WARNED = 10_000
_MOST_REASONS = 8


@dataclass(frozen=True, slots=True)
class Report:
    """A request that was answered. `prepared` is when it was ready to be sent, on the clock of `incoming.started`.

    warning: what an operator should look into; None for nothing.
    """

    incoming: Incoming
    route: Route
    case: Case | None
    sent: Draft | None
    status: int
    prepared: float
    warning: str | None = None

    @property
    def overhead_ms(self) -> float:
        return 1000 * (self.prepared - self.incoming.started)

    @property
    def model(self) -> str | None:
        """The model that was asked for, if it has answered or is known: a client may send its key in that place."""
        if self.case is None:
            return None
        name, window = self.case.request.model, self.route.window
        is_known = (window is not None and window.source != "policy") or self.case.router.names(name)
        return name[:MAX_NAME] if is_known or 200 <= self.status < 300 else None

    def fields(self) -> dict[str, object]:
        """What the log line says of where the request went and what was done with it."""
        fields: dict[str, object] = {"upstream": self.route.name, "overhead_ms": round(self.overhead_ms, 2)}
        if self.status:
            fields["status"] = self.status
        if self.model:
            fields["model"] = self.model
        if self.sent is not None:
            fields |= {"compaction": self.sent.outcome, "reason": self.sent.reason, "tokens_sent": self.sent.tokens}
        if self.case is not None:
            fields |= {"tokens_received": self.case.request.received_tokens, "session": self.case.lineage}
        if self.sent is not None and self.sent.max_output is not None:
            fields["max_output"] = self.sent.max_output
        if self.sent is not None and self.sent.record is not None:
            fields["checkpoint"] = self.sent.record.digest[:16]
        return fields


class CompactionLog:
    """One line a compaction: why it began, how deep it went, how it ended (R1's callbacks)."""

    def __init__(self, log: Log, ticks: Callable[[], float]) -> None:
        """`ticks` tells seconds that only go forward."""
        self._log = log
        self._ticks = ticks
        self._started: dict[int, float] = {}
        self._refused: dict[int, list[str]] = {}
        self._warned: OrderedDict[str, bool] = OrderedDict()

    def compaction_started(self, job: Job) -> None:
        self._started[id(job)] = self._ticks()

    def summary_received(self, job: Job, calls: int, refused: str | None) -> None:  # noqa: ARG002 - the end tells them
        """An answer that is of use is worth no line; why another one was not, the end tells."""
        if refused is not None:
            self._refused.setdefault(id(job), []).append(refused)

    def compaction_ended(self, job: Job, record: Record | None, reason: str) -> None:
        seconds = self._ticks() - self._started.pop(id(job), self._ticks())
        fields: dict[str, object] = {
            "tenant": job.tenant,
            "session": job.session,
            "trigger": job.trigger,
            "result": reason,
            "ms": round(1000 * seconds, 1),
            "cut": job.cut.level,
            "strategy": job.cut.strategy,
            "fallback_reason": job.cut.fallback_reason,
            "adjustment": job.cut.adjustment,
            "adjustment_delta": job.cut.adjustment_delta,
            "rounds": job.cut.units_total,
            "rounds_kept": job.cut.units_kept,
            "covered": job.cut.position,
            "tokens_before": job.tokens_before,
        }
        if refused := self._refused.pop(id(job), None):
            fields["refused"] = refused[:_MOST_REASONS]
        if record is not None:
            making = record.making
            fields |= {
                "checkpoint": record.digest[:16],
                "generation": record.generation,
                "tokens_after": making.tokens.after,
                "tokens_summary": making.tokens.summary,
                "ratio": record.compression_ratio,
                "calls": making.calls,
                "chunks": making.chunk_count,
                "depth": making.max_depth,
                "truncated": making.truncated,
                "model": making.model,
                "summarizer_ms": making.latency_ms,
                "usd": making.spent.usd,
            }
        self._log.info("compaction", **fields)

    def irreducible(self, session: str, tenant: str) -> None:
        """Warn once a conversation: what every request carries is too large for a summary to help."""
        if session not in self._warned:
            self._log.warning("irreducible", session=session, tenant=tenant)
        remember(self._warned, session, True, _WARNED)

    def unstable(self, case: Case, found: Instability) -> None:
        """Warn once a conversation, though it may look like another one each time: summaries of it are lost."""
        if found.root not in self._warned:
            role = case.conversation.messages[found.index].role
            told = {"session": case.lineage, "tenant": case.caller.tenant, "message": found.index, "role": role}
            self._log.warning("unstable_history", **told)
        remember(self._warned, found.root, True, _WARNED)


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
        headers += [
            (b"x-compaction-session", case.lineage.encode()),
            (b"x-compaction-tokens-received", b"%d" % case.request.received_tokens),
            (b"x-compaction-tokens-sent", b"%d" % sent.tokens),
        ]
        if label := session_label(report.incoming.exchange, case.request):
            headers.append((b"x-compaction-label", label.encode()))
    if report.route.window is not None:
        headers.append((b"x-compaction-window", b"%d" % report.route.window.tokens))
    if report.warning is not None:
        headers.append((b"x-compaction-warning", report.warning.encode()))
    if sent.max_output is not None:
        headers.append((b"x-compaction-max-output", b"%d" % sent.max_output))
    if sent.record is not None:
        headers.append((b"x-compaction-checkpoint", sent.record.digest[:16].encode()))
    return headers
