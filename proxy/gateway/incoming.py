"""A request on its way through the gateway: one value, from its first byte to its line in the log."""

import time
from contextlib import ExitStack
from dataclasses import dataclass, field

from proxy.callers.admission import Admitted
from proxy.callers.tenants import Caller
from proxy.engine.case import Case, Mode
from proxy.engine.draft import Draft
from proxy.server.exchange import Exchange
from proxy.upstream.active import Active
from proxy.upstream.routes import Route

# Seconds for reading, planning, the store and the queue of the workers; on a busy machine they take a tenth of that.
_AROUND = 30.0


@dataclass(slots=True)
class Incoming:
    """Everything that is known of a request so far.

    started, prepared: when it came and when it was ready to be sent, in seconds that only go forward.
    known_caller: None until it is let in.
    case:     with what was learned on its way; None where it was not understood, or a fault of ours struck.
    status:   of the upstream's answer; 0 without one.
    searches: of the model in its conversation, before it gave the answer that the client gets.
    warning:  what an operator should look into; None for nothing.
    admitted: closed when it ends, which makes room for another one. opened: closed when it was answered.
    """

    exchange: Exchange
    active: Active
    started: float
    known_caller: Caller | None = None
    mode: Mode = "off"
    body: bytes = b""
    route: Route | None = None
    case: Case | None = None
    draft: Draft | None = None
    prepared: float = 0.0
    status: int = 0
    warning: str | None = None
    searches: int = 0
    admitted: Admitted | None = None
    opened: ExitStack = field(default_factory=ExitStack)

    def hold(self, size: int) -> None:
        """Called before bytes of its body are kept; raises OverloadedError."""
        if self.admitted is not None:
            self.admitted.hold(size)

    @property
    def caller(self) -> Caller:
        assert self.known_caller is not None  # noqa: S101 - the line identifies before anything else
        return self.known_caller

    @property
    def sent(self) -> Draft:
        assert self.draft is not None  # noqa: S101 - the line prepares before it forwards
        return self.draft

    @property
    def to(self) -> Route:
        assert self.route is not None  # noqa: S101 - the line prepares before it forwards
        return self.route

    @property
    def counted(self) -> Case:
        assert self.case is not None  # noqa: S101 - an overflow is solved only where the request was understood
        return self.case

    @property
    def patience(self) -> float:
        """Seconds that preparing a draft may take: a summary that others make, one of our own, and what is around it.

        Only a fault of ours takes longer, and the request goes on without it.
        """
        policy = self.caller.policy
        return policy.join_wait + 2 * policy.summarizer.timeout + _AROUND

    def ready(self, route: Route, draft: Draft, case: Case | None) -> None:
        """What is sent, and where; `case` where the request was understood."""
        self.route, self.draft, self.case = route, draft, case
        self.prepared = time.perf_counter()
