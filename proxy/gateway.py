"""The way of a request through the proxy, in one readable line."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec

from policies.assembly import Shape
from policies.ladder import StatedLimit
from proxy.ahead import Ahead
from proxy.answers import Answer, look_at
from proxy.background import Background
from proxy.cases import Case, Draft, Outcome, Wish, case_of, reshaped
from proxy.drafts import Drafter
from proxy.errors import (
    BodyTooLargeError,
    CompactionFailedError,
    InvalidRequestError,
    LoopError,
    ProxyError,
    UpstreamConnectionError,
)
from proxy.exchange import ClientGoneError, Exchange
from proxy.explain import Explainer, MethodNotAllowedError
from proxy.explanation import Explanation
from proxy.log import Log
from proxy.reader import ChatRequest, RequestReader
from proxy.relay import relay, upstream_url
from proxy.report import Report, headers_of
from proxy.routes import Route, Router
from proxy.tenants import Caller, Tenants
from proxy.upstream.asker import WindowAsker
from proxy.upstream.client import TruncatedError, UpstreamClient
from proxy.usage import UsageTap
from proxy.windows import Windows
from proxy.wire import coding
from proxy.wire.chat import model_of
from proxy.wire.headers import MAX_HOPS, Headers, hops

_T = TypeVar("_T")
_ONCE = (b"authorization", b"x-api-key", b"x-compaction", b"x-compaction-policy")
# Share of the usable input below which nothing follows an answer, so that small requests pay for nothing.
WORTH_FOLLOWING = 0.5
# Tokens below which no window is so small that it matters what other replicas or the upstream know of it.
_WORTH_LOOKING_UP = 1_500
# Stands for a draft that a fault of ours prevented.
_FAULT = Draft(b"", 0, "failed-open", "internal_error")
# Headers that cannot be told yet when comments begin an answer.
_TOLD_LATER = (b"x-compaction-tokens-sent", b"x-compaction-overhead-ms", b"server-timing")
_WISHES: dict[bytes, Wish] = {b"off": "off", b"on": "on", b"shadow": "shadow", b"force": "force"}


@dataclass(frozen=True, slots=True)
class Active:
    """What a config gives the gateway; one immutable value, swapped as a whole."""

    tenants: Tenants
    router: Router
    max_body_bytes: int


@dataclass(slots=True)
class Progress:
    """How far a request came: what the log can say of it when it ends, whichever way."""

    exchange: Exchange
    started: float
    caller: Caller | None = None
    report: Report | None = None

    def fields(self, now: float) -> dict[str, object]:
        exchange, caller = self.exchange, self.caller
        known: dict[str, object] = {} if caller is None else {"tenant": caller.tenant, "policy": caller.policy_name}
        known["method"] = exchange.method
        if exchange.status:
            known["status"] = exchange.status
        known |= {"ms": round(1000 * (now - self.started), 1), "bytes": exchange.sent}
        if exchange.comments:
            known["comments"] = exchange.comments
        return known if self.report is None else known | self.report.fields()


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request that was received: who sent it, what it wants of us, and its bytes."""

    exchange: Exchange
    active: Active
    caller: Caller
    wish: Wish
    body: bytes
    started: float
    progress: Progress
    opened: ExitStack = field(default_factory=ExitStack)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What goes upstream, and where. `case` is None where the request was not understood, or a fault of ours struck."""

    route: Route
    case: Case | None
    draft: Draft


class Gateway:
    """Relays requests; chat requests are counted, and compacted where they must be."""

    def __init__(
        self,
        active: Active,
        reader: RequestReader,
        drafter: Drafter,
        ahead: Ahead,
        explainer: Explainer,
        windows: Windows,
        asker: WindowAsker,
        client: UpstreamClient,
        background: Background,
        log: Log,
    ) -> None:
        self.active = active
        self._reader = reader
        self._drafter = drafter
        self._ahead = ahead
        self._explainer = explainer
        self._windows = windows
        self._asker = asker
        self._client = client
        self._background = background
        self._log = log

    async def chat(self, exchange: Exchange) -> None:
        """One chat request: receive and identify it, then answer it for as long as the client stays."""
        async with self._logged(exchange) as progress:
            incoming = await self._receive(exchange, progress)
            with incoming.opened:
                await exchange.while_connected(self._answer(incoming))

    async def _receive(self, exchange: Exchange, progress: Progress) -> Incoming:
        """The whole request of a caller that is let in."""
        active = self.active
        caller, wish = _identify(exchange, active.tenants)
        progress.caller = caller
        body = await exchange.body(active.max_body_bytes)
        return Incoming(exchange, active, caller, wish, body, progress.started, progress)

    async def _answer(self, incoming: Incoming) -> None:
        """Count, plan, compact, forward, relay, record."""
        progress = incoming.progress
        prepared = await self._fail_open(self._prepare(incoming), None)
        if prepared is None:
            prepared = _as_it_came(incoming, "failed-open", "internal_error")
        progress.report = report = _report(incoming, prepared)
        _refuse_if_closed(incoming, prepared)
        answer, sent = await self._forward(incoming, prepared)
        progress.report = report = replace(report, sent=sent, status=answer.response.status)
        tap = UsageTap(answer) if _is_worth_following(report) else None
        headers = await self._fail_open(_told(report), [])
        await relay(tap.answer if tap else answer, incoming.exchange, headers)
        # Nothing may wait from here on: the server takes a client that has its answer for one that left.
        await self._fail_open(self._record(report, tap), None)

    async def _prepare(self, incoming: Incoming) -> Prepared:
        """Everything that is ours to do before the upstream is asked."""
        request = await self._read(incoming)
        if request is None:
            return _as_it_came(incoming, "bypass", "unknown_shape")
        router = incoming.active.router
        if request.tokens >= _WORTH_LOOKING_UP:
            await self._windows.look_up(router.place(incoming.caller, request.model))
        case = case_of(incoming.exchange, router, incoming.caller, incoming.wish, request)
        with self._commenting(incoming, case):
            return Prepared(case.route, case, await self._drafter.first(case))

    async def explain(self, exchange: Exchange) -> None:
        """What `chat` would do with this request now, and why; nothing goes upstream."""
        async with self._logged(exchange) as progress:
            if exchange.method != "POST":
                raise MethodNotAllowedError("Send what is to be explained by POST, as a chat request.")
            incoming = await self._receive(exchange, progress)
            await exchange.while_connected(self._explain(incoming))

    async def _explain(self, incoming: Incoming) -> None:
        explanation = await self._fail_open(self._explanation(incoming), None)
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
            caller, wish = _identify(exchange, active.tenants)
            progress.caller = caller
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
        body = await exchange.body(0) if empty else exchange.chunks(incoming.active.max_body_bytes)
        url = upstream_url(route.upstream.base_url, exchange.target)
        response = await self._client.send(route.upstream, exchange.method, url, headers, body)
        incoming.opened.callback(response.close)
        progress.report = replace(report, status=response.status)
        await relay(Answer(response, b"", response.chunks(), None), exchange, [])

    async def _read(self, incoming: Incoming) -> ChatRequest | None:
        """The counted request; None where it cannot be understood, which is the upstream's to judge."""
        used = (incoming.exchange.header(b"content-encoding") or b"identity").lower()
        body = incoming.body
        if used in coding.READABLE:
            try:
                body = await asyncio.to_thread(coding.decompress, body, used, incoming.active.max_body_bytes)
            except coding.TooLargeError:
                raise BodyTooLargeError("The request body is over the limit after decompression.") from None
            except coding.UndecodableError:
                return None
        elif used != b"identity":
            return None
        return await self._reader.read(body, incoming.caller.scope, incoming.active.router.encoding)

    async def _forward(self, incoming: Incoming, prepared: Prepared) -> tuple[Answer, Draft]:
        """Send the draft; while the upstream overflows before the first byte reached the client, send smaller ones."""
        case, sent = prepared.case, prepared.draft
        answer, sent = await self._deliver(incoming, prepared, sent)
        first, first_sent = answer, sent
        for attempt in range(0 if case is None else case.retries):
            if answer.overflow is None or case is None:
                break
            with self._commenting(incoming, case):
                smaller = await self._fail_open(self._smaller(case, sent, answer.overflow, attempt), _FAULT)
                if smaller is _FAULT:
                    smaller = await self._fail_open(self._drafter.halved(case, sent), None)
            if smaller is not None:
                try:
                    answer, sent = await self._deliver(incoming, prepared, smaller)
                except ProxyError:
                    break  # the upstream did answer once: that answer is the client's
        if answer.overflow is None:
            return answer, sent
        if case is not None and sent is not first_sent:
            self._log.warning("max_iterations", tenant=case.caller.tenant, session=case.lineage, retries=case.retries)
        return first, first_sent

    async def _smaller(self, case: Case, sent: Draft, stated: StatedLimit, attempt: int) -> Draft | None:
        """Learn from an overflow, and draft what may fit."""
        self._windows.saw_overflow(case.place, stated, sent.tokens)
        return await self._drafter.retry(case, sent, stated, attempt=attempt)

    async def _deliver(self, incoming: Incoming, prepared: Prepared, draft: Draft) -> tuple[Answer, Draft]:
        """Send a draft; where a template refuses the record's place among the messages, in its other shapes too."""
        case = prepared.case
        refusal = await self._send(incoming, prepared, draft)
        if case is None or not refusal.refuses_roles:
            return refusal, draft
        for shape, other in await self._fail_open(_reshaped(case, draft), []):
            try:
                answer = await self._send(incoming, prepared, other)
            except ProxyError:
                break
            if not answer.refuses_roles:
                self._windows.saw_shape(case.place, shape)
                self._log.info("shape", upstream=case.route.name, tenant=case.caller.tenant, shape=shape)
                return answer, other
        return refusal, draft

    async def _send(self, incoming: Incoming, prepared: Prepared, draft: Draft) -> Answer:
        route, headers, body = prepared.route, prepared.route.headers, draft.body
        if prepared.case is None or (body is prepared.case.request.body and prepared.case.request.is_as_received):
            body = incoming.body
        else:  # a compressed request that was compacted goes out as it is
            headers = [(key, value) for key, value in headers if key != b"content-encoding"]
        url = upstream_url(route.upstream.base_url, incoming.exchange.target)
        response = await self._client.send(route.upstream, "POST", url, headers, body)
        incoming.opened.callback(response.close)
        try:
            return await look_at(response)
        except TruncatedError:
            raise UpstreamConnectionError("The upstream closed the connection in the middle of its answer.") from None

    async def _record(self, report: Report, tap: UsageTap | None) -> None:
        """Learn from an answer that came through whole, and see to what follows it."""
        case, sent = report.case, report.sent
        if case is None or sent is None:
            return
        if tap is not None:
            self._background.start("follow_up", self._ahead.after(case, sent, tap.usage()))
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

    def _commenting(self, incoming: Incoming, case: Case) -> AbstractContextManager[None]:
        """A streaming client that waits for us inside gets comments, as often as its policy says."""
        interval = case.caller.policy.keepalive

        async def headers() -> Headers:
            waiting = Prepared(case.route, case, Draft(b"", case.request.tokens, "pending", "compacting"))
            told = await self._fail_open(_told(_report(incoming, waiting)), [])
            return [(name, value) for name, value in told if name not in _TOLD_LATER]

        return incoming.exchange.commenting(interval, headers) if case.request.stream and interval else nullcontext()

    @asynccontextmanager
    async def _logged(self, exchange: Exchange) -> AsyncIterator[Progress]:
        """One line in the log for every request, which says how it ended."""
        progress = Progress(exchange, time.perf_counter())
        error: BaseException | None = None
        try:
            yield progress
        except BaseException as raised:
            error = raised
            raise
        finally:
            await self._fail_open(self._log_end(progress, error), None)

    async def _log_end(self, progress: Progress, error: BaseException | None) -> None:
        known = progress.fields(time.perf_counter())
        match error:
            case None:
                self._log.info("request", end="complete", **known)
            case ProxyError():
                self._log.info("request", end="refused", **known | {"status": error.status, "code": error.code})
            case ClientGoneError():
                self._log.info("request", end="client_gone", **known)
            case TruncatedError():
                self._log.warning("request", end="truncated", **known)
            case _:
                self._log.warning("request", end="aborted", **known)

    async def _fail_open(self, work: Awaitable[_T], otherwise: _T) -> _T:
        """The rim: a fault of ours never breaks a request that would have worked without us."""
        try:
            return await work
        except ProxyError:
            raise
        except Exception as error:  # noqa: BLE001 - the one place
            self._log.fault("failed_open", error)
            return otherwise


