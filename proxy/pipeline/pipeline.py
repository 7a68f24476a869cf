"""The path of a request through the proxy. `Pipeline.run` lists its steps."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from proxy import errors
from proxy.callers.admission import Admission
from proxy.callers.api_head import ApiHead, api_head
from proxy.callers.api_paths import EXPLAIN, resource
from proxy.callers.key_usage import KeyUsage
from proxy.compaction.engine import Engine
from proxy.compaction.plan_input import PlanInput
from proxy.compaction.prefetch import is_worth_following
from proxy.compaction.prompt import Prompt
from proxy.compaction.provider.clients import ClientCompaction
from proxy.config.settings import Upstream
from proxy.pipeline.answers import UpstreamAnswer
from proxy.pipeline.attempts import PIN_LEFT_OUT, REFUSED, Attempts, refuse_lost_pins
from proxy.pipeline.client_compaction import CompactionAnswers, count_restorer, item_in, rewriting
from proxy.pipeline.explain import ExplainEndpoint
from proxy.pipeline.lessons import Lessons
from proxy.pipeline.open_requests import OpenRequests
from proxy.pipeline.pass_through import PassThrough
from proxy.pipeline.prepare import Preparer, failed_open
from proxy.pipeline.receive import Receiver
from proxy.pipeline.relay import relay
from proxy.pipeline.report import ended_event, headers_of, item_headers
from proxy.pipeline.stages import Attempt, Received
from proxy.runtime.fail_open import FailOpen
from proxy.server.exchange import Exchange
from proxy.server.headers import Headers
from proxy.telemetry.hooks import observe_traced
from proxy.telemetry.trace import Tracing
from proxy.upstreams.active import Active
from proxy.upstreams.asker import WindowAsker
from proxy.upstreams.http import TruncatedError, UpstreamClient
from proxy.upstreams.refusals.error_parts import error_text

# Share of `server.max_body_bytes` from which a body gets a warning.
_LARGE = 0.75


class Pipeline:
    """Relays requests. Conversations are counted, and compacted if necessary. One per process."""

    def __init__(
        self,
        active: Active,
        engine: Engine,
        asker: WindowAsker,
        client: UpstreamClient,
        fail_open: FailOpen,
        key_usage: KeyUsage,
    ) -> None:
        """Create a pipeline that starts with this config."""
        self.active = active
        self.open_requests = OpenRequests()
        self._engine = engine
        self._client = client
        self._fail_open = fail_open
        self._receiver = Receiver(key_usage, engine.reader)
        self._compaction = CompactionAnswers(engine)
        self._preparer = Preparer(self._receiver, engine, self._compaction, client, fail_open)
        self._attempts = Attempts(engine.prompt_builder, engine.windows, client, fail_open, engine.observe)
        self._lessons = Lessons(engine, asker)
        self._pass_through = PassThrough(self._receiver, client, fail_open, key_usage)
        self._explain = ExplainEndpoint(self._receiver, self._preparer, engine, fail_open)

    @property
    def admission(self) -> Admission:
        """Return the admission of requests."""
        return self._receiver.admission

    def activate(self, active: Active, upstreams: Iterable[Upstream]) -> None:
        """Use a new config for later requests. Only its upstreams keep their connections."""
        self.active = active
        self._receiver.senders.forget()
        self._client.keep_pools(upstreams)

    async def handle(self, exchange: Exchange) -> None:
        """Answer a request. Return when its response is complete or can no longer be completed."""
        received = self._begin(exchange)
        error: BaseException | None = None
        try:
            self.open_requests.add(exchange, self.active.server.request_deadline)
            try:
                exchange.begin_work()
                await self._handler_of(received.head)(received)
            except asyncio.CancelledError as cancelled:
                error = exchange.ended_by or cancelled
                raise error from None
            except BaseException as raised:
                error = raised
                raise
            finally:
                exchange.end_work()
                self.open_requests.remove(exchange)
                self._close(received, error)
                error = None  # it refers to this frame, so the request would stay in memory until garbage collection
        except errors.EndedError as ended:
            await exchange.break_off(ended)
        except errors.ProxyError as refused:
            await exchange.refuse(refused)
        except (errors.ClientGoneError, TruncatedError):
            return  # the server closes the connection of an incomplete response, as the upstream did

    async def run(self, received: Received) -> None:
        """Answer a request of a conversation: receive, prepare, send, relay, learn."""
        await self._receiver.receive(received)
        attempt = await self._prepare(received, self._preparer.prepare(received))
        await self._receiver.reserve(received, None)  # after an internal error nothing is reserved yet
        self._fail_open.call(lambda: self._list_session(attempt), None)
        _refuse_if_closed(attempt)
        response = await self._send(attempt)
        if response is not None and _refuses_foreign_item(attempt, response):
            response = await self._send_with_notes(attempt, response)
        if response is None:
            return
        await self._relay(attempt, response)
        # Do not await after this point: a client that disconnects after a full response is treated as gone.
        self._fail_open.call(lambda: self._lessons.take(attempt), None)

    async def _count(self, received: Received) -> None:
        """Relay the upstream's count of the tokens that `run` would send now."""
        await self._receiver.receive(received)
        await self._receiver.reserve_tokens(received)
        attempt = await self._prepare(received, self._preparer.prepare_count(received))
        response = await self._send_or_fail_open(attempt, self._attempts.send_once(attempt))
        counting = None if attempt.compaction is None else count_restorer(attempt, attempt.compaction)
        await relay(response, attempt.exchange, self._headers_of(attempt), rewritten=counting)

    def _begin(self, exchange: Exchange) -> Received:
        head = api_head(exchange.head)
        if (tracing := self.active.tracing) is not None:
            exchange.head = head = self._fail_open.call(partial(_traced_head, head, tracing), head)
        return Received(exchange, head, self.active)

    def _handler_of(self, head: ApiHead) -> Callable[[Received], Awaitable[None]]:
        if resource(head.reading) == EXPLAIN:
            return self._explain.answer
        if head.conversation is not None:
            return self.run
        return self._count if head.is_count else self._pass_through.answer

    def _close(self, received: Received, error: BaseException | None) -> None:
        """Release the resources of a request, and emit one event about its end."""
        if received.admitted is not None:
            received.admitted.close()
        for response in received.attempt.responses if received.attempt else ():
            response.close()
        if isinstance(error, errors.ClientGoneError) and self._fail_open.call(lambda: self._has_all(received), False):
            error = None
        self._fail_open.call(lambda: self._report(received, error), None)
        received.attempt = None  # both refer to each other

    def _report(self, received: Received, error: BaseException | None) -> None:
        """Report the end of a request by an event, and hold where it failed."""
        event, attempt = ended_event(received, error), received.attempt
        if attempt is not None and attempt.url and not event.is_answered:
            text = error_text(attempt.error, attempt.route.headers) if attempt.error else ""
            self._engine.upstream_failures.hold(event, attempt.url.partition("?")[0], text)
        observe_traced(self._engine.observe, event, received.head.trace)

    def _has_all(self, received: Received) -> bool:
        """Return True if a client that disconnected has its whole response. Some disconnect at the last event."""
        attempt = received.attempt
        if attempt is None or attempt.tap is None or not attempt.tap.is_whole:
            return False
        self._lessons.take(attempt)
        return True

    async def _prepare(self, received: Received, preparing: Awaitable[Attempt]) -> Attempt:
        """Return the prepared attempt, or one with the client's bytes after an internal error."""
        received.attempt = attempt = await self._fail_open.run(preparing, None) or failed_open(received)
        return attempt

    async def _send(self, attempt: Attempt) -> UpstreamAnswer | None:
        """Return the upstream's response; None if the client got a compaction as its whole response."""
        compaction = attempt.compaction
        if compaction is None or not compaction.is_alone:
            sending = self._attempts.send_until_accepted(attempt)
            return await self._send_or_fail_open(attempt, sending, _refuse_if_closed)
        await self._answer_with_compaction(attempt, compaction)
        return None

    async def _send_or_fail_open(
        self,
        attempt: Attempt,
        sending: Awaitable[tuple[UpstreamAnswer, Prompt]],
        check: Callable[[Attempt], None] = lambda _: None,
    ) -> UpstreamAnswer:
        """Return the response to relay. Nothing has been sent to the client yet. Raises ProxyError.

        After an internal error the client's bytes are sent, unless `check` raises.
        """
        sent = await self._fail_open.run(sending, None)
        if sent is None:
            attempt.start_over(failed_open(attempt.received))
            check(attempt)
            sent = await self._attempts.send_unread(attempt)
        response, attempt.prompt = sent
        attempt.error = response.error
        attempt.begin_response(response.response.status)
        return response

    async def _send_with_notes(self, attempt: Attempt, refused: UpstreamAnswer) -> UpstreamAnswer | None:
        """Send the request again with a note for each item from elsewhere. Returns the response to that."""
        preparing = self._preparer.prepare(attempt.received, passes_foreign=False)
        other = await self._fail_open.run(preparing, None)
        if other is None:
            return refused
        refused.response.close()
        attempt.start_over(other)
        return await self._send(attempt)

    async def _answer_with_compaction(self, attempt: Attempt, compaction: ClientCompaction) -> None:
        """Answer with only a compaction."""

        def headers() -> Headers:
            return [*self._headers_of(attempt), *item_headers("made")]

        attempt.warning = compaction.settled.warning
        attempt.begin_response(200)
        answering = self._compaction.answer_alone(attempt.exchange, attempt.counted, compaction, headers)
        attempt.compaction = await self._fail_open.run(answering, None)
        if attempt.compaction is None:
            raise errors.ProxyError("The conversation could not be compacted; the log says where it failed.")

    async def _relay(self, attempt: Attempt, response: UpstreamAnswer) -> None:
        """Send the response to the client, with the proxy's headers."""
        if response.overflow is not None:
            is_left_alone = attempt.routed is not None and attempt.routed.mode in ("off", "shadow")
            attempt.overflow = "observed" if is_left_alone else "passed_on"
        compaction = attempt.compaction
        if compaction is not None:
            attempt.warning = compaction.settled.warning
        tap = self._fail_open.call(lambda: self._lessons.tap(attempt, response), None)
        if tap is not None:
            warning = self._fail_open.call(lambda: self._lessons.warning(attempt, response), None)
            attempt.warning = warning or attempt.prompt.warning or attempt.warning
        if attempt.prompt.pins is not None and attempt.prompt.pins.missing and attempt.warning != "prompt_cut_off":
            attempt.warning = PIN_LEFT_OUT
        if len(attempt.received.body) >= _LARGE * attempt.active.server.max_body_bytes:
            attempt.warning = attempt.warning or "large_body"
        headers = self._headers_of(attempt)
        rewritten = None if compaction is None else rewriting(attempt, compaction, response)
        if compaction is not None and (item_event := item_in(compaction, rewritten)) is not None:
            headers += item_headers(item_event)
        _reword_overflow(attempt, response, headers)
        await relay(response, attempt.exchange, headers, tap, attempt.head.dialect.answers, rewritten)

    def _headers_of(self, attempt: Attempt) -> Headers:
        return self._fail_open.call(lambda: headers_of(attempt), [])

    def _list_session(self, attempt: Attempt) -> None:
        """List a session if something of it may be stored."""
        routed, sent, sessions = attempt.routed, attempt.first, self._engine.sessions
        if routed is None or (sent.copy is None and routed.is_far_below(sent.tokens)):
            return
        plan_input = attempt.counted
        if not _may_be_stored(plan_input, sent) or not sessions.is_news(plan_input.chain, sent.record):
            return
        listing = sessions.add(
            plan_input.caller, plan_input.chain, plan_input.label, plan_input.request.settings.model, sent.record
        )
        self._engine.background.start("enroll", listing)


