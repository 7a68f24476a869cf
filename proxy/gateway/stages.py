"""A request on its way: a value for each stage that is complete, and what has become of the answer."""

import time

import msgspec

from proxy.api.head import ApiHead
from proxy.callers.admission import Admitted
from proxy.callers.tenants import Caller
from proxy.dialects.base import Usage
from proxy.engine.case import CompactionContext, Mode, RoutedRequest, with_lessons
from proxy.engine.client_compaction.clients import ClientCompaction
from proxy.engine.draft import Draft
from proxy.engine.job import Job
from proxy.gateway.sender import Sender
from proxy.gateway.usage import UsageTap
from proxy.observing.events import Overflow
from proxy.server.exchange import Exchange
from proxy.upstream.active import Active
from proxy.upstream.http import RequestTemplate, UpstreamResponse
from proxy.upstream.routes import Route

# Seconds for reading, planning, the store and the queue of the workers; on a busy machine they take a tenth of that.
_AROUND = 30.0


class Received(msgspec.Struct, frozen=True):
    """A request that is let in, with its whole body."""

    exchange: Exchange
    head: ApiHead
    active: Active
    sender: Sender
    body: bytes
    admitted: Admitted

    @property
    def caller(self) -> Caller:
        return self.sender.caller

    @property
    def mode(self) -> Mode:
        return self.sender.mode

    @property
    def patience(self) -> float:
        """Seconds that preparing a draft may take: a summary that others make, one of our own, and what is around it.

        Only a fault of ours takes longer, and the request goes on without it.
        """
        return Job.JOIN_WAIT + 2 * self.caller.policy.summarizer.timeout + _AROUND


class Prepared(msgspec.Struct, frozen=True):
    """What is sent for a request, and where.

    named:    None if it was not understood, or a fault of ours struck.
    template: for the request as it came; None if there is none.
    stages:   milliseconds of our own by what was done in them, if more was done than to count it.
    compaction: what it has to do with a compaction of its client; None for nothing.
    """

    route: Route
    draft: Draft
    named: RoutedRequest | None = None
    template: RequestTemplate | None = None
    stages: dict[str, float] | None = None
    compaction: ClientCompaction | None = None


class Sent(msgspec.Struct, eq=False):
    """What has become of a request since it was ready to be sent.

    prepared:   when it was, in seconds that only go forward; first_byte: when the first bytes of its answer were there.
    attempts:   requests that were sent to the upstream for it.
    status:     of the answer that the client gets; 0 without one.
    responses:  to be closed when it has ended.
    """

    exchange: Exchange
    head: ApiHead
    route: Route
    prepared: float
    attempts: int = 0
    status: int = 0
    first_byte: float | None = None
    responses: list[UpstreamResponse] = []

    def count_attempt(self, url: str) -> None:
        """A request leaves for the upstream."""
        self.attempts += 1
        if (trace := self.head.trace) is not None:
            trace.asks(url)

    def begin_answer(self, status: int) -> None:
        """The upstream has begun to answer, and the client gets this answer."""
        self.status, self.first_byte = status, time.perf_counter()


class Delivery(Sent, kw_only=True, eq=False):
    """The same of a request of a conversation.

    draft:       what was sent last, and the client's answer is of.
    named:       the request, as in `Prepared`, with what was learned meanwhile.
    own, waited: seconds of our own before it was first sent, and those that it waited for summaries.
    overflow:    what became of one that the upstream refused for its size; None for none.
    tap, usage:  what reads the answer while it passes, and what the upstream has billed.
    warning:     what an operator should look into; None for nothing.
    """

    received: Received
    first: Draft
    draft: Draft
    named: RoutedRequest | None
    template: RequestTemplate | None
    stages: dict[str, float] | None
    compaction: ClientCompaction | None
    own: float
    waited: float
    overflow: Overflow | None = None
    tap: UsageTap | None = None
    usage: Usage | None = None
    warning: str | None = None

    def start_over(self, prepared: Prepared) -> None:
        """Something else is sent, in place of what was sent in vain."""
        self.route, self.named, self.template = prepared.route, prepared.named, prepared.template
        self.first = self.draft = prepared.draft
        self.stages, self.prepared = prepared.stages, time.perf_counter()
        self.compaction = prepared.compaction
        self.waited += prepared.draft.waited
        self.own = self.prepared - self.exchange.began - self.waited

    @property
    def active(self) -> Active:
        return self.received.active

    @property
    def caller(self) -> Caller:
        return self.received.caller

    @property
    def may_get_notes(self) -> bool:
        """Return True if a note may take the place of each item that others made, after a refusal."""
        is_closed = self.caller.policy.fail == "closed"
        return self.compaction is not None and self.compaction.settled.passed > 0 and not is_closed

    @property
    def case(self) -> CompactionContext | None:
        """With all that decides what is sent for it, made when it is asked for; None if it was not understood."""
        named = self.named
        if named is None or isinstance(named, CompactionContext):
            return named
        self.named = case = with_lessons(named, self.active.router)
        return case

    @property
    def counted(self) -> CompactionContext:
        case = self.case
        assert case is not None  # noqa: S101 - an overflow is solved only if the request was understood
        return case


def delivery_of(received: Received, prepared: Prepared) -> Delivery:
    """A request that is ready to be sent."""
    draft, ready = prepared.draft, time.perf_counter()
    return Delivery(
        received.exchange,
        received.head,
        prepared.route,
        ready,
        received=received,
        first=draft,
        draft=draft,
        named=prepared.named,
        template=prepared.template,
        stages=prepared.stages,
        compaction=prepared.compaction,
        own=ready - received.exchange.began - draft.waited,
        waited=draft.waited,
    )


class Progress(msgspec.Struct, eq=False):
    """As far as a request has come, for its report.

    caller:   None until it is let in.
    admitted: closed when it ends, which makes room for another one.
    sent:     None until it was ready to be sent.
    """

    exchange: Exchange
    head: ApiHead
    active: Active
    caller: Caller | None = None
    admitted: Admitted | None = None
    sent: Sent | None = None
