"""A request on its way through the gateway: one value, from its first byte to its line in the log."""

import time
from contextlib import ExitStack

import msgspec

from proxy.callers.admission import Admission, Admitted
from proxy.callers.tenants import Caller
from proxy.dialects.base import Usage
from proxy.dialects.reader import CountedRequest
from proxy.engine.case import Case, Mode, Named, with_lessons
from proxy.engine.draft import Draft
from proxy.gateway.relay import Passing
from proxy.gateway.usage import UsageTap
from proxy.observing.events import Overflow
from proxy.server.exchange import Exchange
from proxy.upstream.active import Active
from proxy.upstream.http import Asked
from proxy.upstream.routes import Route

# Seconds for reading, planning, the store and the queue of the workers; on a busy machine they take a tenth of that.
_AROUND = 30.0


class Incoming(msgspec.Struct, eq=False):
    """Everything that is known of a request so far.

    started, prepared: when it came and when it was ready to be sent, in seconds that only go forward.
    known_caller: None until it is let in.
    named:    None where it was not understood, or a fault of ours struck; a case once somebody has asked for it.
    request:  as it was read before the line took over; None where it was not.
    asked:    what was sent ahead of the line, and is not answered yet; None once the line has its answer.
    heard:    when the first of its answer was there, in the same seconds; 0 before.
    passing:  where its answer goes, of which the beginning has been passed on before the line took over.
    tap:      what reads the answer while it passes.
    status:   of the upstream's answer; 0 without one. first_byte: when its first bytes were there.
    usage:    what the upstream has billed.
    attempts: requests that were sent to it. overflow: what became of one that it refused for its size; None for none.
    own, waited: seconds of our own before it was first sent, and those that it waited for summaries.
    stages:   milliseconds of our own by what was done in them, where more was done than to count it.
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
    named: Named | None = None
    request: CountedRequest | None = None
    asked: Asked | None = None
    heard: float = 0.0
    passing: Passing | None = None
    tap: UsageTap | None = None
    draft: Draft | None = None
    prepared: float = 0.0
    status: int = 0
    first_byte: float | None = None
    usage: Usage | None = None
    attempts: int = 0
    own: float = 0.0
    waited: float = 0.0
    stages: dict[str, float] | None = None
    overflow: Overflow | None = None
    warning: str | None = None
    admitted: Admitted | None = None
    _opened: ExitStack | None = None

    @property
    def opened(self) -> ExitStack:
        if self._opened is None:
            self._opened = ExitStack()
        return self._opened

    def admit(self, admission: Admission) -> Admitted:
        """Have it count as one that is under way, where there is room; raises what it is refused with."""
        server, caller = self.active.server, self.caller
        # At least one body, and what it unpacks to.
        most_bytes = max(server.max_buffered_bytes, 2 * server.max_body_bytes)
        self.admitted = admission.admit(caller.tenant, self.active.max_requests, caller.max_requests, most_bytes)
        return self.admitted

    def asks(self, url: str) -> None:
        """A request to the upstream leaves for it."""
        self.attempts += 1
        if (trace := self.exchange.head.trace) is not None:
            trace.asks(url)

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
    def case(self) -> Case | None:
        """With all that decides what is sent for it, made when it is asked for; None where it was not understood."""
        named = self.named
        if named is None or isinstance(named, Case):
            return named
        self.named = case = with_lessons(named, self.active.router)
        return case

    @property
    def counted(self) -> Case:
        case = self.case
        assert case is not None  # noqa: S101 - an overflow is solved only where the request was understood
        return case

    @property
    def patience(self) -> float:
        """Seconds that preparing a draft may take: a summary that others make, one of our own, and what is around it.

        Only a fault of ours takes longer, and the request goes on without it.
        """
        policy = self.caller.policy
        return policy.join_wait + 2 * policy.summarizer.timeout + _AROUND

    def ready(self, route: Route, draft: Draft, named: Named | None) -> None:
        """What is sent, and where; `named` where the request was understood."""
        self.route, self.draft, self.named = route, draft, named
        self.prepared = time.perf_counter()
        self.waited += draft.waited
        self.own = self.prepared - self.started - self.waited

    def answered(self, status: int) -> None:
        """The upstream has begun to answer, and the client gets this answer."""
        self.status, self.first_byte = status, time.perf_counter()
