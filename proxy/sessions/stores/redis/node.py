"""One Redis server: a bounded pool of connections with explicit limits, and raw commands."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import Connection, RedisSSLContext, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException, RedisError

from proxy.sessions.stores.redis.url import Address, RedisUrl

MAX_CONNECTIONS = 32
# Closing starts at once. A lost TLS peer would be waited for.
_CLOSING_SECONDS = 0.01

OUTAGE: Final = (
    RedisError,
    RedisClusterException,  # not a RedisError (BerriAI/litellm#36804 forgot it, and hung)
    OSError,  # including TimeoutError
    ValueError,  # a reply that is not RESP
    RuntimeError,  # of uvloop, on a closed transport
)

Words = tuple[str | bytes | int, ...]


class Node:
    """One server, and its connections."""

    def __init__(self, address: Address, options: Mapping[str, Any]) -> None:
        """Create a pool for this address. It opens no connection yet."""
        self.address = address
        self.pool = BlockingConnectionPool(host=address[0], port=address[1], **options)
        self._redis = Redis.from_pool(self.pool)
        self._redis.response_callbacks.clear()  # return raw replies

    async def run(self, commands: Iterable[Words]) -> list[object]:
        """Send commands in one pipeline, and return the replies or errors in order."""
        async with self._redis.pipeline(transaction=False) as pipeline:
            for words in commands:
                pipeline.execute_command(*words)
            replies: list[object] = await pipeline.execute(raise_on_error=False)
            return replies

    async def ask(self, *words: str) -> object:
        """Return the reply to one command. Raises the server's error."""
        (reply,) = await self.run([words])
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def drop_idle(self) -> None:
        """Close idle connections without waiting for long.

        It runs in its own task: redis-py raises the exception of closing a connection, which may be a cancellation of
        another task.
        """
        dropping = asyncio.create_task(self.pool.disconnect(inuse_connections=False))
        dropping.add_done_callback(_forget)
        try:
            await asyncio.wait((dropping,), timeout=_CLOSING_SECONDS)
        finally:
            dropping.cancel()

    async def close(self) -> None:
        """Close all connections."""
        await self._redis.aclose()


class _TlsConnection(SSLConnection):
    """Connections with one TLS context. A context per connection would read the system's certificates for 20 ms."""

    def __init__(self, *, context: RedisSSLContext, **options: Any) -> None:
        super().__init__(**options)
        self.ssl_context = context


def _forget(task: asyncio.Task[None]) -> None:
    """Retrieve a task's exception, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


def _tls_context(options: Mapping[str, str | bool]) -> RedisSSLContext:
    """Read TLS files at once, so that a wrong path or key is an error at the start."""
    context_options: dict[str, Any] = {name.removeprefix("ssl_"): value for name, value in options.items()}
    context = RedisSSLContext(**{"cert_reqs": "required", "check_hostname": True, **context_options})
    context.get()
    return context


def connection_options(url: RedisUrl, timeout: float) -> dict[str, Any]:
    """Return a pool's arguments with every time limit explicit.

    redis-py's defaults turn an outage of Redis into one of the proxy: with 10 retries and 5 s timeouts, one command
    took 58 s against a frozen server.
    """
    tls = {} if url.tls is None else {"connection_class": _TlsConnection, "context": _tls_context(url.tls)}
    return {
        "connection_class": Connection,
        **tls,
        "db": url.db,
        "username": url.username,
        "password": url.password,
        "client_name": url.client_name,
        # With a timeout redis-py sends inside `asyncio.wait_for`, which loses cancellations
        # (proxy/runtime/deadlines.py). The store bounds a whole operation.
        "socket_timeout": None,
        "socket_connect_timeout": timeout,
        "timeout": timeout,  # to wait for a free connection
        "max_connections": MAX_CONNECTIONS,
        "retry": Retry(NoBackoff(), 0),  # its retry applied an INCR twice
        "retry_on_timeout": False,
        "retry_on_error": [],
        "health_check_interval": 0,  # a PING would wait as long as the command; see `Servers.reset`
        "socket_keepalive": True,
        "protocol": 2,  # no HELLO, and no server pushes that change timeouts or caches, as in 3
        "driver_info": None,  # no CLIENT SETINFO on connecting, which proxies and ACLs refuse
        "decode_responses": False,
    }
