"""Sending drafts upstream until one is answered: smaller ones after an overflow, others where a form is refused."""

from dataclasses import replace

from msgspec import structs

from policies.assembly import Shape
from policies.ladder import SMALL_PROMPT, Retry, StatedLimit, is_plausible, next_retry, retries
from proxy.dialects import json_array
from proxy.engine.case import CompactionContext, with_newest_lessons
from proxy.engine.draft import Draft, reshaped_drafts, unmarked_draft, untouched_draft
from proxy.engine.drafter import Drafter
from proxy.errors import ProxyError, UpstreamConnectionError
from proxy.gateway.answers import UpstreamAnswer, look_at
from proxy.gateway.media_retry import MediaRetry, stated_excess
from proxy.gateway.report import wait_for_upstream, waiting
from proxy.gateway.stages import Delivery
from proxy.models.windows import Windows
from proxy.observing.events import Hook, note
from proxy.overflow.error_parts import words_of
from proxy.overflow.form_refusals import refuses_roles, refuses_sealed, refuses_thinking, refuses_usage
from proxy.overflow.output_refusals import most_output
from proxy.runtime.fail_open import FailOpen
from proxy.server.headers import Headers, without
from proxy.upstream.http import TruncatedError, UpstreamClient, UpstreamResponse
from proxy.upstream.response import is_event_stream
from proxy.upstream.routes import conversation_url

_FAILED = 400
_CUT_OFF = "The upstream closed the connection in the middle of its answer."
_REFUSED = (400, 422)
# Bytes of a client's own body up to which a question for the usage is put into it.
_MOST_ASKED = 1024 * 1024
# The client's own request has overflowed already.
_FORCED = ("overflow_retry", "halved")
# Intervals of silence after which a sign of life begins the response, before the upstream's header block and after it.
_BEFORE_HEADERS, _AFTER_HEADERS = 2, 1
# Stands for a draft that a fault of ours prevented.
_FAULT = Draft(b"", 0, "failed-open", "internal_error")