def _as_it_came(incoming: Incoming, outcome: Outcome, reason: str) -> Prepared:
    """The client's bytes, uncounted: not understood, or after a fault of ours."""
    route = incoming.active.router.plain(incoming.exchange, incoming.caller, model_of(incoming.body))
    return Prepared(route, None, Draft(incoming.body, 0, outcome, reason))


def _report(incoming: Incoming, prepared: Prepared) -> Report:
    """What there is to tell before an answer is there."""
    return Report(incoming, prepared.route, prepared.case, prepared.draft, 0, time.perf_counter())


def _refuse_if_closed(incoming: Incoming, prepared: Prepared) -> None:
    """Raise CompactionFailedError where a compaction was wanted and failed, and the policy is to refuse then."""
    if (
        incoming.caller.policy.fail == "closed"
        and incoming.wish in ("on", "force")
        and prepared.draft.outcome == "failed-open"
    ):
        raise CompactionFailedError(prepared.draft.reason, prepared.case.lineage if prepared.case else "")


def _is_worth_following(report: Report) -> bool:
    """Whether something may be done for the next request once this one's answer is with the client."""
    case, sent = report.case, report.sent
    if report.status != 200 or case is None or sent is None or case.wish == "off" or case.route.budget is None:
        return False
    return sent.tokens >= WORTH_FOLLOWING * case.route.budget.usable


