"""The way of a request through the proxy, in one readable line."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from urllib.parse import parse_qs

import msgspec

from proxy import errors
from proxy.callers.admission import Admission
from proxy.dialects import table
from proxy.dialects.base import Dialect
from proxy.dialects.bounds import most_unpacked
from proxy.dialects.reader import CountedRequest
from proxy.engine.ahead import is_worth_following
from proxy.engine.case import Case, Outcome, case_of, named_of, with_lessons
from proxy.engine.draft import Draft
from proxy.engine.engine import Engine
from proxy.engine.explaining.explanation import Explanation
from proxy.gateway.answers import Answer
from proxy.gateway.forwarder import Forwarder
from proxy.gateway.identify import identify
from proxy.gateway.incoming import Incoming
from proxy.gateway.lane import Lane
from proxy.gateway.lessons import WORTH_LOOKING_UP, Lessons
from proxy.gateway.relay import Passing, relay
from proxy.gateway.report import commenting, ended, headers_of
from proxy.gateway.usage import without_usage
from proxy.observing.hooks import tell
from proxy.observing.trace import Tracing
from proxy.runtime.fail_open import FailOpen
from proxy.server import content_coding
from proxy.server.exchange import Exchange
from proxy.server.head import RequestHead
from proxy.server.headers import Headers
from proxy.server.paths import upstream_url
from proxy.upstream.active import Active
from proxy.upstream.asker import WindowAsker
from proxy.upstream.http import TruncatedError, UpstreamClient

_UNROUTABLE = (
    "The request body unpacks to more than is read here, and the model in it decides where it goes;"
    " send it uncompressed."
)


class Gateway:
    """Relays requests; those of conversations are counted, and compacted where they must be."""

    def __init__(
        self, active: Active, engine: Engine, asker: WindowAsker, client: UpstreamClient, fail_open: FailOpen
    ) -> None:
        self.active = active
        self._engine = engine
        self._client = client
        self._fail_open = fail_open
        self.admission = Admission()
        self._lessons = Lessons(engine, asker)
        self.lane = Lane(lambda: self.active, engine, self.admission, client, self._lessons, fail_open)
        self._forwarder = Forwarder(engine.drafter, engine.windows, client, fail_open, engine.observe)

    def takes(self, exchange: Exchange) -> bool:
        """Whether it is answered by the lane, in callbacks. Every request comes by here before anything is done."""
        if self.active.tracing is not None:
            exchange.head = self._fail_open.call(partial(_traced, exchange.head, self.active.tracing), exchange.head)
        return exchange.head.conversation is not None and self.lane.take(exchange)

    async def converse(self, exchange: Exchange) -> None:
        """One request of a conversation, answered for as long as the client stays."""
        incoming = self.lane.handed_over(exchange)
        if incoming is None:
            await self._received(exchange, self._answer)
            return
        with self._observed(incoming), incoming.opened:
            if incoming.passing is not None:
                await exchange.while_connected(self._finish(incoming, incoming.passing))
                return
            if exchange.response_started:  # a fault of ours has struck while it was written
                raise TruncatedError("unwritten")
            await exchange.while_connected(self._forward(incoming))

    async def _finish(self, incoming: Incoming, passing: Passing) -> None:
        """Relay the rest of an answer."""
        await passing.finish()
        self._fail_open.call(lambda: self._lessons.take(incoming, passing.tap), None)

    async def _received(self, exchange: Exchange, work: Callable[[Incoming], Awaitable[None]]) -> None:
        """Receive and identify a request that may go upstream, then do this for it."""
        incoming = self._incoming(exchange)
        self.lane.leave(incoming)
        with self._observed(incoming), incoming.opened:
            await self._receive(incoming)
            incoming.active.router.check_path(exchange.head, incoming.caller)
            await exchange.while_connected(work(incoming))

    async def _receive(self, incoming: Incoming) -> None:
        """The whole request of a caller that is let in."""
        self._admit(incoming)
        incoming.body = await incoming.exchange.request.read(incoming.active.server.max_body_bytes, incoming.hold)

    def _admit(self, incoming: Incoming) -> None:
        """Who is calling and what for, where there is room for the request."""
        incoming.known_caller, incoming.mode = identify(incoming.exchange.head, incoming.active)
        if incoming.admitted is None:
            incoming.admit(self.admission)

    async def _answer(self, incoming: Incoming) -> None:
        """Count, plan, compact, forward, relay, record."""
        if not await self._fail_open.run(self._prepare(incoming), False, incoming.patience):
            _send_as_it_came(incoming, "failed-open", "internal_error")
        self._fail_open.call(lambda: self._list_session(incoming), None)
        _refuse_if_closed(incoming)
        await self._forward(incoming)

    async def _forward(self, incoming: Incoming) -> None:
        """Forward, relay, record."""
        forwarded = await self._fail_open.run(self._forwarder.forward(incoming), None)
        if forwarded is None:
            _send_as_it_came(incoming, "failed-open", "internal_error")
            _refuse_if_closed(incoming)
            forwarded = await self._forwarder.unread(incoming)
        answer, incoming.draft = forwarded
        incoming.answered(answer.response.status)
        if answer.overflow is not None:
            is_left_alone = incoming.named is not None and incoming.named.mode in ("off", "shadow")
            incoming.overflow = "observed" if is_left_alone else "passed_on"
        tap = self._fail_open.call(lambda: self._lessons.tap(incoming, answer), None)
        if tap is not None:
            incoming.warning = self._fail_open.call(lambda: self._lessons.warning(incoming, answer, tap), None)
        headers: Headers = self._fail_open.call(lambda: headers_of(incoming), [])
        _reword_overflow(incoming, answer, headers)
        if answer.hides_usage:
            shown = without_usage(tap.answer if tap else answer, incoming.exchange.head.dialect.answers)
            await relay(shown, incoming.exchange, headers)
        else:
            await relay(answer, incoming.exchange, headers, tap)
        # Nothing may wait from here on: the server takes a client that has its answer for one that left.
        self._fail_open.call(lambda: self._lessons.take(incoming, tap), None)

    async def _prepare(self, incoming: Incoming) -> bool:
        """Everything that is ours to do before the upstream is asked."""
        began = time.perf_counter()
        request = await self._read(incoming)
        read = time.perf_counter()
        if request is None:
            _send_as_it_came(incoming, "bypass", "unknown_shape")
            return True
        router = incoming.active.router
        if request.tokens >= WORTH_LOOKING_UP:
            await self._engine.windows.look_up(
                router.place(incoming.exchange.head, incoming.caller, request.settings.model)
            )
        named = named_of(incoming.exchange.head, router, incoming.caller, incoming.mode, request)
        named = await self._engine.as_asked(named)
        if named.is_plain and not router.has_overflowed(named.place, named.chain):
            incoming.ready(named.route, self._engine.drafter.plain(named), named)
            return True
        case = with_lessons(named, router)
        with commenting(incoming, case, self._fail_open):
            case = await self._engine.drafter.placed(case)
            placed = time.perf_counter()
            incoming.ready(case.route, await self._engine.drafter.first(case), case)
        incoming.stages = _stages(incoming, began, read, placed)
        return True

    async def count(self, exchange: Exchange) -> None:
        """The upstream's count of what `converse` would send now: nothing is made for it, and nothing written."""
        await self._received(exchange, self._count)

    async def _count(self, incoming: Incoming) -> None:
        if not await self._fail_open.run(self._stand(incoming), False, incoming.patience):
            _send_as_it_came(incoming, "failed-open", "internal_error")
        counted = await self._fail_open.run(self._forwarder.once(incoming), None)
        if counted is None:
            _send_as_it_came(incoming, "failed-open", "internal_error")
            counted = await self._forwarder.unread(incoming)
        answer, incoming.draft = counted
        incoming.answered(answer.response.status)
        await relay(answer, incoming.exchange, self._fail_open.call(lambda: headers_of(incoming), []))

    async def _stand(self, incoming: Incoming) -> bool:
        """What there is already to be sent."""
        request = await self._read(incoming)
        if request is None:
            _send_as_it_came(incoming, "bypass", "unknown_shape")
            return True
        case = case_of(incoming.exchange.head, incoming.active.router, incoming.caller, incoming.mode, request)
        incoming.ready(case.route, await self._engine.explainer.standing(case), case)
        return True

    async def explain(self, exchange: Exchange) -> None:
        """What `converse` would do with this request now, and why; nothing goes upstream."""
        incoming = self._incoming(exchange)
        with self._observed(incoming):
            if exchange.head.method != "POST":
                raise errors.MethodNotAllowedError("Send the request that is to be explained by POST.", "POST")
            await self._receive(incoming)
            await exchange.while_connected(self._explain(incoming))

    async def _explain(self, incoming: Incoming) -> None:
        explanation = await self._fail_open.run(self._explanation(incoming), None)
        if explanation is None:
            raise errors.ProxyError("The request could not be explained; the log says where it failed.")
        body = msgspec.json.encode(explanation)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await incoming.exchange.start(200, headers)
        await incoming.exchange.write(body, more=False)

    async def _explanation(self, incoming: Incoming) -> Explanation:
        body, caller, router = await self._unpacked(incoming), incoming.caller, incoming.active.router
        head = incoming.exchange.head
        head = head.asking(_explained_as(head) or table.written_in(body or b"") or head.dialect)
        request = body and await self._engine.reader.read(body, caller.scope, router.encoding, head.dialect)
        if not request:
            return Explanation(head.model_of(incoming.body), caller.policy_name, "bypass", "unknown_shape")
        return await self._engine.explainer.explain(case_of(head, router, caller, incoming.mode, request), request)

    async def passthrough(self, exchange: Exchange) -> None:
        """Any other request: relayed untouched, both bodies streamed."""
        incoming = self._incoming(exchange)
        with self._observed(incoming):
            self._admit(incoming)
            # A handshake has this header (RFC 6455, section 4.1); the Upgrade itself ends at the connection.
            found = exchange.head.reading.found
            if found and found.dialect.has_sockets and exchange.head.header(b"sec-websocket-key"):
                raise errors.WebSocketError
            incoming.active.router.check_path(exchange.head, incoming.caller)
            with incoming.opened:
                await exchange.while_connected(self._relay(incoming))

    async def _relay(self, incoming: Incoming) -> None:
        exchange, head, limit = incoming.exchange, incoming.exchange.head, incoming.active.server.max_body_bytes
        incoming.route = route = incoming.active.router.plain(head, incoming.caller)
        incoming.prepared = incoming.started
        length = head.header(b"content-length")
        headers = route.headers if length is None else [*route.headers, (b"content-length", length)]
        empty = length in (None, b"0") and head.header(b"transfer-encoding") is None
        body = await exchange.request.read(0) if empty else exchange.request.chunks(limit)
        url = upstream_url(route.upstream.base_url, head.target)
        incoming.asks(url)
        response = await self._client.send(route.upstream, head.method, url, headers, body)
        incoming.opened.callback(response.close)
        incoming.answered(response.status)
        await relay(Answer(response, b"", None, None), exchange, [])

    async def _read(self, incoming: Incoming) -> CountedRequest | None:
        """The counted request; None where it cannot be understood, which is the upstream's to judge."""
        body = await self._unpacked(incoming)
        if body is None:
            return None
        if incoming.request is not None:
            return incoming.request
        dialect = incoming.exchange.head.dialect
        return await self._engine.reader.read(body, incoming.caller.scope, incoming.active.router.encoding, dialect)

    async def _unpacked(self, incoming: Incoming) -> bytes | None:
        """What the body says; None for a coding that is not read here, and for what is not read at all."""
        used = (incoming.exchange.head.header(b"content-encoding") or b"identity").lower()
        body, limit = incoming.body, incoming.active.server.max_body_bytes
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
            incoming.hold(len(unpacked))
        elif incoming.active.router.depends_on_models:
            raise errors.BodyTooLargeError(_UNROUTABLE)
        return unpacked

    def _list_session(self, incoming: Incoming) -> None:
        """Have a session listed of which something may be stored."""
        named, sent, sessions = incoming.named, incoming.sent, self._engine.sessions
        if named is None or (sent.copy is None and named.is_far_below(sent.tokens)):
            return
        case = incoming.counted
        if not _may_be_stored(case, sent) or not sessions.is_news(case.chain, sent.record):
            return
        listing = sessions.add(case.caller, case.chain, case.label, case.request.settings.model, sent.record)
        self._engine.background.start("enroll", listing)

    def _incoming(self, exchange: Exchange) -> Incoming:
        return Incoming(exchange, self.active, exchange.began)

    @contextmanager
    def _observed(self, incoming: Incoming) -> Iterator[None]:
        """One event for every request, which says how it ended."""
        exchange, error = incoming.exchange, None
        deadline = incoming.active.server.request_deadline
        left = max(0.0, incoming.started + deadline - time.perf_counter())
        late = asyncio.get_running_loop().call_later(left, _end_late, exchange, deadline)
        try:
            with exchange.endable():
                yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            late.cancel()
            if incoming.admitted is not None:
                incoming.admitted.close()
            if isinstance(error, errors.ClientGoneError) and self._fail_open.call(
                lambda: self._has_all(incoming), False
            ):
                error = None
            self._fail_open.call(lambda: tell(self._engine.observe, ended(incoming, error), exchange.head.trace), None)

    def _has_all(self, incoming: Incoming) -> bool:
        """Whether a client that has left has its whole answer, since some hang up with the last event; then it counts
        as any other."""
        if incoming.tap is None or not incoming.tap.is_whole:
            return False
        self._lessons.take(incoming, incoming.tap)
        return True