def _traced_head(head: ApiHead, tracing: Tracing) -> ApiHead:
    trace = tracing.begin(head.headers)
    return ApiHead(head.method, head.target, tracing.onward(head.headers, trace), trace)


def _refuse_if_closed(attempt: Attempt) -> None:
    """Raise CompactionFailedError if a necessary compaction failed, or a pinned text is not in the prompt.

    This applies only if the policy says `fail: closed`. After an internal error the request's size is unknown.
    """
    if not attempt.is_closed:
        return
    refuse_lost_pins(attempt, attempt.first)
    if attempt.first.outcome != "failed-open":
        return
    plan_input = attempt.plan_input
    if plan_input is None or not plan_input.limits.known or not plan_input.fits_whole:
        raise errors.CompactionFailedError(attempt.first.reason, plan_input.chain.name if plan_input else "")


def _refuses_foreign_item(attempt: Attempt, response: UpstreamAnswer) -> bool:
    """Return True if an item from elsewhere may be the reason for a rejection.

    Servers have no common error text for it, so any rejection except one for size counts. A wrong guess costs one more
    rejected request.
    """
    return attempt.may_get_notes and response.overflow is None and response.response.status in REFUSED


def _reword_overflow(attempt: Attempt, response: UpstreamAnswer, headers: Headers) -> None:
    """Raise ContextLengthError for an unsolved overflow, if the policy wants an error text that clients know."""
    stated = response.overflow
    if stated is None or attempt.caller.policy.overflow_error == "upstream":
        return
    plan_input = attempt.plan_input
    if plan_input is None or plan_input.is_let_through:
        return
    window = attempt.route.window
    tokens = stated.input_tokens or plan_input.request.received_tokens
    limit = stated.limit or (window.tokens if window else None)
    dialect = plan_input.request.dialect
    message = dialect.answers.TOO_LONG_FOR_IT
    if limit is not None:
        message = dialect.answers.TOO_LONG.format(limit=limit, tokens=max(tokens, limit + 1))
    raise errors.ContextLengthError(message, dialect.array.name, headers)


def _may_be_stored(plan_input: PlanInput, sent: Prompt) -> bool:
    """Return True if part of the conversation may be in the store now or soon."""
    return not plan_input.is_let_through and (sent.copy is not None or is_worth_following(plan_input, sent))
