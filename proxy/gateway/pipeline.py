"""The way of a request through the proxy, from its head to its report."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from urllib.parse import parse_qs

import msgspec
from msgspec.structs import replace

from policies.price import Tokens
from proxy import errors
from proxy.api.head import ApiHead, api_head
from proxy.api.paths import EXPLAIN, resource, upstream_url
from proxy.callers.admission import Admission, Admitted
from proxy.callers.key_usage import KeyUsage, may_use, prompt_by_size, relayed_by_size
from proxy.callers.session_label import label_given
from proxy.callers.tenants import Caller
from proxy.config.settings import Upstream
from proxy.dialects import json_array, other_answers, pieces, table
from proxy.dialects.base import Dialect
from proxy.dialects.bounds import most_unpacked
from proxy.dialects.compaction import AT_ONCE, NOTHING, CompactionRequestError
from proxy.dialects.reader import CountedRequest
from proxy.engine.ahead import is_worth_following
from proxy.engine.case import (
    CompactionContext,
    Mode,
    Outcome,
    RoutedRequest,
    behind_separator,
    case_of,
    named_as,
    with_lessons,
)
from proxy.engine.client_compaction.clients import ClientCompaction
from proxy.engine.client_compaction.expansion import Settled
from proxy.engine.client_compaction.hosts import answers_compactions
from proxy.engine.client_compaction.sealed_items import PREFIX_IN_JSON
from proxy.engine.draft import Draft
from proxy.engine.engine import Engine
from proxy.engine.explaining.explanation import Explanation
from proxy.gateway.answers import UpstreamAnswer
from proxy.gateway.client_compaction import (
    CompactionAnswers,
    ItemUnavailableError,
    compaction_of,
    counted_before,
    for_settled,
    item_in,
    rewriting,
    stored_state_error,
    stored_state_in,
)
from proxy.gateway.forwarder import Forwarder
from proxy.gateway.lessons import WORTH_LOOKING_UP, Lessons
from proxy.gateway.open_requests import OpenRequests
from proxy.gateway.relay import relay
from proxy.gateway.report import ended_event, headers_of, item_headers, waiting
from proxy.gateway.sender import Senders
from proxy.gateway.stages import Delivery, Prepared, Progress, Received, Sent, delivery_of
from proxy.gateway.usage import UsageTap
from proxy.observing.hooks import observe_traced
from proxy.observing.trace import Tracing
from proxy.runtime.deadlines import within
from proxy.runtime.fail_open import FailOpen
from proxy.server import content_coding
from proxy.server.exchange import Exchange
from proxy.server.headers import Headers
from proxy.upstream.active import Active
from proxy.upstream.asker import WindowAsker
from proxy.upstream.http import RequestTemplate, TruncatedError, UpstreamClient

# How the types of contents begin that hold no text, or files.
_BINARY = (b"multipart/", b"audio/", b"image/", b"video/", b"application/octet-stream")
_NO_TOKENS = Tokens(0)
_REFUSED = (400, 422)
# Share of `server.max_body_bytes` from which on a body is told to be large.
_LARGE = 0.75
_UNROUTABLE = (
    "The request body unpacks to more than is read here, and the model in it decides where it goes;"
    " send it uncompressed."
)


class Gateway:
    """Relays requests; those of conversations are counted, and compacted where they must be.

    A request that is far below its window waits for nothing before it is sent.
    """

    def __init__(
        self,
        active: Active,
        engine: Engine,
        asker: WindowAsker,
        client: UpstreamClient,
        fail_open: FailOpen,
        key_usage: KeyUsage,
    ) -> None:
        self.active = active
        self._key_usage = key_usage
        self.admission = Admission()
        self.open_requests = OpenRequests()
        self._senders = Senders()
        self._engine = engine
        self._client = client
        self._fail_open = fail_open
        self._lessons = Lessons(engine, asker)
        self._compaction = CompactionAnswers(engine)
        self._forwarder = Forwarder(engine.drafter, engine.windows, client, fail_open, engine.observe)

    def activate(self, active: Active, upstreams: Iterable[Upstream]) -> None:
        """Put a config in force for the requests to come; its upstreams are the only ones that keep connections."""
        self.active = active
        self._senders.forget()
        self._client.keep_pools(upstreams)

    async def answer(self, exchange: Exchange) -> None:
        """Any request, on the path that it asks for; returns when it is answered, or cannot be any more."""
        head = api_head(exchange.head)
        if (tracing := self.active.tracing) is not None:
            exchange.head = head = self._fail_open.call(partial(_traced_head, head, tracing), head)
        if resource(head.reading) == EXPLAIN:
            work = self._explain
        elif head.conversation is not None:
            work = self._converse
        else:
            work = self._count if head.is_count else self._pass_through
        try:
            await self._run_and_report(Progress(exchange, head, self.active), work)
        except errors.EndedError as error:
            await exchange.break_off(error)
        except errors.ProxyError as error:
            await exchange.refuse(error)
        except (errors.ClientGoneError, TruncatedError):
            # Returning without ending the answer makes the server close the connection, as the upstream did.
            return

    async def _run_and_report(self, progress: Progress, work: Callable[[Progress], Awaitable[None]]) -> None:
        """Do this for as long as the client stays, and report by one event how it ended."""
        exchange = progress.exchange
        error: BaseException | None = None
        self.open_requests.add(exchange, progress.active.server.request_deadline)
        try:
            exchange.begin_work()
            await work(progress)
        except asyncio.CancelledError as cancelled:
            error = exchange.ended_by or cancelled
            raise error from None
        except BaseException as raised:
            error = raised
            raise
        finally:
            exchange.end_work()
            self.open_requests.remove(exchange)
            self._close(progress, error)
            error = None  # it leads back here, and with it what was received would wait for the garbage collector

    def _close(self, progress: Progress, error: BaseException | None) -> None:
        if progress.admitted is not None:
            progress.admitted.close()
        for response in progress.sent.responses if progress.sent else ():
            response.close()
        if isinstance(error, errors.ClientGoneError) and self._fail_open.call(lambda: self._has_all(progress), False):
            error = None
        trace = progress.head.trace
        self._fail_open.call(lambda: observe_traced(self._engine.observe, ended_event(progress, error), trace), None)

    def _has_all(self, progress: Progress) -> bool:
        """Whether a client that has left has its whole answer, since some hang up with the last event; then it counts
        as any other."""
        sent = progress.sent
        if not isinstance(sent, Delivery) or sent.tap is None or not sent.tap.is_whole:
            return False
        self._lessons.take(sent)
        return True

    async def _converse(self, progress: Progress) -> None:
        """A request of a conversation: receive, identify, read, decide, send, look at the answer, relay, learn."""
        received = await self._receive(progress)
        delivery = await self._make_ready(progress, received, self._prepare(received))
        await self._reserve(received, None)  # after a fault of ours it is not done yet
        self._fail_open.call(lambda: self._list_session(delivery), None)
        _refuse_if_closed(delivery)
        answer = await self._answer_or_forward(delivery)
        if answer is not None and _refuses_foreign_item(delivery, answer):
            answer = await self._send_with_notes(delivery, answer)
        if answer is None:
            return
        await self._relay(delivery, answer)
        # Nothing may wait from here on: the server takes a client that has its answer for one that left.
        self._fail_open.call(lambda: self._lessons.take(delivery), None)

    async def _receive(self, progress: Progress, *, goes_upstream: bool = True) -> Received:
        """The whole request of a caller that is let in, and may ask for it if it goes upstream."""
        exchange, active = progress.exchange, progress.active
        sender = self._senders.find(progress.head, active)
        admitted = self._admit(progress, sender.caller)
        if goes_upstream and not sender.is_allowed:
            active.router.check_path(progress.head, sender.caller)
            sender.is_allowed = True
        body = await exchange.request.read(active.server.max_body_bytes, admitted.hold)
        return Received(exchange, progress.head, active, sender, body, admitted)

    def _admit(self, progress: Progress, caller: Caller) -> Admitted:
        """Have it count as one that is under way, if there is room; raises what it is refused with."""
        active = progress.active
        progress.caller = caller
        if caller.issued is not None:
            self._key_usage.check(caller.issued)
        progress.admitted = self.admission.admit(
            caller.tenant, active.max_requests, caller.max_requests, active.max_buffered_bytes
        )
        return progress.admitted

    async def _reserve(self, received: Received, request: CountedRequest | None) -> None:
        """Reserve what a request may use of the limits of its key; by its size if it was not read."""
        if received.caller.issued is None or received.admitted.reservation is not None:
            return
        head, body = received.head, received.body
        if request is None:
            is_coded = head.header(b"content-encoding") is not None
            estimate, model = may_use(prompt_by_size(len(body), is_coded=is_coded), None), head.model_of(body)
        else:
            settings = request.settings
            estimate = may_use(request.tokens, settings.max_output, settings.answers)
            model = settings.model or head.model
        await self._reserve_tokens(received.admitted, received.caller, estimate, model)

    async def _reserve_tokens(
        self, admitted: Admitted, caller: Caller, estimate: Tokens = _NO_TOKENS, model: str = ""
    ) -> None:
        if caller.issued is not None:
            admitted.reservation = await self._key_usage.reserve(caller.issued, estimate, model)

    async def _make_ready(self, progress: Progress, received: Received, preparing: Awaitable[Prepared]) -> Delivery:
        """What is sent: what was prepared, or after a fault of ours the client's bytes."""
        prepared = await self._fail_open.run(preparing, None)
        progress.sent = delivery = delivery_of(received, prepared or _failed_open(received))
        return delivery

    async def _answer_or_forward(self, delivery: Delivery) -> UpstreamAnswer | None:
        """Return the upstream's answer, None if the client has got a compaction as its whole answer."""
        compaction = delivery.compaction
        if compaction is None or not compaction.is_alone:
            return await self._forward(delivery, self._forwarder.forward(delivery), _refuse_if_closed)
        await self._answer_with_compaction(delivery, compaction)
        return None

    async def _send_with_notes(self, delivery: Delivery, refused: UpstreamAnswer) -> UpstreamAnswer | None:
        """Send the request once more, with a note for each item that others made; return the answer to that."""
        prepared = await self._fail_open.run(self._prepare(delivery.received, passes_foreign=False), None)
        if prepared is None:
            return refused
        refused.response.close()
        delivery.start_over(prepared)
        return await self._answer_or_forward(delivery)

    async def _prepare(self, received: Received, *, passes_foreign: bool = True) -> Prepared:
        """Return what is sent; a request far below its window waits for nothing.

        passes_foreign: as in `CompactionAnswers.settle`.
        """
        began = time.perf_counter()
        request = await self._read(received)
        await self._reserve(received, request)
        read = time.perf_counter()
        if request is None:
            await self._check_readable(received)
            return _as_it_came(received, "bypass", await self._unread_reason(received))
        engine, router, sender = self._engine, received.active.router, received.sender
        sender.repeated = request.repeated
        way, settled = sender.route(received.head, request.settings.model, self._client, read), None
        if request.compacts or received.head.is_compact:
            request, settled = await self._compaction.settle(
                received, request, way.route, passes_foreign=passes_foreign
            )
            settled = await self._compaction.with_erasures(settled)
        # Nothing is stored of what was erased; its client may go on with it.
        mode: Mode = "off" if settled is not None and settled.is_erased else sender.mode
        request = behind_separator(request, sender.caller, mode)
        if request.tokens >= WORTH_LOOKING_UP and not engine.windows.is_looked_up(way.route.place):
            await engine.windows.look_up(way.route.place)
            way = sender.route(received.head, request.settings.model, self._client, read)
        label = sender.label(received.head) or label_given(request)
        named = named_as(request, sender.caller, mode, label, way.route, way.experience)
        named = await engine.as_asked(named)
        if settled is not None:
            return await self._prepare_compaction(received, named, settled)
        if named.is_plain and not router.has_overflowed(named.place, named.chain):
            return Prepared(named.route, engine.drafter.plain(named), named, way.template)
        return await self._prepare_draft(received, named, way.template, began, read)

    async def _prepare_draft(
        self, received: Received, named: RoutedRequest, template: RequestTemplate | None, began: float, read: float
    ) -> Prepared:
        """What is sent for a request that may have to be compacted; the times are those of the stages before."""
        async with within(received.patience):
            case = with_lessons(named, received.active.router)
            with waiting(received.exchange, case, self._fail_open):
                case = await self._engine.drafter.place(case)
                placed = time.perf_counter()
                draft = await self._engine.drafter.first(case)
        return Prepared(case.route, draft, case, template, _stages(draft, began, read, placed))

    async def _prepare_compaction(self, received: Received, named: RoutedRequest, settled: Settled) -> Prepared:
        """The same of a request whose client asks for a compaction, or brings one back."""
        began, dialect, router = time.perf_counter(), named.request.dialect, received.active.router
        compaction = compaction_of(settled, named.request, received.exchange)
        if received.head.is_compact and compaction.how is None:
            case = await self._engine.drafter.place(with_lessons(named, router))
            draft = Draft(case.request.body, case.request.tokens, "bypass", "provider_compaction")
            return Prepared(named.route, draft, case, compaction=compaction)
        if settled.passed and compaction.how is not None:
            case = await self._engine.drafter.place(with_lessons(named, router))
            if await self._compaction.is_due(case, settled):  # an item of ours holds no item of others
                return await self._prepare(received, passes_foreign=False)
        named = replace(named, route=for_settled(named.route, dialect) if named.request.is_ours else named.route)
        if compaction.how in AT_ONCE:
            case = await self._engine.drafter.place(with_lessons(named, router))
            draft = Draft(case.request.body, case.request.tokens, "applied", "client_request", warning=settled.warning)
            return Prepared(case.route, draft, case, compaction=compaction)
        if settled.asked != NOTHING:
            async with within(received.patience):
                case = with_lessons(named, router)
                with waiting(received.exchange, case, self._fail_open):
                    case = await self._engine.drafter.place(case)
                    compaction, case = await self._compaction.edit(received, case, compaction)
            if compaction.made is not None:
                draft = Draft(case.request.body, case.request.tokens, "applied", "client_threshold")
                return Prepared(case.route, replace(draft, warning=settled.warning), case, compaction=compaction)
            named = case
        prepared = await self._prepare_draft(received, named, None, began, began)
        draft = prepared.draft
        if draft.outcome == "none" and compaction.cleared is not None:
            draft = replace(draft, outcome="applied", reason="cleared")
        return replace(prepared, draft=replace(draft, warning=settled.warning or draft.warning), compaction=compaction)

    async def _answer_with_compaction(self, delivery: Delivery, compaction: ClientCompaction) -> None:
        """Answer with a compaction and nothing else."""

        def headers() -> Headers:
            told: Headers = self._fail_open.call(lambda: headers_of(delivery), [])
            return [*told, *item_headers("made")]

        delivery.warning = compaction.settled.warning
        delivery.begin_answer(200)
        answering = self._compaction.answer_alone(delivery.exchange, delivery.counted, compaction, headers)
        delivery.compaction = await self._fail_open.run(answering, None)
        if delivery.compaction is None:
            raise errors.ProxyError("The conversation could not be compacted; the log says where it failed.")

    async def _forward(
        self,
        delivery: Delivery,
        forwarding: Awaitable[tuple[UpstreamAnswer, Draft]],
        check: Callable[[Delivery], None] = lambda _: None,
    ) -> UpstreamAnswer:
        """The answer that the client gets, of which nothing has reached it; raises what there is none for.

        After a fault of ours the client's bytes are sent, unless `check` raises.
        """
        forwarded = await self._fail_open.run(forwarding, None)
        if forwarded is None:
            delivery.start_over(_failed_open(delivery.received))
            check(delivery)
            forwarded = await self._forwarder.unread(delivery)
        answer, delivery.draft = forwarded
        delivery.begin_answer(answer.response.status)
        return answer

    async def _relay(self, delivery: Delivery, answer: UpstreamAnswer) -> None:
        """Look at the beginning of an answer, and pass it on."""
        if answer.overflow is not None:
            is_left_alone = delivery.named is not None and delivery.named.mode in ("off", "shadow")
            delivery.overflow = "observed" if is_left_alone else "passed_on"
        compaction = delivery.compaction
        if compaction is not None:
            delivery.warning = compaction.settled.warning
        tap = self._fail_open.call(lambda: self._lessons.tap(delivery, answer), None)
        if tap is not None:
            warning = self._fail_open.call(lambda: self._lessons.warning(delivery, answer), None)
            delivery.warning = warning or delivery.draft.warning or delivery.warning
        if len(delivery.received.body) >= _LARGE * delivery.active.server.max_body_bytes:
            delivery.warning = delivery.warning or "large_body"
        exchange = delivery.exchange
        headers: Headers = self._fail_open.call(lambda: headers_of(delivery), [])
        rewritten = None if compaction is None else rewriting(delivery, compaction, answer)
        if compaction is not None and (item := item_in(compaction, rewritten)) is not None:
            headers += item_headers(item)
        _reword_overflow(delivery, answer, headers)
        await relay(answer, exchange, headers, tap, delivery.head.dialect.answers, rewritten)

    async def _count(self, progress: Progress) -> None:
        """The upstream's count of what `_converse` would send now: nothing is made for it, and nothing written."""
        received = await self._receive(progress)
        await self._reserve_tokens(received.admitted, received.caller)
        delivery = await self._make_ready(progress, received, self._prepare_for_count(received))
        answer = await self._forward(delivery, self._forwarder.once(delivery))
        counting = None if delivery.compaction is None else counted_before(delivery, delivery.compaction)
        headers: Headers = self._fail_open.call(lambda: headers_of(delivery), [])
        await relay(answer, delivery.exchange, headers, rewritten=counting)

    async def _prepare_for_count(self, received: Received) -> Prepared:
        """What is sent to be counted: nothing is made for it."""
        async with within(received.patience):
            request = await self._read(received)
            if request is None:
                return _as_it_came(received, "bypass", await self._unread_reason(received))
            head, router = received.head, received.active.router
            case = case_of(head, router, received.caller, received.mode, request)
            if not request.compacts:
                return Prepared(case.route, await self._engine.explainer.standing(case), case)
            compaction, case = await self._without_compaction(received, case)
            return Prepared(case.route, await self._engine.explainer.standing(case), case, compaction=compaction)

    async def _explain(self, progress: Progress) -> None:
        """What `_converse` would do with this request now, and why; nothing goes upstream."""
        exchange = progress.exchange
        if progress.head.method != "POST":
            raise errors.MethodNotAllowedError("Send the request that is to be explained by POST.", "POST")
        received = await self._receive(progress, goes_upstream=False)
        await self._reserve_tokens(received.admitted, received.caller)
        explanation = await self._fail_open.run(self._explanation(received), None)
        if explanation is None:
            raise errors.ProxyError("The request could not be explained; the log says where it failed.")
        body = msgspec.json.encode(explanation)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await exchange.start(200, headers)
        await exchange.write(body, more=False)

    async def _explanation(self, received: Received) -> Explanation:
        body, caller, router = await self._unpacked_body(received), received.caller, received.active.router
        head = received.head
        head = head.asking(_explained_as(head) or table.written_in(body or b"") or head.dialect)
        request = body and await self._engine.reader.read(body, caller.scope, router.encoding, head.dialect)
        if not request:
            reason = await self._unread_reason(received)
            return Explanation(head.model_of(received.body), caller.policy_name, "bypass", reason)
        case = case_of(head, router, caller, received.mode, request)
        if not request.compacts:
            return await self._engine.explainer.explain(case, request)
        compaction, case = await self._without_compaction(received, case)
        explained = await self._engine.explainer.explain(case, case.request)
        verdict = await self._compaction.verdict(case, compaction)
        return explained if verdict is None else replace(explained, outcome=verdict[0], reason=verdict[1])

    async def _without_compaction(
        self, received: Received, case: CompactionContext
    ) -> tuple[ClientCompaction, CompactionContext]:
        """A request that is counted or explained alone, without what it has to do with a compaction; what that was."""
        request, settled = await self._compaction.settle(received, case.request, case.route)
        case = case_of(received.head, received.active.router, received.caller, received.mode, request)
        if request.is_ours:
            case = replace(case, route=for_settled(case.route, request.dialect))
        compaction = compaction_of(settled, request, received.exchange)
        return await self._compaction.clear_results(received, case, compaction)

    async def _pass_through(self, progress: Progress) -> None:
        """Any other request: relayed untouched, both bodies streamed."""
        exchange, active, head = progress.exchange, progress.active, progress.head
        caller = self._senders.find(head, active).caller
        admitted = self._admit(progress, caller)
        # A handshake has this header (RFC 6455, section 4.1); the Upgrade itself ends at the connection.
        found = head.reading.found
        if found and found.dialect.has_sockets and head.header(b"sec-websocket-key"):
            raise errors.WebSocketError
        active.router.check_path(head, caller)
        route, limit = active.router.plain(head, caller), active.server.max_body_bytes
        progress.sent = sent = Sent(exchange, head, route, exchange.began)
        length = head.header(b"content-length")
        await self._reserve_tokens(admitted, caller, _relayed_estimate(head, length))
        headers = route.headers if length is None else [*route.headers, (b"content-length", length)]
        empty = length in (None, b"0") and head.header(b"transfer-encoding") is None
        body = await exchange.request.read(0) if empty else exchange.request.chunks(limit)
        url = upstream_url(route.upstream.base_url, head.target)
        sent.count_attempt(url)
        response = await self._client.send(route.upstream, head.method, url, headers, body)
        sent.responses.append(response)
        sent.begin_answer(response.status)
        with self._counting(caller, exchange, answer := UpstreamAnswer(response)) as tap:
            await relay(answer, exchange, [], tap)

    @contextmanager
    def _counting(self, caller: Caller, exchange: Exchange, answer: UpstreamAnswer) -> Iterator[UsageTap | None]:
        """What an issued key has used by an answer that is no conversation's counts with the rest."""
        if caller.issued is None or exchange.head.method != "POST" or answer.response.status >= 300:
            yield None
            return
        key_id, tap = caller.issued.id, UsageTap(answer, other_answers)
        try:
            yield tap
        finally:
            self._fail_open.call(lambda: self._count_relayed(key_id, exchange, answer, tap), None)

    def _count_relayed(self, key_id: str, exchange: Exchange, answer: UpstreamAnswer, tap: UsageTap) -> None:
        """Count what the answer reports, else what both bodies are by their bytes; sounds have no tokens."""
        reported, of_answer = tap.usage(), answer.response.header(b"content-type") or b""
        used = reported.tokens if reported is not None else relayed_by_size(
            0 if _is_binary(exchange.head.header(b"content-type") or b"") else exchange.request.received,
            0 if _is_binary(of_answer) else exchange.sent,
            is_stream=answer.is_event_stream or b"ndjson" in of_answer,
        )  # fmt: skip
        self._key_usage.add(key_id, used, other_answers.model_in(tap.ends))

    async def _read(self, received: Received) -> CountedRequest | None:
        """The counted request; None if it cannot be understood, which is the upstream's to judge."""
        body = await self._unpacked_body(received)
        if body is None:
            return None
        sender, router = received.sender, received.active.router
        dialect = received.head.dialect
        return await self._engine.reader.read(body, sender.caller.scope, router.encoding, dialect, sender.repeated)

    async def _check_readable(self, received: Received) -> None:
        """Raise the refusal of a request that has to be read, and cannot be."""
        head, dialect = received.head, received.head.dialect
        if await self._engine.workers.run(pieces.holds, received.body, PREFIX_IN_JSON):
            raise errors.InvalidRequestError("The request holds a compaction item, and cannot be read.", param="input")
        if head.is_compact and received.mode not in ("off", "shadow"):
            field = await self._engine.workers.run(stored_state_in, received.body)
            route = received.active.router.conversation(head, received.caller, dialect.model_of(received.body))
            if answers_compactions(route.upstream, dialect):
                return
            if field is not None:
                raise stored_state_error(field)
            raise CompactionRequestError("It must be a text, or a list of items that is not empty.", param="input")

    async def _unread_reason(self, received: Received) -> str:
        """Why a request was not read: a bound that it is over, or its shape."""
        if received.head.header(b"content-encoding") is not None:
            return "unknown_shape"
        return await self._engine.workers.run(json_array.bound_over, received.body) or "unknown_shape"

    async def _unpacked_body(self, received: Received) -> bytes | None:
        """What the body says; None for a coding that is not read here, and for what is not read at all."""
        used = (received.head.header(b"content-encoding") or b"identity").lower()
        body, limit = received.body, received.active.server.max_body_bytes
        if used == b"identity":
            return body
        if used not in content_coding.READABLE:
            return None
        most_kept = min(limit, most_unpacked(len(body)))
        try:
            unpacked = await asyncio.to_thread(content_coding.unpack, body, used, most_kept, limit)
        except content_coding.TooLargeError:
            raise errors.BodyTooLargeError("The request body is over the limit after decompression.") from None
        except content_coding.UndecodableError:
            return None
        if unpacked is not None:
            received.admitted.hold(len(unpacked))
        elif received.active.router.depends_on_models:
            raise errors.BodyTooLargeError(_UNROUTABLE)
        return unpacked

    def _list_session(self, delivery: Delivery) -> None:
        """Have a session listed of which something may be stored."""
        named, sent, sessions = delivery.named, delivery.first, self._engine.sessions
        if named is None or (sent.copy is None and named.is_far_below(sent.tokens)):
            return
        case = delivery.counted
        if not _may_be_stored(case, sent) or not sessions.is_news(case.chain, sent.record):
            return
        listing = sessions.add(case.caller, case.chain, case.label, case.request.settings.model, sent.record)
        self._engine.background.start("enroll", listing)


