"""One Redis server: a bounded pool of connections with every limit said out loud, and commands sent as they are."""

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
# Closing begins at once; a TLS peer that is gone would be waited for.
_CLOSING_SECONDS = 0.01

OUTAGE: Final = (
    RedisError,
    RedisClusterException,  # not a RedisError (BerriAI/litellm#36804 forgot it, and hung)
    OSError,  # and with it TimeoutError
    ValueError,  # a reply that is not RESP
    RuntimeError,  # uvloop, on a transport that is already closed
)

Words = tuple[str | bytes | int, ...]


class Node:
    """One server, and the connections to it."""

    def __init__(self, address: Address, options: Mapping[str, Any]) -> None:
        self.address = address
        self.pool = BlockingConnectionPool(host=address[0], port=address[1], **options)
        self._redis = Redis.from_pool(self.pool)
        self._redis.response_callbacks.clear()  # replies as they come

    async def run(self, commands: Iterable[Words]) -> list[object]:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for words in commands:
                pipeline.execute_command(*words)
            replies: list[object] = await pipeline.execute(raise_on_error=False)
            return replies

    async def ask(self, *words: str) -> object:
        """The reply to one command; a refusal is raised."""
        (reply,) = await self.run([words])
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def drop_idle(self) -> None:
        """Without waiting for long. In a task of its own: redis-py raises what closing a connection ended with, and
        that may be a cancellation which is meant for nobody."""
        dropping = asyncio.create_task(self.pool.disconnect(inuse_connections=False))
        dropping.add_done_callback(_forget)
        try:
            await asyncio.wait((dropping,), timeout=_CLOSING_SECONDS)
        finally:
            dropping.cancel()

    async def close(self) -> None:
        await self._redis.aclose()


class _TlsConnection(SSLConnection):
    """Connections with one TLS context: each of its own would read the system's certificates for 20 ms."""

    def __init__(self, *, context: RedisSSLContext, **options: Any) -> None:
        super().__init__(**options)
        self.ssl_context = context


def _forget(task: asyncio.Task[None]) -> None:
    """Take note of how it ended, which is no concern of anybody's."""
    if not task.cancelled():
        task.exception()


def _tls_context(options: Mapping[str, str | bool]) -> RedisSSLContext:
    """Read at once, so that a wrong path or key is an error at start."""
    named: dict[str, Any] = {name.removeprefix("ssl_"): value for name, value in options.items()}
    context = RedisSSLContext(**{"cert_reqs": "required", "check_hostname": True, **named})
    context.get()
    return context


def connection_options(url: RedisUrl, timeout: float) -> dict[str, Any]:
    """A pool's arguments, every one that bounds time said out loud: redis-py's defaults turn an outage of Redis into
    ours, with 10 retries and 5 s timeouts that made one command take 58 s against a frozen server."""
    tls = {} if url.tls is None else {"connection_class": _TlsConnection, "context": _tls_context(url.tls)}
    return {
        "connection_class": Connection,
        **tls,
        "db": url.db,
        "username": url.username,
        "password": url.password,
        "client_name": url.client_name,
        # With a timeout redis-py sends inside `asyncio.wait_for`, which loses cancellations
        # (proxy/runtime/deadlines.py); the store bounds a whole operation.
        "socket_timeout": None,
        "socket_connect_timeout": timeout,
        "timeout": timeout,  # waiting for a free connection
        "max_connections": MAX_CONNECTIONS,
        "retry": Retry(NoBackoff(), 0),  # its retry applied an INCR twice
        "retry_on_timeout": False,
        "retry_on_error": [],
        "health_check_interval": 0,  # a PING would wait as long as the command; see `Servers.reset`
        "socket_keepalive": True,
        "protocol": 2,  # no HELLO, and no pushes from the server that change timeouts or caches, as 3 has
        "driver_info": None,  # no CLIENT SETINFO on connecting, which proxies and ACLs refuse
        "decode_responses": False,
    }
