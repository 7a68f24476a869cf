"""The store shared by replicas: Redis (7 or newer) or Valkey, alone, with Sentinels or as a cluster.

redis-py's exceptions stop here. Nothing is retried, and an operation has one deadline.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from redis.exceptions import AskError, ClusterDownError, ReadOnlyError, ResponseError, TryAgainError

from proxy.stores.base import DEFAULT_TIMEOUT, EntryError, RefusedError, StoreError, check_size
from proxy.stores.redis_node import OUTAGE
from proxy.stores.redis_servers import Command, servers_of
from proxy.stores.redis_url import parse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

_COMPARE_AND_DELETE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


class RedisStore:
    """Connects at the first command, so a dead server at start is no error. An operation takes `timeout` at most."""

    def __init__(self, url: str, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        self._timeout = timeout
        try:
            self._servers = servers_of(parse(url), timeout)
        except (OSError, ValueError) as error:
            raise StoreError(f"store.url: {error}") from error

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        if not keys:
            return []
        async with self._deadline():
            groups = self._servers.together(keys)
            replies = await self._servers.run([Command(group[0], ("MGET", *group)) for group in groups])
            found: dict[str, object] = {}
            for group, reply in zip(groups, replies, strict=True):
                found.update(zip(group, await self._values(group, reply), strict=True))
        return [value if isinstance(value := found[key], bytes) else None for key in keys]

    async def put_new(self, key: str, value: bytes, ttl: float) -> bytes | None:
        check_size(value)  # NX together with GET needs Redis 7.0
        winner = await self._run(key, "SET", key, value, "NX", "GET", "PX", _milliseconds(ttl))
        return winner if isinstance(winner, bytes) else None

    async def put(self, key: str, value: bytes, ttl: float) -> None:
        check_size(value)
        await self._run(key, "SET", key, value, "PX", _milliseconds(ttl))

    async def touch(self, keys: Sequence[str], ttl: float) -> None:
        if not keys:
            return
        async with self._deadline():
            replies = await self._servers.run([Command(key, ("PEXPIRE", key, _milliseconds(ttl))) for key in keys])
            for reply in replies:
                _check(reply)

    async def acquire(self, key: str, token: str, ttl: float) -> bool:
        return await self._run(key, "SET", key, token, "NX", "PX", _milliseconds(ttl)) is not None

    async def release(self, key: str, token: str) -> None:
        await self._run(key, "EVAL", _COMPARE_AND_DELETE, 1, key, token)

    async def close(self) -> None:
        async with self._deadline():
            await self._servers.close()

    async def _run(self, key: str, *words: str | bytes | int) -> object:
        async with self._deadline():
            (reply,) = await self._servers.run([Command(key, words)])
            return _check(reply)

    async def _values(self, group: Sequence[str], reply: object) -> list[object]:
        """The values of one MGET. Of a slot that is being moved, some keys are here and some there: one by one then."""
        if isinstance(reply, TryAgainError):
            singly = await self._servers.run([Command(key, ("GET", key)) for key in group])
            return [_check(value) for value in singly]
        values = _check(reply)
        if not isinstance(values, list) or len(values) != len(group):
            raise ValueError("not a reply to MGET")
        return values

    @asynccontextmanager
    async def _deadline(self) -> AsyncIterator[None]:
        """Bound what happens inside, finding servers and waiting for a connection included, and map what goes wrong.

        Cancelling is safe: redis-py drops a connection whose reply was not read, so none can reach another caller.
        """
        try:
            async with asyncio.timeout(self._timeout):
                yield
        except UnicodeEncodeError as error:
            raise EntryError("a key or token is not valid Unicode") from error
        except (ClusterDownError, AskError) as error:
            await self._servers.reset()
            raise StoreError(f"Redis: {error}") from error
        except ResponseError as error:
            if str(error).startswith("WRONGTYPE"):
                raise EntryError("the key holds something that is not ours") from error
            if isinstance(error, ReadOnlyError):  # there was a failover, and this is the old master
                await self._servers.reset()
            raise RefusedError(f"Redis: {error}") from error
        except OUTAGE as error:
            await self._servers.reset()
            raise StoreError(f"Redis: {str(error) or f'no answer within {self._timeout} s'}") from error


def _check(reply: object) -> object:
    if isinstance(reply, Exception):
        raise reply
    return reply


def _milliseconds(ttl: float) -> int:
    return max(1, round(ttl * 1000))  # Redis refuses an expiry of 0
