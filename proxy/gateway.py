"""The way of a request through the proxy, in one readable line."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TypeVar

from policies.ladder import StatedLimit
from proxy.answers import Answer, look_at
from proxy.drafts import Case, Draft, Drafter, Outcome, Wish
from proxy.errors import BodyTooLargeError, InvalidRequestError, LoopError, ProxyError, UpstreamConnectionError
from proxy.exchange import Exchange
from proxy.log import Log
from proxy.models import Windows
from proxy.reader import ChatRequest, RequestReader
from proxy.relay import relay, upstream_url
from proxy.report import Report, headers_of
from proxy.routes import Route, Router
from proxy.tenants import Caller, Tenants
from proxy.upstream.client import TruncatedError, UpstreamClient
from proxy.wire import coding
from proxy.wire.chat import model_of
from proxy.wire.headers import MAX_HOPS, Headers, hops

_T = TypeVar("_T")
_ONCE = (b"authorization", b"x-api-key", b"x-compaction", b"x-compaction-policy")
_WISHES: dict[bytes, Wish] = {b"off": "off", b"on": "on", b"shadow": "shadow", b"force": "force"}


@dataclass(frozen=True, slots=True)
class Active:
    """What a config gives the gateway; one immutable value, swapped as a whole."""

    tenants: Tenants
    router: Router
    max_body_bytes: int


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request that was received: who sent it, what it wants of us, and its bytes."""

    exchange: Exchange
    active: Active
    caller: Caller
    wish: Wish
    body: bytes
    started: float
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
        windows: Windows,
        client: UpstreamClient,
        log: Log,
    ) -> None:
        self.active = active
        self._reader = reader
        self._drafter = drafter
        self._windows = windows
        self._client = client
        self._log = log

    async def chat(self, exchange: Exchange) -> None:
        """One chat request: receive and identify it, then answer it for as long as the client stays."""
        started = time.perf_counter()
        active = self.active
        caller, wish = _identify(exchange, active.tenants)
        body = await exchange.body(active.max_body_bytes)
        incoming = Incoming(exchange, active, caller, wish, body, started)
        with incoming.opened:
            await exchange.while_connected(self._answer(incoming))

    async def _answer(self, incoming: Incoming) -> None:
        """Count, plan, compact, forward, relay, record."""
        prepared = await self._fail_open(self._prepare(incoming), None)
        if prepared is None:
            prepared = _as_it_came(incoming, "failed-open", "internal_error")
        ready = time.perf_counter()
        answer, sent = await self._forward(incoming, prepared)
        report = Report(incoming, prepared.route, prepared.case, sent, answer.response.status, ready)
        size = await relay(answer, incoming.exchange, await self._fail_open(_told(report), []))
        await self._fail_open(self._record(report, size), None)

    async def _prepare(self, incoming: Incoming) -> Prepared:
        """Everything that is ours to do before the upstream is asked."""
        request = await self._read(incoming)
        if request is None:
            return _as_it_came(incoming, "bypass", "unknown_shape")
        router = incoming.active.router
        route = router.chat(incoming.exchange, incoming.caller, request)
        case = Case(request, incoming.caller, route, router, incoming.wish)
        return Prepared(route, case, await self._drafter.first(case))

    async def passthrough(self, exchange: Exchange) -> None:
        """Any other request: relayed untouched, both bodies streamed."""
        started = time.perf_counter()
        active = self.active
        caller, wish = _identify(exchange, active.tenants)
        route = active.router.plain(exchange, caller)
        length = exchange.header(b"content-length")
        if length is not None:
            route = replace(route, headers=[*route.headers, (b"content-length", length)])
        chunks = exchange.chunks(active.max_body_bytes)
        incoming = Incoming(exchange, active, caller, wish, b"", started)

        async def work() -> None:
            empty = length in (None, b"0") and exchange.header(b"transfer-encoding") is None
            body = await exchange.body(0) if empty else chunks
            url = upstream_url(route.upstream.base_url, exchange.target)
            response = await self._client.send(route.upstream, exchange.method, url, route.headers, body)
            incoming.opened.callback(response.close)
            size = await relay(Answer(response, b"", response.chunks(), None), exchange, [])
            await self._fail_open(
                self._record(Report(incoming, route, None, None, response.status, started), size), None
            )

        with incoming.opened:
            await exchange.while_connected(work())

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
        first = answer = await self._send(incoming, prepared, sent)
        for attempt in range(0 if case is None else case.retries):
            if answer.overflow is None or case is None:
                break
            smaller = await self._fail_open(self._smaller(case, sent, answer.overflow, attempt), None)
            if smaller is not None:
                try:
                    answer = await self._send(incoming, prepared, smaller)
                except ProxyError:
                    break  # the upstream did answer once: that answer is the client's
                sent = smaller
        return (answer, sent) if answer.overflow is None else (first, prepared.draft)

    async def _smaller(self, case: Case, sent: Draft, stated: StatedLimit, attempt: int) -> Draft | None:
        """Learn from an overflow, and draft what may fit."""
        self._windows.saw_overflow(case.route.name, case.request.model, stated, sent.tokens, time.monotonic())
        return await self._drafter.retry(case, sent, stated, attempt=attempt)

    async def _send(self, incoming: Incoming, prepared: Prepared, draft: Draft) -> Answer:
        route, headers, body = prepared.route, prepared.route.headers, draft.body
        if prepared.case is None or body is prepared.case.request.body:
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

    async def _record(self, report: Report, size: int) -> None:
        self._log.info("request", **report.fields(size, time.perf_counter()))
        if report.case is not None and report.sent is not None and report.status == 200:
            model = report.case.request.model
            self._windows.saw_success(report.route.name, model, report.sent.tokens, time.monotonic())

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