def _stages(incoming: Incoming, began: float, read: float, placed: float) -> dict[str, float]:
    """Milliseconds by what was done, of a request that is ready; these are the times at which each was done."""
    draft = incoming.sent
    rebuilt = incoming.prepared - placed - draft.planned - draft.waited
    seconds = {"read": read - began, "store": placed - read, "plan": draft.planned, "rebuild": rebuilt}
    return {stage: round(1000 * spent, 2) for stage, spent in seconds.items()}


def _traced(head: RequestHead, tracing: Tracing) -> RequestHead:
    trace = tracing.begun(head.headers)
    return RequestHead(head.method, head.target, tracing.onward(head.headers, trace), trace)


def _end_late(exchange: Exchange, deadline: float) -> None:
    exchange.end(errors.RequestDeadlineError(deadline))


def _send_as_it_came(incoming: Incoming, outcome: Outcome, reason: str) -> None:
    """The client's bytes, uncounted: not understood, or after a fault of ours."""
    model = incoming.exchange.head.model_of(incoming.body)
    route = incoming.active.router.plain(incoming.exchange.head, incoming.caller, model)
    incoming.ready(route, Draft(incoming.body, 0, outcome, reason), None)


def _refuse_if_closed(incoming: Incoming) -> None:
    """Raise CompactionFailedError where a compaction was wanted and failed, and the policy is to refuse then."""
    is_wanted = incoming.caller.policy.fail == "closed" and incoming.mode in ("on", "force")
    if is_wanted and incoming.sent.outcome == "failed-open":
        raise errors.CompactionFailedError(incoming.sent.reason, incoming.case.chain.name if incoming.case else "")


