"""Sending prompts upstream until one is accepted: smaller ones after an overflow, others if a form is rejected."""

from dataclasses import replace

from msgspec import structs

from policies.decision.assemble import Shape
from policies.decision.overflow_retries import Retry, StatedLimit, is_plausible, next_retry, retries
from policies.numbers import SMALL_PROMPT
from proxy.compaction.plan_input import PlanInput, with_newest_lessons
from proxy.compaction.prompt import Prompt, reshaped_prompts, unmarked_prompt, untouched_prompt
from proxy.compaction.prompt_builder import PromptBuilder
from proxy.dialects import json_array
from proxy.errors import CompactionFailedError, ProxyError, UpstreamConnectionError
from proxy.models.windows import Windows
from proxy.pipeline.answers import UpstreamAnswer, inspect_response
from proxy.pipeline.media_retry import MediaRetry, stated_excess
from proxy.pipeline.report import wait_for_upstream, waiting
from proxy.pipeline.stages import Attempt
from proxy.runtime.fail_open import FailOpen
from proxy.server.headers import Headers, without
from proxy.telemetry.events import Hook, note
from proxy.upstreams.http import TruncatedError, UpstreamClient, UpstreamResponse
from proxy.upstreams.refusals.error_parts import words_of
from proxy.upstreams.refusals.form_refusals import refuses_roles, refuses_sealed, refuses_thinking, refuses_usage
from proxy.upstreams.refusals.output_refusals import most_output
from proxy.upstreams.response import is_event_stream
from proxy.upstreams.routes import conversation_url

_FAILED = 400
_TRUNCATED = "The upstream closed the connection in the middle of its response."
REFUSED = (400, 422)
# The largest body of a client into which a request for usage is inserted.
_MOST_ASKED = 1024 * 1024
# Reasons of prompts for which the client's own request has already overflowed.
_FORCED = ("overflow_retry", "halved")
# Intervals of silence after which a keep-alive begins the response: before the upstream's header block, and after.
_BEFORE_HEADERS, _AFTER_HEADERS = 2, 1
PIN_LEFT_OUT = "pin_left_out"
"""The warning if a pinned text is not in the prompt."""
_MOST_NAMED = 5
_PINS_LOST = (
    "Pinned text is not in the prompt ({sources}), and the policy does not allow leaving it out; pin less or raise"
    " pins.budget_ratio. What was pinned late is there after x-compaction: force."
)
Sent = tuple[UpstreamAnswer, Prompt]
"""A response, and the prompt that it responds to."""

# Replaces a prompt that an internal error prevented.
_FAULT = Prompt(b"", 0, "failed-open", "internal_error")


