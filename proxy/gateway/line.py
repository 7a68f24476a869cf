"""The way of a request through the proxy, in one readable line."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import msgspec

from policies.experience import was_cut_off
from proxy.admin.auth import carries
from proxy.callers.admission import Admission
from proxy.callers.tenants import Caller
from proxy.config.settings import Server
from proxy.dialects.bounds import most_unpacked
from proxy.dialects.json_array import model_of
from proxy.dialects.reader import ChatRequest, RequestReader
from proxy.engine.ahead import Ahead
from proxy.engine.case import Case, Draft, Outcome, Wish, case_of
from proxy.engine.drafter import Drafter
from proxy.engine.explainer import Explainer
from proxy.engine.explanation import Explanation
from proxy.errors import (
    AuthenticationError,
    BodyTooLargeError,
    CompactionFailedError,
    ContextLengthError,
    InvalidRequestError,
    LoopError,
    MethodNotAllowedError,
    ProxyError,
    RequestDeadlineError,
    ShuttingDownError,
    WebSocketError,
)
from proxy.gateway.answers import Answer
from proxy.gateway.forwarder import Forwarder
from proxy.gateway.incoming import Active, Incoming, Prepared, Progress, told_of
from proxy.gateway.relay import relay
from proxy.gateway.report import Report
from proxy.gateway.usage import UsageTap, without_usage
from proxy.models.windows import Windows
from proxy.observing.log import Log
from proxy.records.index import SessionIndex
from proxy.runtime.background import Background
from proxy.runtime.fail_open import Rim
from proxy.server import content_coding
from proxy.server.exchange import ClientGoneError, Exchange
from proxy.server.headers import MAX_HOPS, Headers, hops
from proxy.server.paths import RESPONSES, resource, upstream_url
from proxy.upstream.asker import WindowAsker
from proxy.upstream.http import TruncatedError, UpstreamClient

# Where Azure and Google look for a key.
_OTHER_KEYS = (b"api-key", b"x-goog-api-key", b"ocp-apim-subscription-key")
_ONCE = (b"authorization", b"x-api-key", b"x-compaction", b"x-compaction-policy")
# Share of M below which nothing is prepared for the next request.
WORTH_FOLLOWING = 0.5
# Tokens below which nothing is asked, looked up or learned, so that small requests pay for nothing.
_WORTH_LOOKING_UP = 1_500
_UNROUTABLE = (
    "The request body unpacks to more than is read here, and the model in it decides where it goes;"
    " send it uncompressed."
)
_WISHES: dict[bytes, Wish] = {b"off": "off", b"on": "on", b"shadow": "shadow", b"force": "force"}


class Gateway:
    """Relays requests; chat requests are counted, and compacted where they must be."""

    def __init__(
        self,
        active: Active,
        reader: RequestReader,
        drafter: Drafter,
        ahead: Ahead,
        explainer: Explainer,
        sessions: SessionIndex,
        windows: Windows,
        asker: WindowAsker,
        client: UpstreamClient,
        background: Background,
        log: Log,
    ) -> None:
        self.active = active
        self._reader = reader
        self._drafter = drafter
        self._admission = Admission()
        self._rim = Rim(log)
        self._forwarder = Forwarder(drafter, windows, client, self._rim, log)
        self._ahead = ahead
        self._explainer = explainer
        self._sessions = sessions
        self._windows = windows
        self._asker = asker
        self._client = client
        self._background = background
        self._log = log

    async def chat(self, exchange: Exchange) -> None:
        """One chat request: receive and identify it, then answer it for as long as the client stays."""
        async with self._logged(exchange) as progress:
            incoming = await self._receive(exchange, progress)
            incoming.active.router.check_path(exchange, incoming.caller)
            with incoming.opened:
                await exchange.while_connected(self._answer(incoming))

    async def _receive(self, exchange: Exchange, progress: Progress) -> Incoming:
        """The whole request of a caller that is let in."""
        active = self.active
        caller, wish = self._admit(exchange, active, progress)
        body = await exchange.body(active.server.max_body_bytes, progress.hold)
        return Incoming(exchange, active, caller, wish, body, progress.started, progress)

    def _admit(self, exchange: Exchange, active: Active, progress: Progress) -> tuple[Caller, Wish]:
        """Who is calling and what for, where there is room for the request."""
        caller, wish = _identify(exchange, active)
        progress.caller = caller
        progress.admitted.enter_context(self._admission.slot(caller.tenant, active.max_requests, caller.max_requests))
        progress.hold = progress.admitted.enter_context(self._admission.bytes(_most_buffered(active.server)))
        return caller, wish

    async def _answer(self, incoming: Incoming) -> None:
        """Count, plan, compact, forward, relay, record."""
        progress = incoming.progress
        prepared = await self._rim.shield(self._prepare(incoming), None, incoming.patience)
        if prepared is None:
            prepared = _as_it_came(incoming, "failed-open", "internal_error")
        progress.report = report = incoming.report(prepared)
        await self._rim.shield(self._enroll(report), None)
        _refuse_if_closed(incoming, prepared)
        forwarded = await self._rim.shield(self._forwarder.forward(incoming, prepared), None)
        if forwarded is None:
            prepared = _as_it_came(incoming, "failed-open", "internal_error")
            _refuse_if_closed(incoming, prepared)
            report = incoming.report(prepared)
            forwarded = await self._forwarder.unread(incoming, prepared)
        answer, sent = forwarded
        progress.report = report = replace(report, sent=sent, status=answer.response.status)
        tap = await self._rim.shield(_tapped(report, answer), None)
        if tap is not None:
            report = replace(report, warning=await self._rim.shield(self._warning(report, tap), None))
        headers = await self._rim.shield(told_of(report), [])
        _reword_overflow(incoming, report, answer, headers)
        answer = tap.answer if tap else answer
        await relay(without_usage(answer) if answer.hides_usage else answer, incoming.exchange, headers)
        # Nothing may wait from here on: the server takes a client that has its answer for one that left.
        await self._rim.shield(self._record(report, tap), None)

    async def _prepare(self, incoming: Incoming) -> Prepared:
        """Everything that is ours to do before the upstream is asked."""
        request = await self._read(incoming)
        if request is None:
            return _as_it_came(incoming, "bypass", "unknown_shape")
        router = incoming.active.router
        if request.tokens >= _WORTH_LOOKING_UP:
            await self._windows.look_up(router.place(incoming.caller, request.model))
        case = case_of(incoming.exchange, router, incoming.caller, incoming.wish, request)
        with incoming.commenting(case, self._rim):
            case = await self._drafter.placed(case)
            return Prepared(case.route, case, await self._drafter.first(case))

    async def explain(self, exchange: Exchange) -> None:
        """What `chat` would do with this request now, and why; nothing goes upstream."""
        async with self._logged(exchange) as progress:
            if exchange.method != "POST":
                raise MethodNotAllowedError("Send what is to be explained by POST, as a chat request.", "POST")
            incoming = await self._receive(exchange, progress)
            await exchange.while_connected(self._explain(incoming))

    async def _explain(self, incoming: Incoming) -> None:
        explanation = await self._rim.shield(self._explanation(incoming), None)
        if explanation is None:
            raise ProxyError("The request could not be explained; the log says where it failed.")
        body = msgspec.json.encode(explanation)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await incoming.exchange.start(200, headers)
        await incoming.exchange.write(body, more=False)

    async def _explanation(self, incoming: Incoming) -> Explanation:
        request = await self._read(incoming)
        if request is None:
            return Explanation(model_of(incoming.body), incoming.caller.policy_name, "bypass", "unknown_shape")
        case = case_of(incoming.exchange, incoming.active.router, incoming.caller, incoming.wish, request)
        return await self._explainer.explain(case, request)

    async def passthrough(self, exchange: Exchange) -> None:
        """Any other request: relayed untouched, both bodies streamed."""
        async with self._logged(exchange) as progress:
            active = self.active
            caller, wish = self._admit(exchange, active, progress)
            # A handshake has this header (RFC 6455, section 4.1); the Upgrade itself ends at the connection.
            if resource(exchange.reading) == RESPONSES and exchange.header(b"sec-websocket-key"):
                raise WebSocketError
            active.router.check_path(exchange, caller)
            incoming = Incoming(exchange, active, caller, wish, b"", progress.started, progress)
            with incoming.opened:
                await exchange.while_connected(self._relay(incoming))

    async def _relay(self, incoming: Incoming) -> None:
        exchange, progress = incoming.exchange, incoming.progress
        route = incoming.active.router.plain(exchange, incoming.caller)
        progress.report = report = Report(incoming, route, None, None, 0, incoming.started)
        length = exchange.header(b"content-length")
        headers = route.headers if length is None else [*route.headers, (b"content-length", length)]
        empty = length in (None, b"0") and exchange.header(b"transfer-encoding") is None
        body = await exchange.body(0) if empty else exchange.chunks(incoming.active.server.max_body_bytes)
        url = upstream_url(route.upstream.base_url, exchange.target)
        response = await self._client.send(route.upstream, exchange.method, url, headers, body)
        incoming.opened.callback(response.close)
        progress.report = replace(report, status=response.status)
        await relay(Answer(response, b"", response.chunks(), None), exchange, [])

    async def _read(self, incoming: Incoming) -> ChatRequest | None:
        """The counted request; None where it cannot be understood, which is the upstream's to judge."""
        body = await self._unpacked(incoming)
        if body is None:
            return None
        return await self._reader.read(body, incoming.caller.scope, incoming.active.router.encoding)

    async def _unpacked(self, incoming: Incoming) -> bytes | None:
        """What the body says; None for a coding that is not read here, and for what is not read at all."""
        used = (incoming.exchange.header(b"content-encoding") or b"identity").lower()
        body, limit = incoming.body, incoming.active.server.max_body_bytes
        if used == b"identity":
            return body
        if used not in content_coding.READABLE:
            return None
        most_kept = min(limit, most_unpacked(len(body)))
        try:
            unpacked = await asyncio.to_thread(content_coding.unpack, body, used, most_kept, limit)
        except content_coding.TooLargeError:
            raise BodyTooLargeError("The request body is over the limit after decompression.") from None
        except content_coding.UndecodableError:
            return None
        if unpacked is not None:
            incoming.progress.hold(len(unpacked))
        elif incoming.active.router.depends_on_models:
            raise BodyTooLargeError(_UNROUTABLE)
        return unpacked

    async def _enroll(self, report: Report) -> None:
        """Have a conversation listed of which something may be stored."""
        case, sent = report.case, report.sent
        if case is None or sent is None or not _may_be_stored(case, sent):
            return
        if self._sessions.is_news(case, sent.record):
            self._background.start("enroll", self._sessions.enroll(case, sent.record))

    async def _warning(self, report: Report, tap: UsageTap) -> str | None:
        """Whether the upstream read the prompt whole: by this answer where it is all there, else by the last one."""
        case, sent = report.case, report.sent
        if case is None or sent is None:
            return None
        usage = tap.usage() if tap.is_complete else None
        known = case.experience.cut_off
        cut_off = was_cut_off(sent.tokens, usage.prompt_tokens) if usage else known
        return "prompt_cut_off" if cut_off else sent.warning

    async def _record(self, report: Report, tap: UsageTap | None) -> None:
        """Learn from an answer that came through whole, and see to what follows it."""
        case, sent = report.case, report.sent
        if case is None or sent is None:
            return
        if tap is not None:
            usage = tap.usage()
            self._ahead.learn(case, sent, usage)
            if _is_worth_following(case, sent):
                self._background.start("follow_up", self._ahead.after(case, sent, usage))
        if self._windows.has_news(case.place):
            self._background.start("share", self._windows.share(case.place))
        self._ask_for_windows(case, report)

    def _ask_for_windows(self, case: Case, report: Report) -> None:
        upstream, model = report.route.upstream, case.request.model
        if report.status != 200 or case.request.tokens < _WORTH_LOOKING_UP:
            return
        known = report.route.window
        if case.router.configured_window(model) is not None or (known and known.source == "learned"):
            return
        if self._asker.is_due(upstream, model):
            self._background.start("ask", self._asker.ask(upstream, report.route.headers, model))

    @asynccontextmanager
    async def _logged(self, exchange: Exchange) -> AsyncIterator[Progress]:
        """One line in the log for every request, which says how it ended."""
        progress = Progress(exchange, time.perf_counter())
        error: BaseException | None = None
        deadline = self.active.server.request_deadline
        late = asyncio.get_running_loop().call_later(deadline, exchange.end, RequestDeadlineError(deadline))
        try:
            with exchange.endable():
                yield progress
        except BaseException as raised:
            error = raised
            raise
        finally:
            late.cancel()
            progress.admitted.close()
            await self._rim.shield(self._log_end(progress, error), None)

    async def _log_end(self, progress: Progress, error: BaseException | None) -> None:
        known = progress.fields(time.perf_counter())
        match error:
            case None:
                self._log.info("request", end="complete", **known)
            case ShuttingDownError() | RequestDeadlineError():
                end = "shut_down" if isinstance(error, ShuttingDownError) else "deadline"
                self._log.warning("request", end=end, **{"status": error.status} | known)
            case ProxyError():
                told = {"status": error.status, "code": error.code} | ({"cause": error.cause} if error.cause else {})
                self._log.info("request", end="refused", **known | told)
            case ClientGoneError():
                self._log.info("request", end="client_gone", **known)
            case TruncatedError():
                self._log.warning("request", end="truncated", **known)
            case _:
                self._log.warning("request", end="aborted", **known)


