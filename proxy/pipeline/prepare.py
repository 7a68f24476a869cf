"""From a received request to a prompt: read it, find its route, plan it, and build the prompt."""

import time

from msgspec.structs import replace

from proxy import errors
from proxy.callers.session_label import label_given
from proxy.compaction.engine import Engine
from proxy.compaction.plan_input import (
    Mode,
    Outcome,
    PlanInput,
    RoutedRequest,
    from_separator,
    plan_input_of,
    routed_request,
    with_lessons,
)
from proxy.compaction.prompt import Prompt
from proxy.compaction.provider.clients import ClientCompaction
from proxy.compaction.provider.expansion import Settled
from proxy.compaction.provider.hosts import answers_compactions
from proxy.compaction.provider.sealed_items import PREFIX_IN_JSON
from proxy.dialects import json_array, pieces
from proxy.dialects.compaction import AT_ONCE, NOTHING, CompactionRequestError
from proxy.pipeline.client_compaction import (
    CompactionAnswers,
    ItemUnavailableError,
    compaction_of,
    route_for_settled,
    stored_state_error,
    stored_state_in,
)
from proxy.pipeline.lessons import WORTH_LOOKING_UP
from proxy.pipeline.receive import Receiver
from proxy.pipeline.report import waiting
from proxy.pipeline.stages import Attempt, Received, make_attempt
from proxy.runtime.deadlines import within
from proxy.runtime.fail_open import FailOpen
from proxy.upstreams.http import RequestTemplate, UpstreamClient


