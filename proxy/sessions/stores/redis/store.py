"""The store shared by replicas: Redis (7 or newer) or Valkey, as a single server, with Sentinels or as a cluster.

redis-py's exceptions are mapped here. Nothing is retried, and an operation has one deadline.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from redis.exceptions import AskError, ClusterDownError, ReadOnlyError, ResponseError, TryAgainError

from proxy.runtime.deadlines import within
from proxy.sessions.stores.base import (
    DEFAULT_TIMEOUT,
    MAX_MEMBERS,
    EntryError,
    Facts,
    Increment,
    Member,
    RefusedError,
    StoreError,
    check_size,
    check_sizes,
    tag_of,
    tombstone,
)
from proxy.sessions.stores.redis.node import OUTAGE, Words
from proxy.sessions.stores.redis.servers import KeyedCommand, servers_of
from proxy.sessions.stores.redis.url import parse

# The maximum number of members enrolled in the same microsecond as the last one of a page.
_TIES = 100
# Expired members removed with each enrolment. Removing all at once would block the server.
_EXPIRED = 100
_COMPARE_AND_DELETE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"
# A key under a hash tag is listed before it is stored, for as long as any of them lives, so that an erasure finds all.
# In every script that stores, ARGV[2] is the entry's lifetime.
_UNLESS_ERASED = """
if redis.call('exists', KEYS[2]) == 1 then return false end
redis.call('sadd', KEYS[3], KEYS[1])
redis.call('pexpire', KEYS[3], ARGV[2], 'NX')
redis.call('pexpire', KEYS[3], ARGV[2], 'GT')
"""
_PUT_NEW = _UNLESS_ERASED + "return redis.call('set', KEYS[1], ARGV[1], 'NX', 'GET', 'PX', ARGV[2])"
_PUT = _UNLESS_ERASED + "return redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2])"
_APPEND = (
    _UNLESS_ERASED
    + """
redis.call('rpush', KEYS[1], unpack(ARGV, 3))
redis.call('ltrim', KEYS[1], -ARGV[1], -1)
redis.call('pexpire', KEYS[1], ARGV[2])
"""
)
_ENROLL = """
local time = redis.call('time')
local now = time[1] + time[2] / 1000000
redis.call('zadd', KEYS[1], now + ARGV[2] / 1000, ARGV[1])
local expired = redis.call('zrange', KEYS[1], '-inf', now, 'BYSCORE', 'LIMIT', 0, ARGV[3])
if #expired > 0 then redis.call('zrem', KEYS[1], unpack(expired)) end
redis.call('pexpire', KEYS[1], ARGV[2])
"""
# Expired members may stay in an index until the next enrolment.
_MEMBERS = """
local time = redis.call('time')
local now = string.format('(%.6f', time[1] + time[2] / 1000000)
return redis.call('zrange', KEYS[1], ARGV[1], now, 'BYSCORE', 'REV', 'LIMIT', ARGV[2], ARGV[3], 'WITHSCORES')
"""
_ENROLLED = """
local time = redis.call('time')
local now = time[1] + time[2] / 1000000
local found = {}
for number, member in ipairs(ARGV) do
  local expires = redis.call('zscore', KEYS[1], member)
  found[number] = expires and tonumber(expires) > now and 1 or 0