def _reword_overflow(incoming: Incoming, answer: Answer, headers: Headers) -> None:
    """Raise ContextLengthError for an overflow that was not solved, where the policy wants words that clients know."""
    stated = answer.overflow
    if stated is None or incoming.caller.policy.overflow_error == "upstream":
        return
    case = incoming.case
    if case is None or case.is_let_through:
        return
    known = incoming.to.window
    tokens = stated.input_tokens or case.request.received_tokens
    limit = stated.limit or (known.tokens if known else None)
    dialect = case.request.dialect
    message = dialect.answers.TOO_LONG_FOR_IT
    if limit is not None:
        message = dialect.answers.TOO_LONG.format(limit=limit, tokens=max(tokens, limit + 1))
    raise errors.ContextLengthError(message, dialect.array.name, headers)


def _may_be_stored(case: Case, sent: Draft) -> bool:
    """Whether something of its conversation may lie in the store, or is about to."""
    return not case.is_let_through and (sent.copy is not None or is_worth_following(case, sent))


def _explained_as(head: RequestHead) -> Dialect | None:
    """The dialect that is named for a request to explain; None where none is."""
    name = next(iter(parse_qs(head.query.decode("latin-1"), keep_blank_values=True).get("dialect", [])), None)
    if name is not None and name not in table.names():
        raise errors.InvalidRequestError(f"dialect must be one of {', '.join(table.names())}.", param="dialect")
    return None if name is None else table.named(name)