async def _reshaped(case: Case, draft: Draft) -> list[tuple[Shape, Draft]]:
    return list(reshaped(case, draft))


async def _told(report: Report) -> Headers:
    return headers_of(report)


def _identify(exchange: Exchange, tenants: Tenants) -> tuple[Caller, Wish]:
    """Who is calling, under which policy, and what they want of us; control headers count once or not at all."""
    if hops(exchange.headers) >= MAX_HOPS:
        raise LoopError("This request passed the proxy several times: an upstream's base_url leads back to the proxy.")
    repeated = exchange.repeats(_ONCE)
    if repeated is not None:
        raise InvalidRequestError(f"The header {repeated.decode()} may be sent once only.", param=repeated.decode())
    caller = tenants.identify(exchange.header(b"authorization"), exchange.header(b"x-api-key"))
    policy = exchange.header(b"x-compaction-policy")
    if policy is not None:
        caller = tenants.with_policy(caller, policy.decode("latin-1"))
    return caller, _wish(exchange, caller)


def _wish(exchange: Exchange, caller: Caller) -> Wish:
    """The header's word, else the policy's mode."""
    asked = exchange.header(b"x-compaction")
    if asked is None:
        return caller.policy.mode
    wish = _WISHES.get(asked.strip().lower())
    if wish is None:
        raise InvalidRequestError("x-compaction must be one of off, on, shadow, force.", param="x-compaction")
    return wish
