"""Requests other than conversations: relayed unchanged, with both bodies streamed."""

from collections.abc import Iterator
from contextlib import contextmanager

from policies.price import Tokens
from proxy import errors
from proxy.callers.api_head import ApiHead
from proxy.callers.api_paths import upstream_url
from proxy.callers.key_usage import KeyUsage, may_use, prompt_by_size, relayed_by_size
from proxy.dialects import other_answers
from proxy.pipeline.answers import UpstreamAnswer
from proxy.pipeline.receive import NO_TOKENS, Receiver
from proxy.pipeline.relay import relay
from proxy.pipeline.stages import PASSED_THROUGH, Attempt, Received
from proxy.pipeline.usage import UsageTap
from proxy.runtime.fail_open import FailOpen
from proxy.upstreams.http import UpstreamClient

# Prefixes of content types without text, or with files.
_BINARY = (b"multipart/", b"audio/", b"image/", b"video/", b"application/octet-stream")
_REDIRECTED = 300


class PassThrough:
    """Relays all other requests. One per process."""

    def __init__(self, receiver: Receiver, client: UpstreamClient, fail_open: FailOpen, key_usage: KeyUsage) -> None:
        """Create a relay."""
        self._receiver = receiver
        self._key_usage = key_usage
        self._client = client
        self._fail_open = fail_open

    async def answer(self, received: Received) -> None:
        """Relay the request and its response."""
        exchange, active, head = received.exchange, received.active, received.head
        self._receiver.admit(received)
        # A WebSocket handshake has this header (RFC 6455, section 4.1). The connection itself ends an Upgrade.
        matched = head.reading.found
        if matched and matched.dialect.has_sockets and head.header(b"sec-websocket-key"):
            raise errors.WebSocketError
        active.router.check_path(head, received.caller)
        route, limit = active.router.plain(head, received.caller), active.server.max_body_bytes
        received.attempt = attempt = Attempt(received, route, PASSED_THROUGH, PASSED_THROUGH, ready=exchange.began)
        length = head.header(b"content-length")
        await self._receiver.reserve_tokens(received, _estimate(head, length))
        headers = route.headers if length is None else [*route.headers, (b"content-length", length)]
        empty = length in (None, b"0") and head.header(b"transfer-encoding") is None
        body = await exchange.request.read(0) if empty else exchange.request.chunks(limit)
        url = upstream_url(route.upstream.base_url, head.target)
        attempt.count_try(url)
        response = await self._client.send(route.upstream, head.method, url, headers, body)
        attempt.responses.append(response)
        attempt.begin_response(response.status)
        with self._counting(received, answer := UpstreamAnswer(response)) as tap:
            await relay(answer, exchange, [], tap)

    @contextmanager
    def _counting(self, received: Received, answer: UpstreamAnswer) -> Iterator[UsageTap | None]:
        """Count the usage of an issued key by the response."""
        issued, head = received.caller.issued, received.head
        if issued is None or head.method != "POST" or answer.response.status >= _REDIRECTED:
            yield None
            return
        key_id, tap = issued.id, UsageTap(answer, other_answers)
        try:
            yield tap
        finally:
            self._fail_open.call(lambda: self._count(key_id, received, answer, tap), None)

    def _count(self, key_id: str, received: Received, answer: UpstreamAnswer, tap: UsageTap) -> None:
        """Count the usage that the response reports; else an estimate from the bytes of both bodies.

        Audio has no tokens.
        """
        exchange = received.exchange
        reported, of_answer = tap.usage(), answer.response.header(b"content-type") or b""
        used = reported.tokens if reported is not None else relayed_by_size(
            0 if _is_binary(received.head.header(b"content-type") or b"") else exchange.request.received,
            0 if _is_binary(of_answer) else exchange.sent,
            is_stream=answer.is_event_stream or b"ndjson" in of_answer,
        )  # fmt: skip
        self._key_usage.add(key_id, used, other_answers.model_in(tap.ends))


def _is_binary(content_type: bytes) -> bool:
    return content_type.lstrip().lower().startswith(_BINARY)


def _estimate(head: ApiHead, length: bytes | None) -> Tokens:
    """Return the estimated usage of a relayed request. Its model is not known."""
    if head.method != "POST" or _is_binary(head.header(b"content-type") or b""):
        return NO_TOKENS
    return may_use(prompt_by_size(int(length[:20]) if length is not None and length.isdigit() else 0), None)
