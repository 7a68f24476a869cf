"""A request on its way through the gateway: as it was received, as it was prepared, and what may be told of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field

from proxy.callers.admin_token import AdminToken
from proxy.callers.session_label import printable
from proxy.callers.tenants import Caller, Tenants
from proxy.config.settings import Server
from proxy.engine.case import Case, Draft, Wish
from proxy.gateway.report import Report, headers_of
from proxy.runtime.fail_open import Rim
from proxy.server.exchange import Exchange
from proxy.server.headers import Headers
from proxy.upstream.routes import Route, Router

_LONGEST_PATH = 256
# Seconds for reading, planning, the store and the queue of the workers; on a busy machine they take a tenth of that.
_AROUND = 30.0
# Headers that cannot be told yet when comments begin an answer.
_TOLD_LATER = (b"x-compaction-tokens-sent", b"x-compaction-overhead-ms", b"server-timing")


@dataclass(frozen=True, slots=True)
class Active:
    """What a config gives the gateway; one immutable value, swapped as a whole."""

    tenants: Tenants
    router: Router
    server: Server
    max_requests: int
    admin_token: AdminToken


@dataclass(slots=True)
class Progress:
    """How far a request came: what the log can say of it when it ends, whichever way.

    admitted: closed when it ends, which makes room for another one. hold: called before bytes of its body are kept.
    """

    exchange: Exchange
    started: float
    caller: Caller | None = None
    report: Report | None = None
    admitted: ExitStack = field(default_factory=ExitStack)
    hold: Callable[[int], None] = lambda _: None

    def fields(self, now: float) -> dict[str, object]:
        exchange, caller = self.exchange, self.caller
        known: dict[str, object] = {} if caller is None else {"tenant": caller.tenant, "policy": caller.policy_name}
        known |= {"method": exchange.method, "path": printable(exchange.target.partition("?")[0], _LONGEST_PATH)}
        if (request_id := exchange.request_id) is not None:
            known["id"] = request_id
        if exchange.status:
            known["status"] = exchange.status
        known |= {"ms": round(1000 * (now - self.started), 1), "bytes": exchange.sent}
        if exchange.comments:
            known["comments"] = exchange.comments
        return known if self.report is None else known | self.report.fields()


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request that was received: who sent it, what it wants of us, and its bytes."""

    exchange: Exchange
    active: Active
    caller: Caller
    wish: Wish
    body: bytes
    started: float
    progress: Progress
    opened: ExitStack = field(default_factory=ExitStack)

    @property
    def patience(self) -> float:
        """Seconds that preparing a draft may take: a summary that others make, one of our own, and what is around it.

        Only a fault of ours takes longer, and the request goes on without it.
        """
        policy = self.caller.policy
        return policy.join_wait + 2 * policy.summarizer.timeout + _AROUND

    def commenting(self, case: Case, rim: Rim) -> AbstractContextManager[None]:
        """A streaming client that waits for us inside gets comments, as often as its policy says."""
        interval = case.caller.policy.keepalive

        async def headers() -> Headers:
            waiting = Prepared(case.route, case, Draft(b"", case.request.tokens, "pending", "compacting"))
            told = await rim.shield(told_of(self.report(waiting)), [])
            return [(name, value) for name, value in told if name not in _TOLD_LATER]

        return self.exchange.commenting(interval, headers) if case.request.stream and interval else nullcontext()

    def report(self, prepared: Prepared) -> Report:
        """What there is to tell before an answer is there."""
        return Report(self, prepared.route, prepared.case, prepared.draft, 0, time.perf_counter())


@dataclass(frozen=True, slots=True)
class Prepared:
    """What goes upstream, and where. `case` is None where the request was not understood, or a fault of ours struck."""

    route: Route
    case: Case | None
    draft: Draft


async def told_of(report: Report) -> Headers:
    return headers_of(report)
