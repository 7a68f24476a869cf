"""Requests in which a client asks for a compaction by a provider's protocol, or sends back a compaction item."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Literal

import msgspec
from msgspec import structs

from policies.decision.plan import Compact, tokens_with
from proxy.callers.api_headers import betas_of
from proxy.compaction.engine import Engine
from proxy.compaction.plan_input import Outcome, PlanInput, routed_request, with_lessons
from proxy.compaction.prompt import active_checkpoint
from proxy.compaction.provider.clearing import clear
from proxy.compaction.provider.clients import ClientCompaction
from proxy.compaction.provider.expansion import Settled
from proxy.compaction.provider.hosts import answers_compactions
from proxy.compaction.provider.making import MadeItem
from proxy.dialects import json_array
from proxy.dialects.base import Dialect
from proxy.dialects.compaction import AT_ONCE, CompactionRequest, CompactionRequestError
from proxy.dialects.reader import CountedRequest
from proxy.dialects.surrogates import readable
from proxy.errors import InvalidJSONError, InvalidRequestError, ProxyError
from proxy.pipeline.answers import UpstreamAnswer
from proxy.pipeline.item_in_answer import BodyRewriter, ItemInAnswer, with_item
from proxy.pipeline.report import keep_alive_of
from proxy.pipeline.stages import Attempt, Received
from proxy.server.exchange import Exchange
from proxy.server.headers import Headers, without
from proxy.telemetry.events import note
from proxy.upstreams.routes import Route

_BETAS = b"anthropic-beta"
_STORED = ("previous_response_id", "conversation", "thread")
Rewriting = ItemInAnswer | BodyRewriter
What = Literal["made", "read", "refused", "foreign"]
_FAILED = "The conversation could not be compacted."
# The most user messages that the endpoint's response repeats, in tokens and as a share of M.
_MOST_KEPT, _KEPT_SHARE = 20_000, 0.2
_STORED_STATE = (
    "The provider stores the history ({field}), and this upstream cannot compact it; send the items themselves as"
    ' `input` (Agents SDK: compaction_mode="input").'
)


class ItemUnavailableError(ProxyError):
    """An internal error occurred while a compaction item was opened. No upstream can open it."""

    status = 503
    code = "compaction_item_unavailable"
    retryable = True
    retry_after = 2
    message = "The compaction item could not be opened; send the request again."


class CompactionAnswers:
    """Handles clients' requests for compactions. One per process."""

    def __init__(self, engine: Engine) -> None:
        """Create a handler over this engine."""
        self._engine = engine

    async def settle(
        self, received: Received, request: CountedRequest, route: Route, *, passes_foreign: bool = True
    ) -> tuple[CountedRequest, Settled]:
        """Return the request without its part in a compaction, and that part.

        If the upstream compacts, only the proxy's items are replaced. Raises CompactionRequestError for an invalid
        request.
        passes_foreign: True leaves items from elsewhere in the request if it is unknown whether the upstream reads
                        them.
        """
        tenant, model = received.caller.tenant, request.settings.model
        answers = received.mode in ("off", "shadow") or answers_compactions(route.upstream, request.dialect)
        try:
            if answers:
                settled = await self._expand(received, request, is_ours=False)
            else:
                settled = await self._settle_here(received, request, passes_foreign=passes_foreign and answers is None)
        except CompactionRequestError:
            self._observe(route, tenant, model, "refused")
            raise
        if settled.read:
            self._observe(route, tenant, model, "read")
        if settled.foreign:
            self._observe(route, tenant, model, "foreign")
        if settled.body == request.body:
            return request, settled
        received.admission.hold(max(0, len(settled.body) - len(request.body)))
        return settled.carried_in(await self._reread(received, request, settled.body)), settled

    async def _settle_here(self, received: Received, request: CountedRequest, *, passes_foreign: bool) -> Settled:
        """Return the request's part that the proxy handles, and the request without it."""
        settled = await self._expand(received, request, is_ours=True, passes_foreign=passes_foreign)
        if received.head.is_compact:
            settled = replace(settled, compaction_request=replace(settled.compaction_request, how="endpoint"))
        if received.head.is_count and settled.compaction_request.how == "demand":
            return replace(settled, compaction_request=CompactionRequest())
        if settled.compaction_request.how in AT_ONCE:
            if settled.passed:  # an item of the proxy cannot hold items from elsewhere
                return await self._settle_here(received, request, passes_foreign=False)
            _check_whole(request, settled)
        elif settled.compaction_request.how is not None and request.settings.passthrough in _STORED:
            return replace(settled, compaction_request=CompactionRequest(), is_ignored=True)
        return settled

    async def _expand(
        self, received: Received, request: CountedRequest, *, is_ours: bool, passes_foreign: bool = False
    ) -> Settled:
        caller, expander = received.caller, self._engine.clients.expander
        is_strict = caller.policy.fail == "closed"
        return await self._engine.workers.run(
            lambda: expander.settle(
                request, caller.tenant, is_ours=is_ours, is_strict=is_strict, passes_foreign=passes_foreign
            )
        )

    async def with_erasures(self, settled: Settled) -> Settled:
        """Return the settled request, marked if an opened item holds text of a session erased since."""
        if not settled.places:
            return settled
        were_erased = await self._engine.sessions.epochs.were_erased([link for _, link in settled.places])
        return replace(settled, is_erased=any(were_erased))

    def _observe(self, route: Route, tenant: str, model: str, item_event: What) -> None:
        self._engine.observe(note("compaction_item", tenant, upstream=route.name, model=model, what=item_event))

    async def _reread(self, received: Received, request: CountedRequest, body: bytes) -> CountedRequest:
        """Read the request with another body."""
        encoding = received.active.router.encoding
        read = await self._engine.reader.read(body, received.caller.scope, encoding, request.dialect)
        if read is None:
            raise InvalidRequestError("The request cannot be read with its compaction items in place.")
        return structs.replace(read, is_ours=True)

    async def _with_body(self, received: Received, plan_input: PlanInput, read: CountedRequest) -> PlanInput:
        """Return the plan input with another request in place of its own."""
        dropped = plan_input.request.received_tokens - read.tokens
        request = structs.replace(read, dropped_tokens=max(0, dropped))
        routed = routed_request(
            request, plan_input.caller, plan_input.mode, plan_input.label, plan_input.route, plan_input.experience
        )
        return await self._engine.prompt_builder.place(with_lessons(routed, received.active.router))

    async def edit(
        self, received: Received, plan_input: PlanInput, compaction: ClientCompaction
    ) -> tuple[ClientCompaction, PlanInput]:
        """Edit the request as its client asks: clear old results, and add an item if it is long enough."""
        settled = compaction.settled
        compaction, plan_input = await self.clear_results(received, plan_input, compaction)
        if settled.compaction_request.how is None or not await self.is_due(plan_input, settled):
            return compaction, plan_input
        made_item = await self.make(plan_input, settled)
        expanded = self._engine.clients.expander.expand_settled(plan_input.request, made_item.item)
        read = expanded.carried_in(await self._reread(received, plan_input.request, expanded.body))
        return replace(compaction, made_item=made_item), await self._with_body(received, plan_input, read)

    async def clear_results(
        self, received: Received, plan_input: PlanInput, compaction: ClientCompaction
    ) -> tuple[ClientCompaction, PlanInput]:
        """Clear the old results that the client wants cleared."""
        clearing, request = compaction.settled.compaction_request.clearing, plan_input.request
        if clearing is None:
            return compaction, plan_input
        budget = plan_input.limits.budget
        cleared = await self._engine.workers.run(lambda: clear(request, clearing, budget))
        if cleared is None:
            return compaction, plan_input
        read = structs.replace(await self._reread(received, request, cleared.body), carried=request.carried)
        return replace(compaction, cleared=cleared), await self._with_body(received, plan_input, read)

    async def verdict(self, plan_input: PlanInput, compaction: ClientCompaction) -> tuple[Outcome, str] | None:
        """Return outcome and reason of a request that is answered with a compaction or cleared; None for any other."""
        if compaction.how in AT_ONCE:
            return "applied", "client_request"
        if compaction.how is not None and await self.is_due(plan_input, compaction.settled):
            return "applied", "client_threshold"
        return None

    async def is_due(self, plan_input: PlanInput, settled: Settled) -> bool:
        """Return True if the request gets an item.

        It does at the client's threshold, at the policy's, or after a record that the client does not know.
        """
        decision = await self._engine.planner.plan(plan_input)
        if isinstance(decision.plan, Compact):
            return True
        if decision.record is not None and self._engine.clients.maker.fits_in_tail(plan_input, decision.record):
            return True
        threshold = settled.compaction_request.threshold
        if threshold is None:
            return False
        conversation = decision.view.conversation if decision.view else plan_input.conversation
        return plan_input.real_tokens(tokens_with(conversation, active_checkpoint(decision.record))) >= threshold

    async def make(self, plan_input: PlanInput, settled: Settled) -> MadeItem:
        """Make an item for the history of a request."""
        made_item = await self._engine.clients.maker.make(plan_input, settled, settled.compaction_request.instructions)
        self._observe(plan_input.route, plan_input.caller.tenant, plan_input.request.settings.model, "made")
        engine, model = self._engine, plan_input.request.settings.model
        listing = engine.sessions.add(
            plan_input.caller, plan_input.chain, plan_input.label, model, made_item.item.record
        )
        engine.background.start("enroll", listing)
        return made_item

    async def answer_alone(
        self, exchange: Exchange, plan_input: PlanInput, compaction: ClientCompaction, headers: Callable[[], Headers]
    ) -> ClientCompaction:
        """Write a response that is only a compaction. Returns the compaction with the item."""
        compacting = plan_input.request.dialect.compacting
        assert compacting is not None  # noqa: S101 - the dialect had to parse the request
        if plan_input.request.settings.stream and compaction.how != "endpoint":
            return await self._stream(exchange, plan_input, compaction, headers)
        made_item = compaction.made_item or await self.make(plan_input, compaction.settled)
        compaction = replace(compaction, made_item=made_item)
        answer = compaction.answer(plan_input.request.dialect)
        endpoint = plan_input.request.dialect.compact_endpoint if compaction.how == "endpoint" else None
        body = (
            endpoint.answer_of(answer, _kept_user_items(plan_input))
            if endpoint is not None
            else compacting.full_response(answer)
        )
        length = (b"content-length", b"%d" % len(body))
        if exchange.is_begun_by_sign:
            return compaction
        await exchange.start(200, [(b"content-type", b"application/json"), length, *headers()])
        await exchange.write(body, more=False)
        return compaction

    async def _stream(
        self, exchange: Exchange, plan_input: PlanInput, compaction: ClientCompaction, headers: Callable[[], Headers]
    ) -> ClientCompaction:
        """Write the response as events. The first ones are sent immediately."""
        dialect = plan_input.request.dialect
        compacting = dialect.compacting
        assert compacting is not None  # noqa: S101 - the dialect had to parse the request
        started = compaction.answer(dialect)
        await exchange.start(
            200, [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache"), *headers()]
        )
        has_progress = plan_input.summarizer is not None and compaction.made_item is None
        opening = b"".join(compacting.opening(started)) + (compacting.progress(started) if has_progress else b"")
        await exchange.write(opening, more=True)
        keep_alive = keep_alive_of(exchange, plan_input)
        try:
            if keep_alive is not None:
                keep_alive.start(1)
            made_item = compaction.made_item or await self.make(plan_input, compaction.settled)
            if keep_alive is not None:
                keep_alive.stop()
        except Exception:
            await exchange.write(compacting.failing(started, _FAILED, has_progress=has_progress), more=False)
            raise
        compaction = replace(compaction, made_item=made_item)
        await exchange.write(
            b"".join(compacting.closing(compaction.answer(dialect), has_progress=has_progress)), more=False
        )
        return compaction


def compaction_of(settled: Settled, request: CountedRequest, exchange: Exchange) -> ClientCompaction:
    """Return the client's compaction of a settled request."""
    return ClientCompaction(settled, request.settings.model, exchange.id, int(time.time()))


def route_for_settled(route: Route, dialect: Dialect) -> Route:
    """Return the route without the betas that were handled, and for an uncompressed response."""
    headers = [*without(route.headers, b"accept-encoding"), (b"accept-encoding", b"identity")]
    names = tuple(name.encode() for name in dialect.compacting.BETAS) if dialect.compacting else ()
    betas = betas_of(headers)
    remaining = [beta for beta in betas if not (names and beta.startswith(names))]
    if len(remaining) < len(betas):
        headers = without(headers, _BETAS)
        headers += [(_BETAS, b",".join(remaining))] if remaining else []
    return structs.replace(route, headers=headers)


def rewriting(attempt: Attempt, compaction: ClientCompaction, answer: UpstreamAnswer) -> Rewriting | None:
    """Return a filter that rewrites the model's response; None to relay it unchanged."""
    if not 200 <= attempt.status < 300 or answer.response.header(b"content-encoding") not in (None, b"identity"):
        return None
    inserter = compaction.inserter(attempt.head.dialect)
    if inserter is None:
        return None
    return ItemInAnswer(inserter) if answer.is_event_stream else BodyRewriter(partial(with_item, inserter=inserter))


def item_in(compaction: ClientCompaction, rewritten: Rewriting | None) -> Literal["made", "read"] | None:
    """Return `made` if the response has an item of the proxy, `read` if the request had one; else None."""
    if compaction.made_item is not None and rewritten is not None:
        return "made"
    return "read" if compaction.settled.read else None


def count_restorer(attempt: Attempt, compaction: ClientCompaction) -> BodyRewriter | None:
    """Return a filter that adds the count before clearing; None if nothing was cleared."""
    clearing, cleared = attempt.head.dialect.clearing, compaction.cleared
    if clearing is None or cleared is None or attempt.status != 200:
        return None
    return BodyRewriter(lambda counted: clearing.with_original(counted, cleared.tokens))


def stored_state_in(body: bytes) -> str | None:
    """Return the field by which a body names a history that its provider stores; None if there is none."""
    try:
        members = json_array.members_of(body)
    except InvalidJSONError:
        return None
    return next((name for name in _STORED if not members.get(name, b":null").endswith(b":null")), None)


def stored_state_error(field: str) -> CompactionRequestError:
    """Return the error for compacting a history that only the provider stores."""
    code = "previous_response_not_found" if field == "previous_response_id" else None
    return CompactionRequestError(_STORED_STATE.format(field=field), param=field, code=code)


def _check_whole(request: CountedRequest, settled: Settled) -> None:
    """Raise CompactionRequestError for a history that cannot be compacted as a whole."""
    compacting, passthrough = request.dialect.compacting, request.settings.passthrough
    assert compacting is not None  # noqa: S101 - the dialect had to parse the request
    if passthrough in _STORED:
        raise stored_state_error(passthrough)
    items = msgspec.json.decode(readable(settled.body)).get(request.dialect.array.name)
    if isinstance(items, list) and (refusal := compacting.unfinished_calls_error(items)) is not None:
        raise refusal


def _kept_user_items(plan_input: PlanInput) -> list[Mapping[str, object]]:
    """Return the user's newest messages as items, in order."""
    request, endpoint = plan_input.request, plan_input.request.dialect.compact_endpoint
    assert endpoint is not None  # noqa: S101 - only its requests get here
    remaining = min(_MOST_KEPT, int(_KEPT_SHARE * plan_input.limits.budget.movable))
    items: list[Mapping[str, object]] = []
    for position in reversed(plan_input.conversation.users):
        index, message = plan_input.conversation.index(position), plan_input.conversation.body[position]
        is_ours = request.carried is not None and request.carried.index == index
        item = json_array.decode(json_array.split_items(request.readable_bytes(index))[-1])
        if is_ours or (repeated := endpoint.kept_user(item)) is None:
            continue
        remaining -= message.tokens
        if remaining < 0:
            break
        items.append(repeated)
    return items[::-1]