def _stages(draft: Draft, began: float, read: float, placed: float) -> dict[str, float]:
    """Milliseconds by what was done, of a request that is ready; these are the times at which each was done."""
    rebuilt = time.perf_counter() - placed - draft.planned - draft.waited
    seconds = {"read": read - began, "store": placed - read, "plan": draft.planned, "rebuild": rebuilt}
    return {stage: round(1000 * spent, 2) for stage, spent in seconds.items()}


def _is_binary(content_type: bytes) -> bool:
    return content_type.lstrip().lower().startswith(_BINARY)


def _relayed_estimate(head: ApiHead, length: bytes | None) -> Tokens:
    """Return what a request that is passed through may use; its model is not known."""
    if head.method != "POST" or _is_binary(head.header(b"content-type") or b""):
        return _NO_TOKENS
    return may_use(prompt_by_size(int(length[:20]) if length is not None and length.isdigit() else 0), None)


def _traced_head(head: ApiHead, tracing: Tracing) -> ApiHead:
    trace = tracing.begin(head.headers)
    return ApiHead(head.method, head.target, tracing.onward(head.headers, trace), trace)


def _as_it_came(received: Received, outcome: Outcome, reason: str) -> Prepared:
    """The client's bytes, uncounted: not understood, or after a fault of ours."""
    head = received.head
    route = received.active.router.plain(head, received.caller, head.model_of(received.body))
    return Prepared(route, Draft(received.body, 0, outcome, reason))


