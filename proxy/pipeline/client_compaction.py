"""Requests in which a client asks for a compaction by a provider's protocol, or brings one of ours back."""

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
from proxy.pipeline.item_in_answer import ItemInAnswer, WholeRewritten, with_item
from proxy.pipeline.report import keep_alive_of
from proxy.pipeline.stages import Attempt, Received
from proxy.server.exchange import Exchange
from proxy.server.headers import Headers, without
from proxy.telemetry.events import note
from proxy.upstreams.routes import Route

_BETAS = b"anthropic-beta"
_STORED = ("previous_response_id", "conversation", "thread")
Rewriting = ItemInAnswer | WholeRewritten
What = Literal["made", "read", "refused", "foreign"]
_FAILED = "The conversation could not be compacted."
# What of the user's messages the endpoint's answer repeats, in tokens and as a share of M.
_MOST_KEPT, _KEPT_SHARE = 20_000, 0.2
_STORED_STATE = (
    "The history is stored with the provider ({field}), and this upstream compacts none; send the items themselves as"
    ' `input` (Agents SDK: compaction_mode="input").'
)


class ItemUnavailableError(ProxyError):
    """A fault of ours while an item was opened, which nobody else can do."""

    status = 503
    code = "compaction_item_unavailable"
    retryable = True
    retry_after = 2
    message = "The compaction item could not be opened just now; send the request again."


