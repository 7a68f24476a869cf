"""The two stages of a request: as received, and on its way to an upstream and back."""

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
_OTHER_WORK_S = 30.0
# Replaces the prompt of a request that is relayed unchanged.
PASSED_THROUGH = Prompt(b"", 0, "bypass", "passed_through")


class Received(msgspec.Struct, eq=False):
    """A client's request, as far as it is known.

    known_sender: None until the client is identified.
    admitted:     None until the request is in flight. It is closed when the request ends.
    body:         empty until it is read completely.
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
        """Return the sender. The client must be identified."""
        sender = self.known_sender
        assert sender is not None  # noqa: S101 - no client is read before it is identified
        return sender

    @property
    def caller(self) -> Caller:
        """Return the caller."""
        return self.sender.caller

    @property
    def mode(self) -> Mode:
        """Return the mode."""
        return self.sender.mode

    @property
    def admission(self) -> Admitted:
        """Return the admission. The request must be in flight."""
        admitted = self.admitted
        assert admitted is not None  # noqa: S101 - no body is read before admission
        return admitted

    @property
    def timeout(self) -> float:
        """Return the seconds for making a prompt: another request's summary, its own, and other work.

        Only an internal error takes longer, and the request then continues without it.
        """
        return Job.JOIN_WAIT + 2 * self.caller.policy.summarizer.timeout + _OTHER_WORK_S


class Attempt(msgspec.Struct, eq=False):
    """The way of a request to its upstream and back.

    first, prompt: the prompt sent first, and the one sent last.
    routed:        the request with the newest lessons. None if it was not read, or after an internal error.
    template:      that of the unchanged request; None without one.
    stages:        milliseconds by step, if there were more steps than counting. See `RequestEnded`.
    compaction:    the client's part in a compaction; None without one.
    waited:        seconds that the request waited for summaries.
    ready:         the time when there was something to send, in monotonic seconds.
    own:           seconds that the proxy itself took until then.
    tries:         the number of requests sent to the upstream.
    status:        that of the response for the client; 0 without one.
    first_byte:    the time when its first bytes came.
    responses:     all responses, to be closed in the end.
    overflow:      the outcome of an overflow; None without one.
    tap, usage:    the reader of the response's usage, and the billed usage.
    warning:       a warning for the operator; None without one.
    url:           the address of the last request; empty if none was sent.
    error:         the body of the response, if it reports an error and was read.
    """

    received: Received
    route: Route
    first: Prompt
    prompt: Prompt
    routed: RoutedRequest | None = None
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
        """Return the exchange."""
        return self.received.exchange

    @property
    def head(self) -> ApiHead:
        """Return the header block."""
        return self.received.head

    @property
    def active(self) -> Active:
        """Return the config in force."""
        return self.received.active

    @property
    def caller(self) -> Caller:
        """Return the caller."""
        return self.received.caller

    @property
    def is_closed(self) -> bool:
        """Return True if the policy rejects a request whose compaction failed or lost pinned texts."""
        return self.caller.policy.fail == "closed" and self.received.mode in ("on", "force")

    @property
    def may_get_notes(self) -> bool:
        """Return True if notes may replace items from elsewhere after a rejection."""
        is_closed = self.caller.policy.fail == "closed"
        return self.compaction is not None and self.compaction.settled.passed > 0 and not is_closed

    @property
    def plan_input(self) -> PlanInput | None:
        """Return the request with everything that its plan depends on; None if it was not read."""
        routed = self.routed
        if routed is None or isinstance(routed, PlanInput):
            return routed
        self.routed = plan_input = with_lessons(routed, self.active.router)
        return plan_input

    @property
    def counted(self) -> PlanInput:
        """Return the plan input. The request must have been read."""
        plan_input = self.plan_input
        assert plan_input is not None  # noqa: S101 - only a read request is sent again
        return plan_input

    def count_try(self, url: str) -> None:
        """Count a request to the upstream."""
        self.tries += 1
        self.url = url
        if (trace := self.head.trace) is not None:
            trace.asks(url)

    def begin_response(self, status: int) -> None:
        """Note that the upstream responds, and that the client gets this response."""
        self.status, self.first_byte = status, time.perf_counter()

    def start_over(self, other: "Attempt") -> None:
        """Continue with another prompt instead of one that failed."""
        self.route, self.routed, self.template = other.route, other.routed, other.template
        self.first = self.prompt = other.prompt
        self.error = b""
        self.stages, self.ready, self.compaction = other.stages, other.ready, other.compaction
        self.waited += other.waited
        self.own = self.ready - self.exchange.began - self.waited


def make_attempt(
    received: Received,
    route: Route,
    prompt: Prompt,
    routed: RoutedRequest | None = None,
    template: RequestTemplate | None = None,
    stages: dict[str, float] | None = None,
    compaction: ClientCompaction | None = None,
) -> Attempt:
    """Return an attempt that is ready to be sent."""
    ready, waited = time.perf_counter(), prompt.waited
    own = ready - received.exchange.began - waited
    return Attempt(received, route, prompt, prompt, routed, template, stages, compaction, waited, ready, own)
