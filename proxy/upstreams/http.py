"""Requests to upstreams and their responses as raw bytes."""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Self

from proxy.config.proxies import SETTING, Proxy, variables
from proxy.config.settings import Upstream
from proxy.errors import UpstreamConnectionError
from proxy.server.headers import Headers
from proxy.upstreams.litellm.translator import Translator
from proxy.upstreams.response import TruncatedError, UpstreamResponse
from proxy.upstreams.wire.heads import Body, head_begun, is_chunked, request_head
from proxy.upstreams.wire.pool import Pool

__all__ = ["RequestTemplate", "TruncatedError", "UpstreamClient", "UpstreamResponse"]

# Methods that are safe to repeat (RFC 9110, section 9.2.2).
_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})


class RequestTemplate(NamedTuple):
    """The header block of a POST up to the length of its body, reused for many bodies."""

    url: str
    pool: Pool
    head: bytes


class UpstreamClient:
    """Sends requests to upstreams over one connection pool each. It is an async context manager.

    It has no cookies, redirects, decompression or retries. Only the config or the environment can name a proxy, and
    clients cannot. A request is sent once, and its response goes to the client. A second try needs a reused connection
    that ended without a byte of a response. The request must also be idempotent and without a body, or not a byte of it
    may have been taken by the upstream's system. With `provider: litellm` chat requests and their responses are
    translated.
    """

    def __init__(
        self, upstreams: Mapping[str, Upstream] = MappingProxyType({}), env: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Create a client. upstreams: those to prepare before anything is sent, by name. env: may name proxies."""
        self._env = variables(env)
        self._pools: dict[Upstream, Pool] = {}
        self._upstreams = upstreams
        self._translator = Translator(self._relay)

    async def __aenter__(self) -> Self:
        """Load litellm if an upstream needs it."""
        await self._translator.load(self._upstreams)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        for pool in self._pools.values():
            await pool.close()

    async def send(
        self, upstream: Upstream, method: str, url: str, headers: Iterable[tuple[bytes, bytes]], body: Body
    ) -> UpstreamResponse:
        """Send a request and wait for the response's header block. url: absolute and already encoded.

        Raises UpstreamConnectionError, UpstreamTimeoutError, and the errors of reading `body`. Raises
        InvalidRequestError or UntranslatableError if it cannot be translated.
        """
        if upstream.provider == "litellm":
            return await self._translator.send(upstream, method, url, list(headers), body)
        return await self._relay(upstream, method, url, headers, body)

    def template(self, upstream: Upstream, url: str, headers: Headers) -> RequestTemplate | None:
        """Return a request that can be posted repeatedly with other bodies; None if it has to be translated.

        Raises InvalidRequestError.
        """
        if upstream.provider == "litellm":
            return None
        pool = self._pool(upstream)
        target = url.removeprefix(pool.base) or "/"
        return RequestTemplate(url, pool, head_begun("POST", target, pool.host, [*pool.headers, *headers], pool.origin))

    def post(self, template: RequestTemplate, body: bytes) -> Awaitable[UpstreamResponse]:
        """Send a request and wait for the response's header block. Raises the errors of `send`."""
        head = b"%bContent-Length: %d\r\n\r\n" % (template.head, len(body))
        return _ask_pool(template.pool, head, body, has_no_body=False, chunked=False, is_idempotent=False)

    async def _relay(
        self, upstream: Upstream, method: str, url: str, headers: Iterable[tuple[bytes, bytes]], body: Body
    ) -> UpstreamResponse:
        pool, headers = self._pool(upstream), [*headers]
        target = url.removeprefix(pool.base) or "/"
        head = request_head(method, target, pool.host, [*pool.headers, *headers], body, pool.origin)
        how = {"has_no_body": method == "HEAD", "chunked": is_chunked(headers, body)}
        return await _ask_pool(pool, head, body, **how, is_idempotent=method in _IDEMPOTENT)

    def keep_pools(self, upstreams: Iterable[Upstream]) -> None:
        """Forget the pools of all other upstreams.

        A pool in use stays until the next call, so that it can be closed.
        """
        remaining = {*upstreams}
        self._pools = {upstream: pool for upstream, pool in self._pools.items() if upstream in remaining or pool.in_use}

    def _pool(self, upstream: Upstream) -> Pool:
        pool = self._pools.get(upstream)
        if pool is None:
            pool = self._pools[upstream] = Pool(upstream, _proxy_of(upstream, self._env))
        return pool


def _proxy_of(upstream: Upstream, env: Mapping[str, str]) -> Proxy | None:
    try:
        return upstream.egress(env).proxy
    except ValueError as error:  # the upstream was not checked with this environment
        raise UpstreamConnectionError(f"{SETTING}: {error}.", "proxy") from None


async def _ask_pool(
    pool: Pool, head: bytes, body: Body, *, has_no_body: bool, chunked: bool, is_idempotent: bool
) -> UpstreamResponse:
    started = asyncio.get_running_loop().time()
    connection = pool.idle() or await pool.connect()
    answer = connection.begin(head, body, has_no_body=has_no_body, chunked=chunked, began=started)
    try:
        await answer.wait_for_head()
    except UpstreamConnectionError:
        is_harmless = not body and is_idempotent and connection.was_stale
        is_whole = body is None or isinstance(body, bytes)
        if not (is_harmless or (is_whole and answer.was_unread)):
            raise
        connection = await pool.connect()
        answer = await connection.ask(head, body, has_no_body=has_no_body, chunked=chunked, began=started)
    return UpstreamResponse(answer.reader.status, answer.reader.headers, answer)