def _failed_open(received: Received) -> Prepared:
    if PREFIX_IN_JSON in received.body:
        raise ItemUnavailableError
    return _as_it_came(received, "failed-open", "internal_error")


def _refuse_if_closed(delivery: Delivery) -> None:
    """Raise CompactionFailedError if a compaction failed without which the request may not fit its window.

    Only if the policy says `fail: closed`. After a fault of ours its size is not known.
    """
    is_wanted = delivery.caller.policy.fail == "closed" and delivery.received.mode in ("on", "force")
    if not is_wanted or delivery.first.outcome != "failed-open":
        return
    case = delivery.case
    if case is None or not case.limits.known or not case.fits_whole:
        raise errors.CompactionFailedError(delivery.first.reason, case.chain.name if case else "")


def _refuses_foreign_item(delivery: Delivery, answer: UpstreamAnswer) -> bool:
    """Return True if an item that others made may be why the upstream refuses the request.

    Servers have no common words for it, so any refusal but one for size counts: a wrong guess costs one more refusal.
    """
    return delivery.may_get_notes and answer.overflow is None and answer.response.status in _REFUSED


def _reword_overflow(delivery: Delivery, answer: UpstreamAnswer, headers: Headers) -> None:
    """Raise ContextLengthError for an overflow that was not solved, if the policy wants words that clients know."""
    stated = answer.overflow
    if stated is None or delivery.caller.policy.overflow_error == "upstream":
        return
    case = delivery.case
    if case is None or case.is_let_through:
        return
    known = delivery.route.window
    tokens = stated.input_tokens or case.request.received_tokens
    limit = stated.limit or (known.tokens if known else None)
    dialect = case.request.dialect
    message = dialect.answers.TOO_LONG_FOR_IT
    if limit is not None:
        message = dialect.answers.TOO_LONG.format(limit=limit, tokens=max(tokens, limit + 1))
    raise errors.ContextLengthError(message, dialect.array.name, headers)


def _may_be_stored(case: CompactionContext, sent: Draft) -> bool:
    """Whether something of its conversation may lie in the store, or is about to."""
    return not case.is_let_through and (sent.copy is not None or is_worth_following(case, sent))


def _explained_as(head: ApiHead) -> Dialect | None:
    """The dialect that is named for a request to explain; None where none is."""
    name = next(iter(parse_qs(head.query.decode("latin-1"), keep_blank_values=True).get("dialect", [])), None)
    if name is not None and name not in table.names():
        raise errors.InvalidRequestError(f"dialect must be one of {', '.join(table.names())}.", param="dialect")
    return None if name is None else table.dialect_named(name)
