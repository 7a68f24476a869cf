"""Sending drafts upstream until one is answered: smaller ones after an overflow, others where a form is refused."""

from __future__ import annotations

from dataclasses import replace

from policies.assembly import Shape
from policies.ladder import StatedLimit, is_plausible
from proxy.dialects import json_array
from proxy.engine.case import Case, Draft, reshaped
from proxy.engine.drafter import Drafter
from proxy.errors import ProxyError, UpstreamConnectionError
from proxy.gateway.answers import Answer, look_at
from proxy.gateway.incoming import Incoming, Prepared
from proxy.models.windows import Windows
from proxy.observing.log import Log
from proxy.overflow.form_refusals import refuses_roles, refuses_usage
from proxy.overflow.output_refusals import most_output
from proxy.runtime.fail_open import Rim
from proxy.server.headers import Headers, without
from proxy.server.paths import chat_url
from proxy.upstream.http import TruncatedError, UpstreamClient, UpstreamResponse

_FAILED = 400
# Stands for a draft that a fault of ours prevented.
_FAULT = Draft(b"", 0, "failed-open", "internal_error")


class Forwarder:
    """The way from a draft to an answer, before any of it reaches the client."""

    def __init__(self, drafter: Drafter, windows: Windows, client: UpstreamClient, rim: Rim, log: Log) -> None:
        self._drafter = drafter
        self._windows = windows
        self._client = client
        self._rim = rim
        self._log = log

    async def forward(self, incoming: Incoming, prepared: Prepared) -> tuple[Answer, Draft]:
        """Send the draft; while the upstream overflows before the first byte reached the client, send smaller ones.

        First with less room for the output, if that may be enough. The last error of a ladder in vain is the first.
        Where the output's limit alone was refused, it is lowered once, and the prompt stays unless that overflows.
        """
        case = prepared.case
        answer, sent = first = await self._deliver(incoming, prepared, prepared.draft)
        if case is None or not case.retries:
            return first
        most = None
        if answer.overflow is None:
            answer, sent = await self._capped(incoming, prepared, case, first)
            if answer.overflow is None:
                return answer, sent
            most = sent.max_output
        lowered = await self._rim.shield(self._lowered(case, sent, answer.overflow, most), None)
        for attempt in range(-1 if lowered else 0, case.retries):
            await self._rim.shield(self._learn(case, sent, answer.overflow), None)
            smaller = lowered if attempt < 0 else await self._smaller(incoming, case, sent, answer.overflow, attempt)
            if smaller is not None:
                smaller = await self._rim.shield(self._within(case, smaller, most), smaller)
                try:
                    answer, sent = await self._deliver(incoming, prepared, smaller)
                except ProxyError:
                    break  # the upstream did answer once: that answer is the client's
                if answer.overflow is None:
                    return answer, sent
        if sent is not prepared.draft:
            self._log.warning("max_iterations", tenant=case.caller.tenant, session=case.lineage, retries=case.retries)
        return first

    async def unread(self, incoming: Incoming, prepared: Prepared) -> tuple[Answer, Draft]:
        """Send the client's bytes and read nothing of the answer: for when a fault of ours stood in the way."""
        response = await self._respond(incoming, prepared, prepared.route.headers, incoming.body)
        return Answer(response, b"", response.chunks(), None), prepared.draft

    async def _capped(
        self, incoming: Incoming, prepared: Prepared, case: Case, refused: tuple[Answer, Draft]
    ) -> tuple[Answer, Draft]:
        """What is answered to the most output that a refusal allows; the refusal itself where that fails, unless the
        prompt overflows then."""
        capped = await self._rim.shield(self._capped_draft(case, *refused), None)
        if capped is None:
            return refused
        try:
            answer, sent = await self._deliver(incoming, prepared, capped)
        except ProxyError:
            return refused
        if answer.overflow is not None:
            return answer, sent
        return refused if answer.response.status >= _FAILED or answer.error else (answer, sent)

    async def _capped_draft(self, case: Case, answer: Answer, sent: Draft) -> Draft | None:
        most = most_output(answer.response.status, answer.error) if answer.error else None
        return None if most is None else self._drafter.capped(case, sent, most)

    async def _lowered(self, case: Case, sent: Draft, stated: StatedLimit, most: int | None) -> Draft | None:
        lowered = self._drafter.lowered(case, sent, stated)
        if lowered is None or most is None or lowered.max_output is None:
            return lowered
        return lowered if lowered.max_output < most else None

    async def _within(self, case: Case, draft: Draft, most: int | None) -> Draft:
        """A draft with the most output that the upstream allows, where that is known."""
        if most is None or (draft.max_output is not None and draft.max_output <= most):
            return draft
        return self._drafter.capped(case, draft, most) or draft

    async def _learn(self, case: Case, sent: Draft, stated: StatedLimit) -> None:
        self._windows.saw_overflow(case.place, stated, sent.tokens)

    async def _smaller(
        self, incoming: Incoming, case: Case, sent: Draft, stated: StatedLimit, attempt: int
    ) -> Draft | None:
        """The next smaller draft; where a fault of ours leaves none, that without half of the history."""
        with incoming.commenting(case, self._rim):
            smaller = await self._rim.shield(
                self._drafter.retry(case, sent, stated, attempt=attempt), _FAULT, incoming.patience
            )
            if smaller is _FAULT:
                return await self._rim.shield(self._drafter.halved(case, sent), None)
            return smaller

    async def _deliver(self, incoming: Incoming, prepared: Prepared, draft: Draft) -> tuple[Answer, Draft]:
        """Send a draft; where a template refuses the record's place among the messages, in its other shapes too."""
        case = prepared.case
        refusal = await self._send(incoming, prepared, draft)
        if case is None:
            return refusal, draft
        if refusal.overflow is not None and not _is_plausible(case, draft, refusal.overflow):
            return replace(refusal, overflow=None), draft
        if not refuses_roles(refusal.error):
            return refusal, draft
        for shape, other in await self._rim.shield(_reshaped(case, draft), []):
            try:
                answer = await self._send(incoming, prepared, other)
            except ProxyError:
                break
            if not refuses_roles(answer.error):
                self._windows.saw_shape(case.place, shape)
                self._log.info("shape", upstream=case.route.name, tenant=case.caller.tenant, shape=shape)
                return answer, other
        return refusal, draft

    async def _send(self, incoming: Incoming, prepared: Prepared, draft: Draft) -> Answer:
        """Send a draft; one that is ours anyway asks a stream for its usage, unless this upstream refuses that."""
        case, headers, body = prepared.case, prepared.route.headers, draft.body
        if case is None or (body is case.request.body and case.request.is_as_received):
            return await self._request(incoming, prepared, headers, incoming.body)
        # A compressed request that was compacted goes out as it is.
        headers = without(headers, b"content-encoding")
        asking = await self._rim.shield(_asking(case, draft), None)
        if asking is not None:
            # What was not asked for is taken out again, which compressed events do not allow.
            plain = [*without(headers, b"accept-encoding"), (b"accept-encoding", b"identity")]
            answer = await self._request(incoming, prepared, plain, asking)
            if not refuses_usage(answer.error):
                return replace(answer, hides_usage=answer.is_plain_event_stream)
            self._windows.saw_usage_refused(case.place)
        return await self._request(incoming, prepared, headers, body)

    async def _request(self, incoming: Incoming, prepared: Prepared, headers: Headers, body: bytes) -> Answer:
        response = await self._respond(incoming, prepared, headers, body)
        window = prepared.route.window.tokens if prepared.route.window else None
        try:
            return await look_at(response, window)
        except TruncatedError:
            raise UpstreamConnectionError("The upstream closed the connection in the middle of its answer.") from None

    async def _respond(self, incoming: Incoming, prepared: Prepared, headers: Headers, body: bytes) -> UpstreamResponse:
        upstream = prepared.route.upstream
        url = chat_url(upstream.base_url, incoming.exchange.target)
        response = await self._client.send(upstream, "POST", url, headers, body)
        incoming.opened.callback(response.close)
        return response


def _is_plausible(case: Case, draft: Draft, stated: StatedLimit) -> bool:
    window = case.route.window
    return is_plausible(stated, case.real_tokens(draft), window.tokens if window else None)


async def _asking(case: Case, draft: Draft) -> bytes | None:
    """The draft with a question for the usage; None where the stream tells it anyway, or must not be asked."""
    if draft.copy is None or not case.request.hides_usage or not case.experience.tells_usage:
        return None
    return json_array.with_fields(draft.body, {"stream_options": {"include_usage": True}}, without=())


async def _reshaped(case: Case, draft: Draft) -> list[tuple[Shape, Draft]]:
    return list(reshaped(case, draft))