end
return found
"""


class RedisStore:
    """A store that connects at the first command, so a dead server at the start is no error.

    An operation takes at most `timeout`. Every key on the server begins with the prefix.
    """

    def __init__(self, url: str, *, timeout: float = DEFAULT_TIMEOUT, prefix: str = "") -> None:
        """Create a store without connecting. Raises StoreError for an invalid URL."""
        self._timeout = timeout
        self._prefix = prefix
        try:
            self._servers = servers_of(parse(url), timeout)
        except (OSError, ValueError) as error:
            raise StoreError(f"store.url: {error}") from error

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of these keys."""
        if not keys:
            return []
        keys = [self._at(key) for key in keys]
        async with self._deadline():
            groups = self._servers.together(keys)
            replies = await self._servers.run([KeyedCommand(group[0], ("MGET", *group)) for group in groups])
            values: dict[str, object] = {}
            for group, reply in zip(groups, replies, strict=True):
                values.update(zip(group, await self._values(group, reply), strict=True))
        return [value if isinstance(value := values[key], bytes) else None for key in keys]

    async def put(self, key: str, value: bytes, ttl: float, *, only_new: bool = False) -> bytes | None:
        """Store a value."""
        check_size(value)
        key, milliseconds = self._at(key), _milliseconds(ttl)
        if not only_new:
            await self._store_unless_erased(key, _PUT, (value, milliseconds), [("SET", key, value, "PX", milliseconds)])
            return None
        words: Words = ("SET", key, value, "NX", "GET", "PX", milliseconds)  # NX together with GET needs Redis 7.0
        winner = await self._store_unless_erased(key, _PUT_NEW, (value, milliseconds), [words])
        return winner if isinstance(winner, bytes) else None

    async def touch(self, keys: Sequence[str], ttl: float) -> None:
        """Extend the lifetime of entries."""
        if not keys:
            return
        keys = [self._at(key) for key in keys]
        lists = dict.fromkeys(self._key_of_listing(tag) for key in keys if (tag := tag_of(key)) is not None)
        async with self._deadline():
            touched = [KeyedCommand(key, ("PEXPIRE", key, _milliseconds(ttl))) for key in keys]
            touched += [KeyedCommand(key, ("PEXPIRE", key, _milliseconds(ttl), "GT")) for key in lists]
            replies = await self._servers.run(touched)
            for reply in replies:
                _check(reply)

    async def items(self, key: str, added: Sequence[bytes] = (), *, limit: int = 0, ttl: float = 0) -> list[bytes]:
        """Return a list, or append to it."""
        key, milliseconds = self._at(key), _milliseconds(ttl)
        if not added:
            reply = await self._run(key, "LRANGE", key, 0, -1)
            return [item for item in reply if isinstance(item, bytes)] if isinstance(reply, list) else []
        check_sizes(added)
        push: list[Words] = [("RPUSH", key, *added), ("LTRIM", key, -limit, -1), ("PEXPIRE", key, milliseconds)]
        await self._store_unless_erased(key, _APPEND, (limit, milliseconds, *added), push)
        return []

    async def members(self, index: str, limit: int | None = None, before: Member | None = None) -> list[Member]:
        """Return the members of an index."""
        limit, index = limit or MAX_MEMBERS, self._at(index)
        top, size = ("+inf", limit) if before is None else (repr(before.expires), limit + _TIES)
        page: list[Member] = []
        start = 0
        while len(page) < limit:
            reply = await self._eval(_MEMBERS, (index,), top, start, size)
            parts = [part for part in reply if isinstance(part, bytes)] if isinstance(reply, list) else []
            read = [Member(float(score), _text(name)) for name, score in zip(parts[::2], parts[1::2], strict=True)]
            page += [member for member in read if before is None or member < before]
            start += size
            if len(read) < size:
                break
        return page[:limit]

    async def enrolled(self, index: str, members: Sequence[str]) -> list[bool]:
        """Return for each name if it is a member."""
        if not members:
            return []
        reply = await self._eval(_ENROLLED, (self._at(index),), *members)
        return [flag == 1 for flag in reply] if isinstance(reply, list) else []

    async def enroll(self, index: str, member: str, ttl: float) -> None:
        """Add a member, or remove it."""
        index = self._at(index)
        if ttl:
            await self._eval(_ENROLL, (index,), member, _milliseconds(ttl), _EXPIRED)
        else:
            await self._run(index, "ZREM", index, member)

    async def count(self, increments: Sequence[Increment]) -> list[dict[str, int] | None]:
        """Add to counters."""
        by_key = {self._at(increment.key): increment for increment in increments}
        groups = self._servers.together(list(by_key)) if by_key else []
        # In a cluster, each group separately: if one server is down, the others' counters are not added twice.
        counting = [self._count_together({key: by_key[key] for key in group}) for group in groups]
        counted: dict[str, dict[str, int]] = {}
        errors: list[BaseException] = []
        for outcome in await asyncio.gather(*counting, return_exceptions=True):
            if isinstance(outcome, BaseException):
                errors.append(outcome)
            else:
                counted.update(outcome)
        if errors and (not counted or not isinstance(errors[0], StoreError)):
            raise errors[0]
        return [counted.get(key) for key in by_key]

    async def _count_together(self, increments: Mapping[str, Increment]) -> dict[str, dict[str, int]]:
        """Return the counters of these entries by their keys on the server. One command may name all of them."""
        commands: list[KeyedCommand] = []
        ends: list[int] = []
        for key, (_, added, ttl) in increments.items():
            commands += [KeyedCommand(key, ("HINCRBY", key, name, number)) for name, number in added.items()]
            commands += [KeyedCommand(key, ("PEXPIRE", key, _milliseconds(ttl))), KeyedCommand(key, ("HGETALL", key))]
            ends.append(len(commands) - 1)
        async with self._deadline():
            replies = [_check(reply) for reply in await self._servers.run(commands)]
        return {key: _counters(replies[end]) for key, end in zip(increments, ends, strict=True)}

    async def lock(self, key: str, token: str, ttl: float) -> bool:
        """Take a lock, or release it."""
        key = self._at(key)
        if ttl:
            return await self._run(key, "SET", key, token, "NX", "PX", _milliseconds(ttl)) is not None
        return await self._eval(_COMPARE_AND_DELETE, (key,), token) == 1

    async def erase(self, tag: str, mark: bytes, ttl: float) -> bytes | None:
        """Remove the entries under a tag."""
        # From now on, entries under the tag are refused, and earlier ones are listed. In a slot that is being moved, a
        # command can have only one key.
        grave, keys_of_tag = self._at(tombstone(tag)), self._key_of_listing(tag)
        async with self._deadline():
            bury = ("SET", grave, mark, "NX", "GET", "PX", _milliseconds(ttl))
            words: list[Words] = [bury, ("PEXPIRE", grave, _milliseconds(ttl)), ("SMEMBERS", keys_of_tag), ("ROLE",)]
            first_mark, renewed, names, role = await self._servers.run([KeyedCommand(grave, each) for each in words])
            for reply in (first_mark, renewed, names):
                _check(reply)
            keys = [name for name in names if isinstance(name, bytes)] if isinstance(names, list) else []
            removals: list[Words] = [*(("DEL", name) for name in keys), ("DEL", keys_of_tag)]
            if _has_replicas(role):  # the replica that is promoted next must know
                removals.append(("WAIT", 1, _milliseconds(self._timeout / 3)))
            for reply in await self._servers.run([KeyedCommand(grave, each) for each in removals]):
                _check(reply)
        return first_mark if isinstance(first_mark, bytes) else mark

    async def facts(self) -> Facts:
        """Return the facts of one server; empty without permission. Counting by kind would read every key."""
        try:
            reply = await self._run("info", "INFO", "memory")
        except RefusedError:
            return Facts()
        lines = _text(reply).splitlines() if isinstance(reply, bytes) else []
        values = {name: value for name, _, value in (line.partition(":") for line in lines)}
        maximum = int(values.get("maxmemory", 0))
        return Facts(
            size=int(values.get("used_memory", 0)), most=maximum or None, eviction=values.get("maxmemory_policy")
        )

    async def close(self) -> None:
        """Close all connections."""
        async with self._deadline():
            await self._servers.close()

    def _at(self, key: str) -> str:
        """Return the key on the server."""
        return self._prefix + key

    def _key_of_listing(self, tag: str) -> str:
        """Return the key of the set of keys under a hash tag."""
        return self._at(f"keys:{{{tag}}}")

    async def _store_unless_erased(self, key: str, script: str, arguments: Words, commands: Sequence[Words]) -> object:
        """Store by these commands, and return the first one's reply.

        Under a hash tag the script stores, unless the tag was erased.
        """
        async with self._deadline():
            if (tag := tag_of(key)) is None:
                return (await self._in_turn(key, commands))[0]
            grave, listed = self._at(tombstone(tag)), self._key_of_listing(tag)
            atomic = ("EVAL", script, 3, key, grave, listed, *arguments)
            (reply,) = await self._servers.run([KeyedCommand(key, atomic)])
            if not isinstance(reply, TryAgainError):
                return _check(reply)
            # In a slot that is being moved, some keys are on this node and some on the other.
            lives = [("PEXPIRE", listed, arguments[1], which) for which in ("NX", "GT")]
            listing: list[Words] = [("SADD", listed, key), *lives]
            _, _, _, reply, *_, erased = await self._in_turn(key, [*listing, *commands, ("EXISTS", grave)])
            if erased:
                await self._servers.run([KeyedCommand(key, ("DEL", key))])
                return None
            return reply

    async def _in_turn(self, key: str, commands: Sequence[Words]) -> list[object]:
        """Send commands together, and return their replies. Raises the first error."""
        replies = await self._servers.run([KeyedCommand(key, words) for words in commands])
        return [_check(reply) for reply in replies]

    async def _eval(self, script: str, keys: Sequence[str], *arguments: str | bytes | int) -> object:
        return await self._run(keys[0], "EVAL", script, len(keys), *keys, *arguments)

    async def _run(self, key: str, *words: str | bytes | int) -> object:
        async with self._deadline():
            (reply,) = await self._servers.run([KeyedCommand(key, words)])
            return _check(reply)

    async def _values(self, group: Sequence[str], reply: object) -> list[object]:
        """Return the values of one MGET. In a slot that is being moved, read the keys one by one."""
        if isinstance(reply, TryAgainError):
            singly = await self._servers.run([KeyedCommand(key, ("GET", key)) for key in group])
            return [_check(value) for value in singly]
        values = _check(reply)
        if not isinstance(values, list) or len(values) != len(group):
            raise ValueError("not a reply to MGET")
        return values

    @asynccontextmanager
    async def _deadline(self) -> AsyncIterator[None]:
        """Bound the block's time, including discovery and waiting for a connection, and map exceptions.

        Cancelling is safe: redis-py drops a connection with an unread reply, so no reply reaches another caller.
        """
        try:
            async with within(self._timeout):
                yield
        except UnicodeEncodeError as error:
            raise EntryError("a key or token is not valid Unicode") from error
        except (ClusterDownError, AskError) as error:
            await self._servers.reset()
            raise StoreError(f"Redis: {error}") from error
        except ResponseError as error:
            if str(error).startswith("WRONGTYPE"):
                raise EntryError("the key contains a value of another program") from error
            if isinstance(error, ReadOnlyError):  # after a failover, this is the old master
                await self._servers.reset()
            raise RefusedError(f"Redis: {error}") from error
        except OUTAGE as error:
            await self._servers.reset()
            reason = str(error).rstrip(".") or f"no response within {self._timeout} s"
            raise StoreError(f"Redis: {reason}; check that it runs, and store.url") from error


def _has_replicas(role: object) -> bool:
    match role:
        case [b"master", int(), [_, *_]]:
            return True
        case _:  # no replicas, or no permission
            return False


def _counters(reply: object) -> dict[str, int]:
    parts = [part for part in reply if isinstance(part, bytes)] if isinstance(reply, list) else []
    return {_text(name): int(number) for name, number in zip(parts[::2], parts[1::2], strict=True)}


def _check(reply: object) -> object:
    if isinstance(reply, Exception):
        raise reply
    return reply


def _milliseconds(ttl: float) -> int:
    return max(1, round(ttl * 1000))  # Redis refuses an expiry of 0


def _text(value: bytes) -> str:
    """Return a stored text. Invalid bytes of other writers are replaced."""
    return value.decode("utf-8", "replace")