class CompactionAnswers:
    """Answers what is asked for; one per process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def settle(
        self, received: Received, request: CountedRequest, route: Route, *, passes_foreign: bool = True
    ) -> tuple[CountedRequest, Settled]:
        """Return the request without its part in a compaction, and what that part was.

        If the upstream answers, only items of ours are replaced. passes_foreign: leave the items of others in the
        request if nothing says whether the upstream reads them. Raises CompactionRequestError for a request that no
        provider takes.
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
        """Return what the request asks of the proxy, and the request without that."""
        settled = await self._expand(received, request, is_ours=True, passes_foreign=passes_foreign)
        if received.head.is_compact:
            settled = replace(settled, asked=replace(settled.asked, how="endpoint"))
        if received.head.is_count and settled.asked.how == "demand":
            return replace(settled, asked=CompactionRequest())
        if settled.asked.how in AT_ONCE:
            if settled.passed:  # an item of ours holds no item of others
                return await self._settle_here(received, request, passes_foreign=False)
            _check_whole(request, settled)
        elif settled.asked.how is not None and request.settings.passthrough in _STORED:
            return replace(settled, asked=CompactionRequest(), is_ignored=True)
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
        """Return what was settled, with whether an item that was opened holds text of a session erased since."""
        if not settled.places:
            return settled
        were_erased = await self._engine.sessions.epochs.were_erased([link for _, link in settled.places])
        return replace(settled, is_erased=any(were_erased))

    def _observe(self, route: Route, tenant: str, model: str, what: What) -> None:
        self._engine.observe(note("compaction_item", tenant, upstream=route.name, model=model, what=what))

    async def _reread(self, received: Received, request: CountedRequest, body: bytes) -> CountedRequest:
        """Read the request with another body."""
        encoding = received.active.router.encoding
        read = await self._engine.reader.read(body, received.caller.scope, encoding, request.dialect)
        if read is None:
            raise InvalidRequestError("The request cannot be read with its compaction items in place.")
        return structs.replace(read, is_ours=True)

    async def _with_body(self, received: Received, case: PlanInput, read: CountedRequest) -> PlanInput:
        """Return the case with another request in place of its own."""
        dropped = case.request.received_tokens - read.tokens
        request = structs.replace(read, dropped_tokens=max(0, dropped))
        named = routed_request(request, case.caller, case.mode, case.label, case.route, case.experience)
        return await self._engine.prompt_builder.place(with_lessons(named, received.active.router))

    async def edit(
        self, received: Received, case: PlanInput, compaction: ClientCompaction
    ) -> tuple[ClientCompaction, PlanInput]:
        """Edit the request as its client asks: without old results, and with an item if it is long enough."""
        settled = compaction.settled
        compaction, case = await self.clear_results(received, case, compaction)
        if settled.asked.how is None or not await self.is_due(case, settled):
            return compaction, case
        made = await self.make(case, settled)
        expanded = self._engine.clients.expander.expand_settled(case.request, made.item)
        read = expanded.carried_in(await self._reread(received, case.request, expanded.body))
        return replace(compaction, made=made), await self._with_body(received, case, read)

    async def clear_results(
        self, received: Received, case: PlanInput, compaction: ClientCompaction
    ) -> tuple[ClientCompaction, PlanInput]:
        """Leave out the old results that the client wants to be cleared."""
        clearing, request = compaction.settled.asked.clearing, case.request
        if clearing is None:
            return compaction, case
        budget = case.limits.budget
        cleared = await self._engine.workers.run(lambda: clear(request, clearing, budget))
        if cleared is None:
            return compaction, case
        read = structs.replace(await self._reread(received, request, cleared.body), carried=request.carried)
        return replace(compaction, cleared=cleared), await self._with_body(received, case, read)

    async def verdict(self, case: PlanInput, compaction: ClientCompaction) -> tuple[Outcome, str] | None:
        """Outcome and reason of a request that is answered with a compaction, or in which something is cleared; None
        for what would be done with any other."""
        if compaction.how in AT_ONCE:
            return "applied", "client_request"
        if compaction.how is not None and await self.is_due(case, compaction.settled):
            return "applied", "client_threshold"
        return None

    async def is_due(self, case: PlanInput, settled: Settled) -> bool:
        """Return True if the request gets an item: at the client's threshold, at the policy's, or after a record that
        the client does not know."""
        decision = await self._engine.planner.plan(case)
        if isinstance(decision.plan, Compact):
            return True
        if decision.record is not None and self._engine.clients.maker.fits_in_tail(case, decision.record):
            return True
        threshold = settled.asked.threshold
        if threshold is None:
            return False
        conversation = decision.view.conversation if decision.view else case.conversation
        return case.real_tokens(tokens_with(conversation, active_checkpoint(decision.record))) >= threshold

    async def make(self, case: PlanInput, settled: Settled) -> MadeItem:
        """Make an item for the history of a request."""
        made = await self._engine.clients.maker.make(case, settled, settled.asked.instructions)
        self._observe(case.route, case.caller.tenant, case.request.settings.model, "made")
        engine, model = self._engine, case.request.settings.model
        listing = engine.sessions.add(case.caller, case.chain, case.label, model, made.item.record)
        engine.background.start("enroll", listing)
        return made

    async def answer_alone(
        self, exchange: Exchange, case: PlanInput, compaction: ClientCompaction, headers: Callable[[], Headers]
    ) -> ClientCompaction:
        """Write the answer that is a compaction alone; returns it with the item that was made."""
        compacting = case.request.dialect.compacting
        assert compacting is not None  # noqa: S101 - it was asked for one
        if case.request.settings.stream and compaction.how != "endpoint":
            return await self._stream(exchange, case, compaction, headers)
        made = compaction.made or await self.make(case, compaction.settled)
        compaction = replace(compaction, made=made)
        answer = compaction.answer(case.request.dialect)
        endpoint = case.request.dialect.compact_endpoint if compaction.how == "endpoint" else None
        body = endpoint.answer_of(answer, _kept_user_items(case)) if endpoint is not None else compacting.whole(answer)
        length = (b"content-length", b"%d" % len(body))
        if exchange.is_begun_by_sign:
            return compaction
        await exchange.start(200, [(b"content-type", b"application/json"), length, *headers()])
        await exchange.write(body, more=False)
        return compaction

    async def _stream(
        self, exchange: Exchange, case: PlanInput, compaction: ClientCompaction, headers: Callable[[], Headers]
    ) -> ClientCompaction:
        """Write the response as events, which begin at once."""
        dialect = case.request.dialect
        compacting = dialect.compacting
        assert compacting is not None  # noqa: S101 - as above
        begun = compaction.answer(dialect)
        await exchange.start(
            200, [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache"), *headers()]
        )
        has_progress = case.summarizer is not None and compaction.made is None
        opening = b"".join(compacting.opening(begun)) + (compacting.progress(begun) if has_progress else b"")
        await exchange.write(opening, more=True)
        signs = keep_alive_of(exchange, case)
        try:
            if signs is not None:
                signs.start(1)
            made = compaction.made or await self.make(case, compaction.settled)
            if signs is not None:
                signs.stop()
        except Exception:
            await exchange.write(compacting.failing(begun, _FAILED, has_progress=has_progress), more=False)
            raise
        compaction = replace(compaction, made=made)
        await exchange.write(
            b"".join(compacting.closing(compaction.answer(dialect), has_progress=has_progress)), more=False
        )
        return compaction


def compaction_of(settled: Settled, request: CountedRequest, exchange: Exchange) -> ClientCompaction:
    return ClientCompaction(settled, request.settings.model, exchange.id, int(time.time()))


def for_settled(route: Route, dialect: Dialect) -> Route:
    """Return the route without the names of features that were taken out, and for a response that may be changed."""
    headers = [*without(route.headers, b"accept-encoding"), (b"accept-encoding", b"identity")]
    names = tuple(name.encode() for name in dialect.compacting.BETAS) if dialect.compacting else ()
    betas = betas_of(headers)
    left = [beta for beta in betas if not (names and beta.startswith(names))]
    if len(left) < len(betas):
        headers = without(headers, _BETAS)
        headers += [(_BETAS, b",".join(left))] if left else []
    return structs.replace(route, headers=headers)


def rewriting(attempt: Attempt, compaction: ClientCompaction, answer: UpstreamAnswer) -> Rewriting | None:
    """Return what rewrites the model's response, None to pass it on as it is."""
    if not 200 <= attempt.status < 300 or answer.response.header(b"content-encoding") not in (None, b"identity"):
        return None
    inserter = compaction.inserter(attempt.head.dialect)
    if inserter is None:
        return None
    return ItemInAnswer(inserter) if answer.is_event_stream else WholeRewritten(partial(with_item, inserter=inserter))


def item_in(compaction: ClientCompaction, rewritten: Rewriting | None) -> Literal["made", "read"] | None:
    """Return `made` if the response has an item of ours, `read` if the request had one, else None."""
    if compaction.made is not None and rewritten is not None:
        return "made"
    return "read" if compaction.settled.read else None


def counted_before(attempt: Attempt, compaction: ClientCompaction) -> WholeRewritten | None:
    """Return what adds the count before something was cleared, None if nothing was."""
    clearing, cleared = attempt.head.dialect.clearing, compaction.cleared
    if clearing is None or cleared is None or attempt.status != 200:
        return None
    return WholeRewritten(lambda counted: clearing.with_original(counted, cleared.tokens))


def stored_state_in(body: bytes) -> str | None:
    """Return the field by which a body names a history that its provider stores, None if there is none."""
    try:
        members = json_array.members_of(body)
    except InvalidJSONError:
        return None
    return next((name for name in _STORED if not members.get(name, b":null").endswith(b":null")), None)


def stored_state_error(field: str) -> CompactionRequestError:
    """Return the refusal of a compaction of what only the provider has."""
    code = "previous_response_not_found" if field == "previous_response_id" else None
    return CompactionRequestError(_STORED_STATE.format(field=field), param=field, code=code)


def _check_whole(request: CountedRequest, settled: Settled) -> None:
    """Raise CompactionRequestError for a history that cannot be compacted as a whole."""
    compacting, passthrough = request.dialect.compacting, request.settings.passthrough
    assert compacting is not None  # noqa: S101 - it was asked for one
    if passthrough in _STORED:
        raise stored_state_error(passthrough)
    items = msgspec.json.decode(readable(settled.body)).get(request.dialect.array.name)
    if isinstance(items, list) and (refusal := compacting.unfinished_calls_error(items)) is not None:
        raise refusal


def _kept_user_items(case: PlanInput) -> list[Mapping[str, object]]:
    """Return the user's newest messages as items, in their order."""
    request, endpoint = case.request, case.request.dialect.compact_endpoint
    assert endpoint is not None  # noqa: S101 - it was asked for
    left = min(_MOST_KEPT, int(_KEPT_SHARE * case.limits.budget.movable))
    found: list[Mapping[str, object]] = []
    for position in reversed(case.conversation.users):
        index, message = case.conversation.index(position), case.conversation.body[position]
        is_ours = request.carried is not None and request.carried.index == index
        item = json_array.decode(json_array.split_items(request.readable_bytes(index))[-1])
        if is_ours or (kept := endpoint.kept_user(item)) is None:
            continue
        left -= message.tokens
        if left < 0:
            break
        found.append(kept)
    return found[::-1]