def _as_it_came(incoming: Incoming, outcome: Outcome, reason: str) -> Prepared:
    """The client's bytes, uncounted: not understood, or after a fault of ours."""
    route = incoming.active.router.plain(incoming.exchange, incoming.caller, model_of(incoming.body))
    return Prepared(route, None, Draft(incoming.body, 0, outcome, reason))


def _refuse_if_closed(incoming: Incoming, prepared: Prepared) -> None:
    """Raise CompactionFailedError where a compaction was wanted and failed, and the policy is to refuse then."""
    if (
        incoming.caller.policy.fail == "closed"
        and incoming.wish in ("on", "force")
        and prepared.draft.outcome == "failed-open"
    ):
        raise CompactionFailedError(prepared.draft.reason, prepared.case.lineage if prepared.case else "")


def _reword_overflow(incoming: Incoming, report: Report, answer: Answer, told: Headers) -> None:
    """Raise ContextLengthError for an overflow that was not solved, where the policy wants OpenAI's shape of it."""
    stated, case = answer.overflow, report.case
    if stated is None or case is None or case.is_let_through or incoming.caller.policy.overflow_error != "openai":
        return
    known = report.route.window
    tokens = stated.input_tokens or case.request.received_tokens
    limit = stated.limit or (known.tokens if known else tokens - 1)
    raise ContextLengthError(limit, max(tokens, limit + 1), told)


