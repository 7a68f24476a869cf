"""The store shared by replicas: one Redis (7 or newer) or Valkey server; redis-py's exceptions stop here.

redis-py's defaults turn an outage of Redis into ours: 10 retries and 5 s timeouts made one command take 58 s against
a frozen server, and its retry applied an INCR twice. So nothing is retried, and a command has one deadline.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException, RedisError, ResponseError

from proxy.stores.base import DEFAULT_TIMEOUT, EntryError, StoreError, check_size

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

MAX_CONNECTIONS = 32

# What the URL may say, beside where the server is and who we are; timeouts and retries are ours alone.
_URL_OPTIONS = frozenset({"connection_class", "host", "port", "db", "username", "password", "client_name"})
_URL_PREFIXES = ("ssl_",)
_URL_OVERRULED = frozenset(
    {"socket_timeout", "socket_connect_timeout", "retry_on_timeout", "max_connections", "timeout", "protocol"}
    | {"health_check_interval", "socket_keepalive", "decode_responses"}
)

_OUTAGE: Final = (
    RedisError,
    RedisClusterException,  # not a RedisError (BerriAI/litellm#36804 forgot it, and hung)
    OSError,  # and with it TimeoutError
    ValueError,  # a reply that is not RESP
    RuntimeError,  # uvloop, on a transport that is already closed
)

_COMPARE_AND_DELETE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


class RedisStore:
    """Connects at the first command, so a dead server at start is no error. An operation takes `timeout` at most."""

    def __init__(self, url: str, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        self._timeout = timeout
        self._client = Redis.from_pool(BlockingConnectionPool(**_connection_options(url, timeout)))

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        if not keys:
            return []
        async with self._deadline():
            values = await self._client.mget(list(keys))
        return [value if isinstance(value, bytes) else None for value in values]

    async def put_new(self, key: str, value: bytes, ttl: float) -> bytes | None:
        check_size(value)
        async with self._deadline():  # NX together with GET needs Redis 7.0
            winner = await self._client.set(key, value, nx=True, get=True, px=_milliseconds(ttl))
        return winner if isinstance(winner, bytes) else None

    async def put(self, key: str, value: bytes, ttl: float) -> None:
        check_size(value)
        async with self._deadline():
            await self._client.set(key, value, px=_milliseconds(ttl))

    async def touch(self, keys: Sequence[str], ttl: float) -> None:
        if not keys:
            return
        async with self._deadline(), self._client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.pexpire(key, _milliseconds(ttl))
            await pipeline.execute()

    async def acquire(self, key: str, token: str, ttl: float) -> bool:
        async with self._deadline():
            return bool(await self._client.set(key, token, nx=True, px=_milliseconds(ttl)))

    async def release(self, key: str, token: str) -> None:
        async with self._deadline():
            await self._client.eval(_COMPARE_AND_DELETE, 1, key, token)

    async def close(self) -> None:
        async with self._deadline():
            await self._client.aclose()

    @asynccontextmanager
    async def _deadline(self) -> AsyncIterator[None]:
        """Bound what happens inside, waiting for a connection included, and map what goes wrong.

        Cancelling is safe: redis-py drops a connection whose reply was not read, so none can reach another caller.
        """
        try:
            async with asyncio.timeout(self._timeout):
                yield
        except UnicodeEncodeError as error:
            raise EntryError("a key or token is not valid Unicode") from error
        except ResponseError as error:
            if str(error).startswith("WRONGTYPE"):
                raise EntryError("the key holds something that is not ours") from error
            raise StoreError(f"Redis: {error}") from error
        except _OUTAGE as error:
            raise StoreError(f"Redis: {str(error) or f'no answer within {self._timeout} s'}") from error


def _milliseconds(ttl: float) -> int:
    return max(1, round(ttl * 1000))  # Redis refuses an expiry of 0


def _connection_options(url: str, timeout: float) -> dict[str, Any]:
    """The pool's arguments: where and who from the URL, everything that bounds time from us.

    redis-py lets the query string win over arguments and passes unknown ones on, to fail at the first connection;
    so the URL is taken apart here (a URL that silently decided timeouts: BerriAI/litellm#35273).
    """
    try:
        given = dict(parse_url(url))
    except ValueError as error:
        raise StoreError(f"store.url: {error}") from error
    for name in given.keys() - _URL_OPTIONS - _URL_OVERRULED:
        if not name.startswith(_URL_PREFIXES):
            raise StoreError(f"store.url: unknown option '{name}'; leave it out")
    return {
        **{name: value for name, value in given.items() if name not in _URL_OVERRULED},
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "timeout": timeout,  # waiting for a free connection
        "max_connections": MAX_CONNECTIONS,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
        "retry_on_error": [],
        "health_check_interval": 0,
        "socket_keepalive": True,
        "protocol": 2,  # no HELLO on connecting, and no server pushes that change timeouts, as 3 has
        "driver_info": None,  # no CLIENT SETINFO on connecting, which proxies and ACLs refuse
        "decode_responses": False,
    }
