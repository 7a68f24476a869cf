"""The two stages of a request: as it was received, and its way to an upstream and back."""

import time

import msgspec

from proxy.callers.admission import Admitted
from proxy.callers.api_head import ApiHead
from proxy.callers.tenants import Caller
from proxy.compaction.job import Job
from proxy.compaction.plan_input import Mode, PlanInput, RoutedRequest, with_lessons
from proxy.compaction.prompt import Prompt
from proxy.compaction.provider.clients import ClientCompaction
from proxy.dialects.base import Usage
from proxy.pipeline.sender import Sender
from proxy.pipeline.usage import UsageTap
from proxy.server.exchange import Exchange
from proxy.telemetry.events import Overflow
from proxy.upstreams.active import Active
from proxy.upstreams.http import RequestTemplate, UpstreamResponse
from proxy.upstreams.routes import Route

# Seconds for reading, planning, the store and the queue of the workers. On a busy machine they take a tenth of that.
_AROUND = 30.0
# Stands for the prompt of a request that is passed through as it comes.
PASSED_THROUGH = Prompt(b"", 0, "bypass", "passed_through")


class Received(msgspec.Struct, eq=False):
    """A client's request, as far as it is known.

    known_sender: None until the client is identified.
    admitted:     None until the request is in flight. It is closed when the request ends.
    body:         empty until all of it is read.
    attempt:      None until there is something to send.
    """

    exchange: Exchange
    head: ApiHead
    active: Active
    known_sender: Sender | None = None
    admitted: Admitted | None = None
    body: bytes = b""
    attempt: "Attempt | None" = None

    @property
    def sender(self) -> Sender:
        sender = self.known_sender
        assert sender is not None  # noqa: S101 - nothing is read of a client that is not identified
        return sender

    @property
    def caller(self) -> Caller:
        return self.sender.caller

    @property
    def mode(self) -> Mode:
        return self.sender.mode

    @property
    def admission(self) -> Admitted:
        admitted = self.admitted
        assert admitted is not None  # noqa: S101 - no body is read of a request that is not in flight
        return admitted

    @property
    def timeout(self) -> float:
        """Return the seconds in which a prompt is ready: a summary that others make, an own one, and what is around it.

        Only a fault of ours takes longer, and the request goes on without it.
        """
        return Job.JOIN_WAIT + 2 * self.caller.policy.summarizer.timeout + _AROUND


class Attempt(msgspec.Struct, eq=False):
    """The way of a request to its upstream and back.

    first, prompt: what is sent first, and what was sent last.
    named:      the request with what was learned meanwhile. None if it was not read, or after a fault of ours.
    template:   for the request as it came. None if there is none.
    stages:     milliseconds by step, if there were more steps than counting. See `RequestEnded`.
    compaction: the client's part in a compaction, None if it has none.
    waited:     seconds that the request waited for summaries.
    ready:      when there was something to send, in seconds that only go forward.
    own:        seconds of our own until then.
    tries:      requests that were sent to the upstream.
    status:     of the response that the client gets, 0 without one.
    first_byte: when its first bytes came.
    responses:  to be closed in the end.
    overflow:   the outcome of an overflow, None without one.
    tap, usage: the reader of the usage in the response, and what the upstream has billed.
    warning:    for an operator, None without one.
    url:        to which the last request was sent; empty if none was.
    error:      the body of the response, if that reports an error and was read.
    """

    received: Received
    route: Route
    first: Prompt
    prompt: Prompt
    named: RoutedRequest | None = None
    template: RequestTemplate | None = None
    stages: dict[str, float] | None = None
    compaction: ClientCompaction | None = None
    waited: float = 0.0
    ready: float = 0.0
    own: float = 0.0
    tries: int = 0
    status: int = 0
    first_byte: float | None = None
    responses: list[UpstreamResponse] = []
    overflow: Overflow | None = None
    tap: UsageTap | None = None
    usage: Usage | None = None
    warning: str | None = None
    url: str = ""
    error: bytes = b""

    @property
    def exchange(self) -> Exchange:
        return self.received.exchange

    @property
    def head(self) -> ApiHead:
        return self.received.head

    @property
    def active(self) -> Active:
        return self.received.active

    @property
    def caller(self) -> Caller:
        return self.received.caller

    @property
    def is_closed(self) -> bool:
        """Return True if its policy refuses what a compaction should have made smaller, or kept."""
        return self.caller.policy.fail == "closed" and self.received.mode in ("on", "force")

    @property
    def may_get_notes(self) -> bool:
        """Return True if a note may take the place of each item that others made, after a refusal."""
        is_closed = self.caller.policy.fail == "closed"
        return self.compaction is not None and self.compaction.settled.passed > 0 and not is_closed

    @property
    def case(self) -> PlanInput | None:
        """Return the request with everything that its plan depends on, None if it was not read."""
        named = self.named
        if named is None or isinstance(named, PlanInput):
            return named
        self.named = case = with_lessons(named, self.active.router)
        return case

    @property
    def counted(self) -> PlanInput:
        case = self.case
        assert case is not None  # noqa: S101 - only a request that was read is sent again
        return case

    def count_try(self, url: str) -> None:
        """Count a request that is sent to the upstream."""
        self.tries += 1
        self.url = url
        if (trace := self.head.trace) is not None:
            trace.asks(url)

    def begin_response(self, status: int) -> None:
        """Note that the upstream responds, and that the client gets this response."""
        self.status, self.first_byte = status, time.perf_counter()

    def start_over(self, other: "Attempt") -> None:
        """Send another prompt in place of one that was sent in vain."""
        self.route, self.named, self.template = other.route, other.named, other.template
        self.first = self.prompt = other.prompt
        self.error = b""
        self.stages, self.ready, self.compaction = other.stages, other.ready, other.compaction
        self.waited += other.waited
        self.own = self.ready - self.exchange.began - self.waited


def make_attempt(
    received: Received,
    route: Route,
    prompt: Prompt,
    named: RoutedRequest | None = None,
    template: RequestTemplate | None = None,
    stages: dict[str, float] | None = None,
    compaction: ClientCompaction | None = None,
) -> Attempt:
    """Return an attempt that is ready to be sent."""
    ready, waited = time.perf_counter(), prompt.waited
    own = ready - received.exchange.began - waited
    return Attempt(received, route, prompt, prompt, named, template, stages, compaction, waited, ready, own)