async def _tapped(report: Report, answer: Answer) -> UsageTap | None:
    """What reads how many tokens the upstream bills, where something is learned from it."""
    case = report.case
    if report.status != 200 or case is None or case.wish == "off" or case.request.tokens < _WORTH_LOOKING_UP:
        return None
    return UsageTap(answer)


def _may_be_stored(case: Case, sent: Draft) -> bool:
    """Whether something of its conversation may lie in the store, or is about to."""
    return not case.is_let_through and (sent.copy is not None or _is_worth_following(case, sent))


def _is_worth_following(case: Case, sent: Draft) -> bool:
    """Whether something may be done for the next request once this one's answer is with the client."""
    real = case.limits.real
    return real is not None and sent.tokens >= real.at(WORTH_FOLLOWING)


def _identify(exchange: Exchange, active: Active) -> tuple[Caller, Wish]:
    """Who is calling, under which policy, and what they want of us; control headers count once or not at all."""
    if hops(exchange.headers) >= MAX_HOPS:
        raise LoopError("This request passed the proxy several times: an upstream's base_url leads back to the proxy.")
    repeated = exchange.repeats(_ONCE)
    if repeated is not None:
        raise InvalidRequestError(f"The header {repeated.decode()} may be sent once only.", param=repeated.decode())
    if exchange.reading.has_dots:
        raise InvalidRequestError("The path holds dot segments (. or ..), encoded or not; send it without them.")
    if carries(active.admin_token.value.encode(), exchange.headers, exchange.query):
        raise AuthenticationError("This is the admin token, not an API key: it is for /admin and /metrics alone.")
    tenants = active.tenants
    other_key = next(filter(None, map(exchange.header, _OTHER_KEYS)), None)
    caller = tenants.identify(exchange.header(b"authorization"), exchange.header(b"x-api-key"), other_key)
    policy = exchange.header(b"x-compaction-policy")
    if policy is not None:
        caller = tenants.with_policy(caller, policy.decode("latin-1"))
    return caller, _wish(exchange, caller)


def _most_buffered(server: Server) -> int:
    """Bytes that all bodies may take: at least one, and what it unpacks to."""
    return max(server.max_buffered_bytes, 2 * server.max_body_bytes)


def _wish(exchange: Exchange, caller: Caller) -> Wish:
    """The header's word, else the policy's mode."""
    asked = exchange.header(b"x-compaction")
    if asked is None:
        return caller.policy.mode
    wish = _WISHES.get(asked.strip().lower())
    if wish is None:
        raise InvalidRequestError("x-compaction must be one of off, on, shadow, force.", param="x-compaction")
    return wish