class Preparer:
    """Prepares attempts. One per process."""

    def __init__(
        self,
        receiver: Receiver,
        engine: Engine,
        compaction: CompactionAnswers,
        client: UpstreamClient,
        fail_open: FailOpen,
    ) -> None:
        """Create a preparer."""
        self._receiver = receiver
        self._engine = engine
        self._compaction = compaction
        self._client = client
        self._fail_open = fail_open

    async def prepare(self, received: Received, *, passes_foreign: bool = True) -> Attempt:
        """Read, route and plan a request, and build its prompt. A request far below its window waits for nothing.

        passes_foreign: as in `CompactionAnswers.settle`.
        """
        started = time.perf_counter()
        request = await self._receiver.read(received)
        await self._receiver.reserve(received, request)
        read = time.perf_counter()
        if request is None:
            await self._check_readable(received)
            return _unchanged_attempt(received, "bypass", await self.unread_reason(received))
        engine, router, sender = self._engine, received.active.router, received.sender
        sender.repeated = request.repeated
        model_route, settled = sender.route(received.head, request.settings.model, self._client, read), None
        if request.compacts or received.head.is_compact:
            request, settled = await self._compaction.settle(
                received, request, model_route.route, passes_foreign=passes_foreign
            )
            settled = await self._compaction.with_erasures(settled)
        # Nothing of an erased session is stored. Its client may continue it.
        mode: Mode = "off" if settled is not None and settled.is_erased else sender.mode
        request = from_separator(request, sender.caller, mode)
        if request.tokens >= WORTH_LOOKING_UP and not engine.windows.is_looked_up(model_route.route.place):
            await engine.windows.look_up(model_route.route.place)
            model_route = sender.route(received.head, request.settings.model, self._client, read)
        label = sender.label(received.head) or label_given(request)
        routed = routed_request(request, sender.caller, mode, label, model_route.route, model_route.experience)
        routed = await engine.apply_manual_compaction(routed)
        if settled is not None:
            return await self._prepare_compaction(received, routed, settled)
        if routed.is_plain and not router.has_overflowed(routed.place, routed.chain):
            return make_attempt(
                received, routed.route, engine.prompt_builder.plain(routed), routed, model_route.template
            )
        return await self._prepare_prompt(received, routed, model_route.template, started, read)

    async def _prepare_prompt(
        self, received: Received, routed: RoutedRequest, template: RequestTemplate | None, started: float, read: float
    ) -> Attempt:
        """Plan a request that may have to be compacted. started, read: the times when reading began and ended."""
        async with within(received.timeout):
            plan_input = with_lessons(routed, received.active.router)
            with waiting(received.exchange, plan_input, self._fail_open):
                plan_input = await self._engine.prompt_builder.place(plan_input)
                placed = time.perf_counter()
                prompt = await self._engine.prompt_builder.build_first(plan_input)
        return make_attempt(
            received, plan_input.route, prompt, plan_input, template, _stages(prompt, started, read, placed)
        )

    async def _prepare_compaction(self, received: Received, routed: RoutedRequest, settled: Settled) -> Attempt:
        """Plan a request whose client asks for a compaction or sends back an item."""
        started, dialect, router = time.perf_counter(), routed.request.dialect, received.active.router
        compaction = compaction_of(settled, routed.request, received.exchange)
        if received.head.is_compact and compaction.how is None:
            plan_input = await self._engine.prompt_builder.place(with_lessons(routed, router))
            prompt = Prompt(plan_input.request.body, plan_input.request.tokens, "bypass", "provider_compaction")
            return make_attempt(received, routed.route, prompt, plan_input, compaction=compaction)
        if settled.passed and compaction.how is not None:
            plan_input = await self._engine.prompt_builder.place(with_lessons(routed, router))
            if await self._compaction.is_due(
                plan_input, settled
            ):  # an item of the proxy cannot hold items from elsewhere
                return await self.prepare(received, passes_foreign=False)
        routed = replace(
            routed, route=route_for_settled(routed.route, dialect) if routed.request.is_ours else routed.route
        )
        if compaction.how in AT_ONCE:
            plan_input = await self._engine.prompt_builder.place(with_lessons(routed, router))
            prompt = Prompt(
                plan_input.request.body, plan_input.request.tokens, "applied", "client_request", warning=settled.warning
            )
            return make_attempt(received, plan_input.route, prompt, plan_input, compaction=compaction)
        if settled.compaction_request != NOTHING:
            async with within(received.timeout):
                plan_input = with_lessons(routed, router)
                with waiting(received.exchange, plan_input, self._fail_open):
                    plan_input = await self._engine.prompt_builder.place(plan_input)
                    compaction, plan_input = await self._compaction.edit(received, plan_input, compaction)
            if compaction.made_item is not None:
                prompt = Prompt(plan_input.request.body, plan_input.request.tokens, "applied", "client_threshold")
                prompt = await self._engine.prompt_builder.with_pins(
                    plan_input, replace(prompt, warning=settled.warning)
                )
                return make_attempt(received, plan_input.route, prompt, plan_input, compaction=compaction)
            routed = plan_input
        attempt = await self._prepare_prompt(received, routed, None, started, started)
        prompt = attempt.prompt
        if prompt.outcome == "none" and compaction.cleared is not None:
            prompt = replace(prompt, outcome="applied", reason="cleared")
        attempt.first = attempt.prompt = replace(prompt, warning=settled.warning or prompt.warning)
        attempt.compaction = compaction
        return attempt

    async def prepare_count(self, received: Received) -> Attempt:
        """Return an attempt to count a request's tokens. No record is made for it."""
        async with within(received.timeout):
            request = await self._receiver.read(received)
            if request is None:
                return _unchanged_attempt(received, "bypass", await self.unread_reason(received))
            head, router = received.head, received.active.router
            plan_input = plan_input_of(head, router, received.caller, received.mode, request)
            compaction = None
            if request.compacts:
                compaction, plan_input = await self.without_compaction(received, plan_input)
            prompt = await self._engine.read_only().prompt_builder.place_and_build(plan_input)
            return make_attempt(received, plan_input.route, prompt, plan_input, compaction=compaction)

    async def without_compaction(self, received: Received, plan_input: PlanInput) -> tuple[ClientCompaction, PlanInput]:
        """Return the client's compaction, and the request without it, to be counted or explained."""
        compactions = CompactionAnswers(self._engine.read_only())
        request, settled = await compactions.settle(received, plan_input.request, plan_input.route)
        plan_input = plan_input_of(received.head, received.active.router, received.caller, received.mode, request)
        if request.is_ours:
            plan_input = replace(plan_input, route=route_for_settled(plan_input.route, request.dialect))
        compaction = compaction_of(settled, request, received.exchange)
        return await compactions.clear_results(received, plan_input, compaction)

    async def _check_readable(self, received: Received) -> None:
        """Raise an error if a request that must be read cannot be read."""
        head, dialect = received.head, received.head.dialect
        if await self._engine.workers.run(pieces.holds, received.body, PREFIX_IN_JSON):
            raise errors.InvalidRequestError("The request has a compaction item, but cannot be read.", param="input")
        if head.is_compact and received.mode not in ("off", "shadow"):
            field = await self._engine.workers.run(stored_state_in, received.body)
            route = received.active.router.conversation(head, received.caller, dialect.model_of(received.body))
            if answers_compactions(route.upstream, dialect):
                return
            if field is not None:
                raise stored_state_error(field)
            raise CompactionRequestError("It must be a string or a list of at least one item.", param="input")

    async def unread_reason(self, received: Received) -> str:
        """Return the reason why a request was not read: the bound that it exceeds, or its shape."""
        if received.head.header(b"content-encoding") is not None:
            return "unknown_shape"
        return await self._engine.workers.run(json_array.bound_over, received.body) or "unknown_shape"


def _stages(prompt: Prompt, started: float, read: float, placed: float) -> dict[str, float]:
    """Return milliseconds by step.

    started, read, placed: the times when reading began and ended, and after the store.
    """
    rebuilt = time.perf_counter() - placed - prompt.planned - prompt.waited
    seconds = {"read": read - started, "store": placed - read, "plan": prompt.planned, "rebuild": rebuilt}
    return {stage: round(1000 * spent, 2) for stage, spent in seconds.items()}


def _unchanged_attempt(received: Received, outcome: Outcome, reason: str) -> Attempt:
    """Return an attempt with the client's bytes, uncounted."""
    head = received.head
    route = received.active.router.plain(head, received.caller, head.model_of(received.body))
    return make_attempt(received, route, Prompt(received.body, 0, outcome, reason))


def failed_open(received: Received) -> Attempt:
    """Return an attempt with the client's bytes, after an internal error. Raises ItemUnavailableError."""
    if PREFIX_IN_JSON in received.body:
        raise ItemUnavailableError
    return _unchanged_attempt(received, "failed-open", "internal_error")