class Forwarder:
    """The way from a draft to an answer, before any of it reaches the client."""

    def __init__(
        self, drafter: Drafter, windows: Windows, client: UpstreamClient, fail_open: FailOpen, observe: Hook
    ) -> None:
        self._drafter = drafter
        self._windows = windows
        self._client = client
        self._fail_open = fail_open
        self._observe = observe
        self._media = MediaRetry(drafter, windows, fail_open, observe, self._deliver)

    async def forward(self, delivery: Delivery) -> tuple[UpstreamAnswer, Draft]:
        """Send the draft, or what is left of it to try; where only a copy of ours is refused, the original."""
        answer, sent = await self._forward_until_it_fits(delivery)
        return await self._original(delivery, answer, sent) or (answer, sent)

    async def _original(
        self, delivery: Delivery, answer: UpstreamAnswer, sent: Draft
    ) -> tuple[UpstreamAnswer, Draft] | None:
        """The answer to the client's own request, where a copy was refused for what nobody foresaw; None where that
        was no such refusal, or the original does not fit."""
        if answer.overflow is not None or answer.response.status not in _REFUSED or sent.reason in _FORCED:
            return None
        if delivery.may_get_notes:  # the original has the same items
            return None
        case = delivery.case
        if case is None or sent.body is case.request.body or not case.fits_whole:
            return None
        if answer.media is not None and case.request.history.has_media:
            return None  # the original has more media
        original = untouched_draft(case.request, "failed-open", "refused")
        try:
            second = await self._send(delivery, original)
        except ProxyError:
            return None
        if second.overflow is not None:
            return None
        if second.response.status < _FAILED and not second.error:
            self._windows.saw_copy_refused(case.place)
            where, status = _upstream_and_model(case), answer.response.status
            self._observe(
                note("copy_refused", case.caller.tenant, **where, status=status, words=words_of(answer.error))
            )
        return second, original

    async def _forward_until_it_fits(self, delivery: Delivery) -> tuple[UpstreamAnswer, Draft]:
        """Send the draft; while the upstream overflows before the first byte reached the client, send smaller ones.

        The last error of a ladder in vain is the first. Where the output's limit alone was refused, it is lowered once,
        and the prompt stays unless that overflows.
        """
        first = await self._media.first(delivery)
        if not first[0].is_refusal:
            return first
        answer, sent = first = await self._media.retry(delivery, first)
        if not answer.is_refusal or (case := delivery.case) is None or not case.retries:
            return first
        stated, most = stated_excess(case, *first), None
        if stated is None:
            answer, sent = await self._retry_capped(delivery, first)
            stated, most = answer.overflow, sent.max_output
            if stated is None:
                return answer, sent
        return await self._smaller(delivery, sent, stated, most) or first

    async def once(self, delivery: Delivery) -> tuple[UpstreamAnswer, Draft]:
        """Send the draft, and the original where only the draft is refused; no other follows an overflow."""
        answer, sent = await self._deliver(delivery, delivery.first)
        return await self._original(delivery, answer, sent) or (answer, sent)

    async def unread(self, delivery: Delivery) -> tuple[UpstreamAnswer, Draft]:
        """Send the client's bytes and read nothing of the answer: for when a fault of ours stood in the way."""
        response = await self._respond(delivery, delivery.route.headers, delivery.received.body)
        return UpstreamAnswer(response), delivery.first

    async def _smaller(
        self, delivery: Delivery, sent: Draft, stated: StatedLimit, most: int | None
    ) -> tuple[UpstreamAnswer, Draft] | None:
        """The first answer to a smaller request that is no overflow; None where there is none.

        most: the most output that the upstream allows, where it has said so.
        """
        ladder = retries(sent, stated, delivery.counted.retries)
        self._learn(delivery, sent, stated)
        refusal: tuple[Draft, StatedLimit] | None = None
        while (step := next_retry(ladder, refusal)) is not None:
            smaller, refusal = await self._draft(delivery, step, most), None
            if smaller is None:
                continue
            try:
                answer, sent = await self._deliver(delivery, smaller)
            except ProxyError:
                break  # the upstream did answer once: that answer is the client's
            excess = stated_excess(delivery.counted, answer, sent)
            if excess is None:
                delivery.overflow = "output_lowered" if step.lowers_output else "solved"
                if not (step.lowers_output or answer.error):
                    self._learn_size(delivery, step)
                return answer, sent
            refusal = sent, excess
            if step.lowers_output and step.stated.limit is None and delivery.route.window is None:
                most = sent.max_output  # nothing says that more could fit beside a smaller prompt
            self._learn(delivery, *refusal)
        if sent is not delivery.first:
            case = delivery.counted
            self._observe(note("max_iterations", case.caller.tenant, case.chain.name, retries=case.retries))
        return None

    async def _draft(self, delivery: Delivery, step: Retry[Draft], most: int | None) -> Draft | None:
        """What a step of the ladder sends; where a fault of ours leaves nothing, that without half of the history."""
        case = delivery.counted
        if step.lowers_output:
            lowered = self._fail_open.call(
                lambda: self._drafter.with_less_output(case, step.refused, step.stated), None
            )
            is_more = lowered is None or most is None or lowered.max_output is None or lowered.max_output < most
            return lowered if is_more else None
        with waiting(delivery.exchange, case, self._fail_open):
            retry = self._drafter.retry(case, step.refused, step.stated, attempt=step.attempt)
            smaller = await self._fail_open.run(retry, _FAULT, delivery.received.patience)
            if smaller is _FAULT:
                smaller = self._fail_open.call(lambda: self._drafter.halve(case, step.refused), None)
        if smaller is not None:
            delivery.waited += smaller.waited
        if smaller is None or most is None or (smaller.max_output is not None and smaller.max_output <= most):
            return smaller
        draft = smaller
        return self._fail_open.call(lambda: self._drafter.with_capped_output(case, draft, most), None) or draft

    def _learn(self, delivery: Delivery, sent: Draft, stated: StatedLimit) -> None:
        case = delivery.counted
        if case.request.settings.is_partial:  # its size is not that of the body
            stated = replace(stated, input_tokens=None)

        def learn() -> CompactionContext:
            self._windows.saw_overflow(case.place, stated, sent.tokens, case.chain.session)
            return with_newest_lessons(case, delivery.active.router)

        delivery.named = self._fail_open.call(learn, case)

    def _learn_size(self, delivery: Delivery, step: Retry[Draft]) -> None:
        case = delivery.counted

        def learn() -> CompactionContext:
            self._windows.saw_shrunk(case.place, case.chain.session, step.stated, step.refused.tokens)
            return with_newest_lessons(case, delivery.active.router)

        delivery.named = self._fail_open.call(learn, case)

    async def _retry_capped(
        self, delivery: Delivery, refused: tuple[UpstreamAnswer, Draft]
    ) -> tuple[UpstreamAnswer, Draft]:
        """What is answered to the most output that a refusal allows; the refusal itself where that fails, unless the
        prompt overflows then."""
        capped = self._fail_open.call(lambda: self._capped_draft(delivery.counted, *refused), None)
        if capped is None:
            return refused
        try:
            answer, sent = await self._deliver(delivery, capped)
        except ProxyError:
            return refused
        if answer.overflow is not None:
            return answer, sent
        return refused if answer.response.status >= _FAILED or answer.error else (answer, sent)

    def _capped_draft(self, case: CompactionContext, answer: UpstreamAnswer, sent: Draft) -> Draft | None:
        most = most_output(answer.response.status, answer.error) if answer.error else None
        return None if most is None else self._drafter.with_capped_output(case, sent, most)

    async def _deliver(self, delivery: Delivery, draft: Draft) -> tuple[UpstreamAnswer, Draft]:
        """Send a draft; where a template refuses the record's place among the messages, in its other shapes too."""
        draft = await self._without_refused_reasoning(delivery, draft)
        refusal = await self._send(delivery, draft)
        if not refusal.is_refusal and delivery.named is not None and draft.tokens > SMALL_PROMPT:
            self._windows.saw_taken(delivery.named.place, draft.tokens)
        if not refusal.is_refusal or (case := delivery.case) is None:
            return refusal, draft
        if refusal.overflow is not None and not self._is_plausible(case, draft, refusal.overflow):
            is_empty = refusal.response.status < _FAILED and refusal.overflow.action == "outsized"
            return structs.replace(refusal, overflow=None, error=b"" if is_empty else refusal.error), draft
        if refuses_thinking(refusal.error, refusal.response.header):  # whose words may name a signature too
            return await self._without_thinking(delivery, refusal, draft)
        is_signed = case.request.history.is_signed and not delivery.may_get_notes  # an item is sealed, too
        if refuses_sealed(refusal.error) and is_signed and draft.warning != "reasoning_removed":
            return await self._without_sealed(delivery, refusal, draft)
        if b"cache_control" in refusal.error or not refuses_roles(refusal.error):
            return await self._without_marks(delivery, refusal, draft)
        others: list[tuple[Shape, Draft]] = self._fail_open.call(lambda: list(reshaped_drafts(case, draft)), [])
        for shape, other in others:
            try:
                answer = await self._send(delivery, other)
            except ProxyError:
                break
            if not refuses_roles(answer.error):
                self._windows.saw_shape(case.place, shape)
                self._observe(note("shape", case.caller.tenant, upstream=case.route.name, shape=shape))
                return answer, other
        return refusal, draft

    async def _without_refused_reasoning(self, delivery: Delivery, draft: Draft) -> Draft:
        """Return the draft without sealed reasoning, if that of its session was refused before."""
        named = delivery.named
        if named is None or not named.request.history.is_signed:
            return draft
        if not self._windows.refuses_sealed(named.place, lambda: named.chain.session):
            return draft
        return await self._fail_open.run(self._drafter.without_sealed(named, draft), None) or draft

    async def _without_sealed(
        self, delivery: Delivery, refusal: UpstreamAnswer, draft: Draft
    ) -> tuple[UpstreamAnswer, Draft]:
        """Send the draft without sealed reasoning that another account cannot open, now and later in its session."""
        case = delivery.counted
        without = await self._fail_open.run(self._drafter.without_sealed(case, draft), None)
        if without is None:
            return refusal, draft
        self._windows.saw_sealed_refused(case.place, case.chain.session)
        self._observe(note("thinking_removed", case.caller.tenant, **_upstream_and_model(case)))
        try:
            return await self._deliver(delivery, without)
        except ProxyError:
            return refusal, draft

    async def _without_marks(
        self, delivery: Delivery, refusal: UpstreamAnswer, draft: Draft
    ) -> tuple[UpstreamAnswer, Draft]:
        """Send the draft without our cache marks, if it has any, and learn if that is what was refused."""
        case = delivery.counted
        if refusal.overflow is not None or refusal.response.status not in _REFUSED:
            return refusal, draft
        unmarked = self._fail_open.call(lambda: unmarked_draft(case, draft), None)
        if unmarked is None:
            return refusal, draft
        try:
            answer = await self._send(delivery, unmarked)
        except ProxyError:
            return refusal, draft
        if answer.overflow is None and answer.response.status in _REFUSED:
            return refusal, draft
        self._fail_open.call(lambda: self._windows.saw_marks_refused(case.place), None)
        delivery.named = self._fail_open.call(lambda: with_newest_lessons(case, delivery.active.router), case)
        return answer, unmarked

    def _is_plausible(self, case: CompactionContext, draft: Draft, stated: StatedLimit) -> bool:
        """Whether a refusal is one for size: not where a cache serves so much that only the rest counted."""
        if stated.is_uncached and self._windows.was_answered_lately(case.place, case.chain.session):
            return False
        window = case.route.window
        largest = case.real_tokens(self._windows.largest_answered(case.place))
        return is_plausible(stated, case.real_tokens(draft.tokens), window.tokens if window else None, largest)

    async def _without_thinking(
        self, delivery: Delivery, refusal: UpstreamAnswer, draft: Draft
    ) -> tuple[UpstreamAnswer, Draft]:
        """The answer to the same without thinking, where that is bound to a prompt which is another now."""
        case = delivery.counted
        self._fail_open.call(lambda: self._windows.saw_thinking_bound(case.place), None)
        delivery.named = case = self._fail_open.call(lambda: with_newest_lessons(case, delivery.active.router), case)
        patience = delivery.received.patience
        without = await self._fail_open.run(self._drafter.without_thinking(case, draft), None, patience)
        if without is None:
            return refusal, draft
        self._observe(note("thinking_removed", case.caller.tenant, **_upstream_and_model(case)))
        try:
            return await self._send(delivery, without), without
        except ProxyError:
            return refusal, draft

    async def _send(self, delivery: Delivery, draft: Draft) -> UpstreamAnswer:
        """Send a draft; one that is ours anyway asks a stream for its usage, unless this upstream refuses that, and so
        does any for a key with a budget."""
        headers, received, issued = delivery.route.headers, delivery.received.body, delivery.caller.issued
        is_metered = issued is not None and issued.limits.count_tokens
        if (draft.body is received and not is_metered) or (case := delivery.case) is None:
            return await self._request(delivery, headers, received)
        is_changed = draft.body is not case.request.body or case.request.dropped_tokens > 0 or case.request.is_ours
        is_received = draft.body is received or not is_changed
        if is_received and not is_metered:
            return await self._request(delivery, headers, received)
        # What was compressed goes out as it is, if anything of it is another.
        plain = without(headers, b"content-encoding")
        asking = self._fail_open.call(lambda: self._asking(case, draft, is_metered=is_metered), None)
        if asking is not None:
            # What was not asked for is taken out again, which compressed events do not allow.
            answer = await self._request(delivery, _plain(plain), asking)
            if not refuses_usage(answer.error):
                return structs.replace(answer, hides_usage=answer.is_plain_event_stream)
            self._windows.saw_usage_refused(case.place)
        return await self._request(delivery, *((headers, received) if is_received else (plain, draft.body)))

    def _asking(self, case: CompactionContext, draft: Draft, *, is_metered: bool) -> bytes | None:
        """The draft with a question for the usage; None where the stream tells it anyway, or must not be asked."""
        fields = case.request.settings.usage_fields
        if not fields or not self._windows.experience(case.place).tells_usage:
            return None
        if draft.copy is not None:
            return json_array.with_fields(draft.body, fields, without=())
        # What is larger would hold up others; its usage is estimated.
        is_asked = is_metered and len(case.request.body) <= _MOST_ASKED
        return json_array.with_fields(case.request.body, fields, without=()) if is_asked else None

    async def _request(self, delivery: Delivery, headers: Headers, body: bytes) -> UpstreamAnswer:
        if (named := delivery.named) is not None:
            wait_for_upstream(delivery.exchange, named, _BEFORE_HEADERS, self._fail_open)
        response = await self._respond(delivery, headers, body)
        if named is not None and response.status == 200 and is_event_stream(response.headers):
            wait_for_upstream(delivery.exchange, named, _AFTER_HEADERS, self._fail_open)
        window = delivery.route.window
        try:
            return await look_at(response, delivery.head.dialect.answers, window.tokens if window else None)
        except TruncatedError:
            raise UpstreamConnectionError(_CUT_OFF, "reset") from None

    async def _respond(self, delivery: Delivery, headers: Headers, body: bytes) -> UpstreamResponse:
        if delivery.template is not None and body is delivery.received.body:
            delivery.count_attempt(delivery.template.url)
            response = await self._client.post(delivery.template, body)
        else:
            url = conversation_url(delivery.route, delivery.head)
            delivery.count_attempt(url)
            response = await self._client.send(delivery.route.upstream, "POST", url, headers, body)
        delivery.responses.append(response)
        return response


def _plain(headers: Headers) -> Headers:
    """For an answer of which something is left out: compressed events do not allow that."""
    return [*without(headers, b"accept-encoding"), (b"accept-encoding", b"identity")]


def _upstream_and_model(case: CompactionContext) -> dict[str, str]:
    """Return the fields of a note that name the upstream and the model."""
    return {"upstream": case.route.name, "model": case.request.settings.model}