class Attempts:
    """Sends prompts until an upstream accepts one. One per process."""

    def __init__(
        self,
        prompt_builder: PromptBuilder,
        windows: Windows,
        client: UpstreamClient,
        fail_open: FailOpen,
        observe: Hook,
    ) -> None:
        """Create a sender that learns through `windows`."""
        self._prompt_builder = prompt_builder
        self._windows = windows
        self._client = client
        self._fail_open = fail_open
        self._observe = observe
        self._media = MediaRetry(prompt_builder, windows, fail_open, observe, self._deliver)

    async def send_until_accepted(self, attempt: Attempt) -> Sent:
        """Send the prompt. While the upstream rejects it, send another one without the rejected part.

        Returns the response to relay and its prompt. Nothing has been sent to the client yet. Raises ProxyError if the
        upstream does not respond to the first prompt.
        """
        sent = await self._media.send_first(attempt)
        for mend in (self._media.mend, self._mend_size, self._mend_rewrite):
            sent = await mend(attempt, sent)
        return sent

    async def _mend_size(self, attempt: Attempt, refused: Sent) -> Sent:
        """Lower the output limit if only that was rejected, and shrink the prompt if it overflows.

        Returns the original rejection if nothing helps.
        """
        answer, sent = refused
        if not answer.is_refusal or (plan_input := attempt.plan_input) is None or not plan_input.retries:
            return refused
        stated, most = stated_excess(plan_input, *refused), None
        if stated is None:
            answer, sent = await self._retry_capped(attempt, refused)
            stated, most = answer.overflow, sent.max_output
            if stated is None:
                return answer, sent
        return await self._smaller(attempt, sent, stated, most) or refused

    async def _mend_rewrite(self, attempt: Attempt, refused: Sent) -> Sent:
        """Send the client's own request if only the rewritten one is rejected, without another explanation.

        Returns the original rejection if the original overflows or must not be sent.
        """
        answer, sent = refused
        if answer.overflow is not None or answer.response.status not in REFUSED or sent.reason in _FORCED:
            return refused
        if attempt.may_get_notes:  # the original has the same items
            return refused
        plan_input = attempt.plan_input
        if plan_input is None or sent.body is plan_input.request.body or not plan_input.fits_whole:
            return refused
        if answer.media is not None and plan_input.request.history.has_media:
            return refused  # the original has more media
        original = untouched_prompt(plan_input.request, "failed-open", "refused")
        try:
            second = await self._send(attempt, original)
        except ProxyError:
            return refused
        if second.overflow is not None:
            return refused
        if second.response.status < _FAILED and not second.error:
            self._windows.saw_copy_refused(plan_input.place)
            upstream_and_model, status = _upstream_and_model(plan_input), answer.response.status
            self._observe(
                note(
                    "copy_refused",
                    plan_input.caller.tenant,
                    **upstream_and_model,
                    status=status,
                    words=words_of(answer.error),
                )
            )
        return second, original

    async def send_once(self, attempt: Attempt) -> Sent:
        """Send the prompt once. If only a rewritten prompt is rejected, send the original."""
        answer, sent = await self._deliver(attempt, attempt.first)
        return await self._mend_rewrite(attempt, (answer, sent))

    async def send_unread(self, attempt: Attempt) -> Sent:
        """Send the client's bytes after an internal error, and do not inspect the response."""
        response = await self._respond(attempt, attempt.route.headers, attempt.received.body)
        return UpstreamAnswer(response), attempt.first

    async def _smaller(self, attempt: Attempt, sent: Prompt, stated: StatedLimit, most: int | None) -> Sent | None:
        """Return the first response to a smaller prompt that is not an overflow; None if there is none.

        most: the most output that the upstream allows, if it has stated that.
        """
        ladder = retries(sent, stated, attempt.counted.retries)
        self._learn(attempt, sent, stated)
        refusal: tuple[Prompt, StatedLimit] | None = None
        while (step := next_retry(ladder, refusal)) is not None:
            smaller, refusal = await self._next_prompt(attempt, step, most), None
            if smaller is None:
                continue
            try:
                answer, sent = await self._deliver(attempt, smaller)
            except ProxyError:
                break  # the upstream did respond once, and the client gets that response
            excess = stated_excess(attempt.counted, answer, sent)
            if excess is None:
                attempt.overflow = "output_lowered" if step.lowers_output else "solved"
                if not (step.lowers_output or answer.error):
                    self._learn_size(attempt, step)
                return answer, sent
            refusal = sent, excess
            if step.lowers_output and step.stated.limit is None and attempt.route.window is None:
                most = sent.max_output  # nothing shows that more output could fit next to a smaller prompt
            self._learn(attempt, *refusal)
        if sent is not attempt.first:
            plan_input = attempt.counted
            self._observe(
                note("max_iterations", plan_input.caller.tenant, plan_input.chain.name, retries=plan_input.retries)
            )
        return None

    async def _next_prompt(self, attempt: Attempt, step: Retry[Prompt], most: int | None) -> Prompt | None:
        """Return the prompt of a retry. After an internal error, it is the last one without half of the history."""
        plan_input = attempt.counted
        if step.lowers_output:
            lowered = self._fail_open.call(
                lambda: self._prompt_builder.with_less_output(plan_input, step.refused, step.stated), None
            )
            is_more = lowered is None or most is None or lowered.max_output is None or lowered.max_output < most
            return lowered if is_more else None
        with waiting(attempt.exchange, plan_input, self._fail_open):
            retry = self._prompt_builder.retry(plan_input, step.refused, step.stated, attempt=step.attempt)
            smaller = await self._fail_open.run(retry, _FAULT, attempt.received.timeout)
            if smaller is _FAULT:
                smaller = await self._fail_open.run(self._prompt_builder.halve(plan_input, step.refused), None)
        if smaller is not None:
            attempt.waited += smaller.waited
            refuse_lost_pins(attempt, smaller)
        if smaller is None or most is None or (smaller.max_output is not None and smaller.max_output <= most):
            return smaller
        prompt = smaller
        return (
            self._fail_open.call(lambda: self._prompt_builder.with_capped_output(plan_input, prompt, most), None)
            or prompt
        )

    def _learn(self, attempt: Attempt, sent: Prompt, stated: StatedLimit) -> None:
        plan_input = attempt.counted
        if plan_input.request.settings.is_partial:  # its size is not that of the body
            stated = replace(stated, input_tokens=None)

        def learn() -> PlanInput:
            self._windows.saw_overflow(plan_input.place, stated, sent.tokens, plan_input.chain.session)
            return with_newest_lessons(plan_input, attempt.active.router)

        attempt.routed = self._fail_open.call(learn, plan_input)

    def _learn_size(self, attempt: Attempt, step: Retry[Prompt]) -> None:
        plan_input = attempt.counted

        def learn() -> PlanInput:
            self._windows.saw_shrunk(plan_input.place, plan_input.chain.session, step.stated, step.refused.tokens)
            return with_newest_lessons(plan_input, attempt.active.router)

        attempt.routed = self._fail_open.call(learn, plan_input)

    async def _retry_capped(self, attempt: Attempt, refused: Sent) -> Sent:
        """Send the prompt with the most output that the rejection allows.

        Returns the original rejection if that fails, except for an overflow of the prompt itself.
        """
        capped = self._fail_open.call(lambda: self._capped_prompt(attempt.counted, *refused), None)
        if capped is None:
            return refused
        try:
            answer, sent = await self._deliver(attempt, capped)
        except ProxyError:
            return refused
        if answer.overflow is not None:
            return answer, sent
        return refused if answer.response.status >= _FAILED or answer.error else (answer, sent)

    def _capped_prompt(self, plan_input: PlanInput, answer: UpstreamAnswer, sent: Prompt) -> Prompt | None:
        most = most_output(answer.response.status, answer.error) if answer.error else None
        return None if most is None else self._prompt_builder.with_capped_output(plan_input, sent, most)

    async def _deliver(self, attempt: Attempt, prompt: Prompt) -> Sent:
        """Send a prompt. If its form is rejected, send it in another form."""
        prompt = await self._without_refused_reasoning(attempt, prompt)
        refusal = await self._send(attempt, prompt)
        if not refusal.is_refusal and attempt.routed is not None and prompt.tokens > SMALL_PROMPT:
            self._windows.saw_taken(attempt.routed.place, prompt.tokens)
        if not refusal.is_refusal or (plan_input := attempt.plan_input) is None:
            return refusal, prompt
        if refusal.overflow is not None and not self._is_plausible(plan_input, prompt, refusal.overflow):
            is_empty = refusal.response.status < _FAILED and refusal.overflow.action == "outsized"
            return structs.replace(refusal, overflow=None, error=b"" if is_empty else refusal.error), prompt
        if refuses_thinking(refusal.error, refusal.response.header):  # its error text may mention a signature too
            return await self._without_thinking(attempt, refusal, prompt)
        is_signed = (
            plan_input.request.history.is_signed and not attempt.may_get_notes
        )  # a compaction item is sealed too
        if refuses_sealed(refusal.error) and is_signed and prompt.warning != "reasoning_removed":
            return await self._without_sealed(attempt, refusal, prompt)
        if b"cache_control" in refusal.error or not refuses_roles(refusal.error):
            return await self._without_marks(attempt, refusal, prompt)
        alternatives: list[tuple[Shape, Prompt]] = self._fail_open.call(
            lambda: list(reshaped_prompts(plan_input, prompt)), []
        )
        for shape, alternative in alternatives:
            try:
                answer = await self._send(attempt, alternative)
            except ProxyError:
                break
            if not refuses_roles(answer.error):
                self._windows.saw_shape(plan_input.place, shape)
                self._observe(note("shape", plan_input.caller.tenant, upstream=plan_input.route.name, shape=shape))
                return answer, alternative
        return refusal, prompt

    async def _without_refused_reasoning(self, attempt: Attempt, prompt: Prompt) -> Prompt:
        """Return the prompt without sealed reasoning, if the session's was rejected before."""
        routed = attempt.routed
        if routed is None or not routed.request.history.is_signed:
            return prompt
        if not self._windows.refuses_sealed(routed.place, lambda: routed.chain.session):
            return prompt
        return await self._fail_open.run(self._prompt_builder.without_sealed(routed, prompt), None) or prompt

    async def _without_sealed(self, attempt: Attempt, refusal: UpstreamAnswer, prompt: Prompt) -> Sent:
        """Send the prompt without sealed reasoning of another account, now and later in its session."""
        plan_input = attempt.counted
        without = await self._fail_open.run(self._prompt_builder.without_sealed(plan_input, prompt), None)
        if without is None:
            return refusal, prompt
        self._windows.saw_sealed_refused(plan_input.place, plan_input.chain.session)
        self._observe(note("thinking_removed", plan_input.caller.tenant, **_upstream_and_model(plan_input)))
        try:
            return await self._deliver(attempt, without)
        except ProxyError:
            return refusal, prompt

    async def _without_marks(self, attempt: Attempt, refusal: UpstreamAnswer, prompt: Prompt) -> Sent:
        """Send the prompt without the proxy's cache marks, and learn if they were rejected."""
        plan_input = attempt.counted
        if refusal.overflow is not None or refusal.response.status not in REFUSED:
            return refusal, prompt
        unmarked = self._fail_open.call(lambda: unmarked_prompt(plan_input, prompt), None)
        if unmarked is None:
            return refusal, prompt
        try:
            answer = await self._send(attempt, unmarked)
        except ProxyError:
            return refusal, prompt
        if answer.overflow is None and answer.response.status in REFUSED:
            return refusal, prompt
        self._fail_open.call(lambda: self._windows.saw_marks_refused(plan_input.place), None)
        attempt.routed = self._fail_open.call(
            lambda: with_newest_lessons(plan_input, attempt.active.router), plan_input
        )
        return answer, unmarked

    def _is_plausible(self, plan_input: PlanInput, prompt: Prompt, stated: StatedLimit) -> bool:
        """Return True if a rejection is plausible for the prompt's size.

        It is not if the cache serves most of the prompt.
        """
        if stated.is_uncached and self._windows.was_answered_lately(plan_input.place, plan_input.chain.session):
            return False
        window = plan_input.route.window
        largest = plan_input.real_tokens(self._windows.largest_answered(plan_input.place))
        return is_plausible(stated, plan_input.real_tokens(prompt.tokens), window.tokens if window else None, largest)

    async def _without_thinking(self, attempt: Attempt, refusal: UpstreamAnswer, prompt: Prompt) -> Sent:
        """Send the prompt without thinking, which is bound to the prompt it was made for."""
        plan_input = attempt.counted
        self._fail_open.call(lambda: self._windows.saw_thinking_bound(plan_input.place), None)
        attempt.routed = plan_input = self._fail_open.call(
            lambda: with_newest_lessons(plan_input, attempt.active.router), plan_input
        )
        timeout = attempt.received.timeout
        without = await self._fail_open.run(self._prompt_builder.without_thinking(plan_input, prompt), None, timeout)
        if without is None:
            return refusal, prompt
        self._observe(note("thinking_removed", plan_input.caller.tenant, **_upstream_and_model(plan_input)))
        try:
            return await self._send(attempt, without), without
        except ProxyError:
            return refusal, prompt

    async def _send(self, attempt: Attempt, prompt: Prompt) -> UpstreamAnswer:
        """Send a prompt. A rewritten prompt also requests the usage of a stream, unless the upstream rejects that.

        So does any prompt for a key with a budget.
        """
        headers, received, issued = attempt.route.headers, attempt.received.body, attempt.caller.issued
        is_metered = issued is not None and issued.limits.count_tokens
        if (prompt.body is received and not is_metered) or (plan_input := attempt.plan_input) is None:
            return await self._request(attempt, headers, received)
        is_changed = (
            prompt.body is not plan_input.request.body
            or plan_input.request.dropped_tokens > 0
            or plan_input.request.is_ours
        )
        is_received = prompt.body is received or not is_changed
        if is_received and not is_metered:
            return await self._request(attempt, headers, received)
        # If any part is rewritten, the body is sent uncompressed.
        plain = without(headers, b"content-encoding")
        asking = self._fail_open.call(lambda: self._asking(plan_input, prompt, is_metered=is_metered), None)
        if asking is not None:
            # Usage that the client did not request is removed again, which compressed events do not allow.
            answer = await self._request(attempt, _accept_uncompressed(plain), asking)
            if not refuses_usage(answer.error):
                return structs.replace(answer, hides_usage=answer.is_plain_event_stream)
            self._windows.saw_usage_refused(plan_input.place)
        return await self._request(attempt, *((headers, received) if is_received else (plain, prompt.body)))

    def _asking(self, plan_input: PlanInput, prompt: Prompt, *, is_metered: bool) -> bytes | None:
        """Return the prompt with a request for usage; None if the stream reports it anyway or must not be asked."""
        fields = plan_input.request.settings.usage_fields
        if not fields or not self._windows.experience(plan_input.place).tells_usage:
            return None
        if prompt.copy is not None:
            return json_array.with_fields(prompt.body, fields, without=())
        # A larger body would block the event loop, so its usage is estimated.
        is_asked = is_metered and len(plan_input.request.body) <= _MOST_ASKED
        return json_array.with_fields(plan_input.request.body, fields, without=()) if is_asked else None

    async def _request(self, attempt: Attempt, headers: Headers, body: bytes) -> UpstreamAnswer:
        if (routed := attempt.routed) is not None:
            wait_for_upstream(attempt.exchange, routed, _BEFORE_HEADERS, self._fail_open)
        response = await self._respond(attempt, headers, body)
        if routed is not None and response.status == 200 and is_event_stream(response.headers):
            wait_for_upstream(attempt.exchange, routed, _AFTER_HEADERS, self._fail_open)
        window = attempt.route.window
        try:
            return await inspect_response(response, attempt.head.dialect.answers, window.tokens if window else None)
        except TruncatedError:
            raise UpstreamConnectionError(_TRUNCATED, "reset") from None

    async def _respond(self, attempt: Attempt, headers: Headers, body: bytes) -> UpstreamResponse:
        if attempt.template is not None and body is attempt.received.body:
            attempt.count_try(attempt.template.url)
            response = await self._client.post(attempt.template, body)
        else:
            url = conversation_url(attempt.route, attempt.head)
            attempt.count_try(url)
            response = await self._client.send(attempt.route.upstream, "POST", url, headers, body)
        attempt.responses.append(response)
        return response


def refuse_lost_pins(attempt: Attempt, prompt: Prompt) -> None:
    """Raise CompactionFailedError if a pinned text is not in a prompt and the policy says `fail: closed`."""
    if prompt.pins is not None and prompt.pins.missing and attempt.is_closed:
        session = attempt.routed.chain.name if attempt.routed is not None else ""
        sources = ", ".join(pin.source for pin in prompt.pins.missing[:_MOST_NAMED])
        raise CompactionFailedError(PIN_LEFT_OUT, session, _PINS_LOST.format(sources=sources))


def _accept_uncompressed(headers: Headers) -> Headers:
    """Return headers that request an uncompressed response, since parts of it are removed."""
    return [*without(headers, b"accept-encoding"), (b"accept-encoding", b"identity")]


def _upstream_and_model(plan_input: PlanInput) -> dict[str, str]:
    """Return the fields of a log event that name the upstream and the model."""
    return {"upstream": plan_input.route.name, "model": plan_input.request.settings.model}
