"""A store in this process, for trials and tests. Nothing survives a restart."""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import nlargest

import msgspec

from proxy.sessions.stores.base import (
    MAX_MEMBERS,
    Facts,
    Increment,
    Member,
    add_counts,
    check_size,
    check_sizes,
    kind_of,
    pack_list,
    tag_of,
    tombstone,
    unpack_list,
)


@dataclass(frozen=True, slots=True)
class _StoredValue:
    value: bytes
    expires: float


class MemoryStore:
    """A dict, the least recently used entry first, bounded by bytes, entries and members."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        max_bytes: int = 64_000_000,
        max_entries: int = 10_000,
        max_members: int = 50_000,
    ) -> None:
        """Create an empty store. `clock` returns seconds."""
        self._clock = clock
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._max_members = max_members
        self._entries: OrderedDict[str, _StoredValue] = OrderedDict()
        self._bytes = 0
        self._members: OrderedDict[tuple[str, str], float] = OrderedDict()
        """The expiry of each member of each index, the first enrolled first."""
        self._indexes: dict[str, dict[str, float]] = {}

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of these keys."""
        return [self._get(key) for key in keys]

    async def put(self, key: str, value: bytes, ttl: float, *, only_new: bool = False) -> bytes | None:
        """Store a value."""
        check_size(value)
        existing = self._get(key)
        if only_new and existing is not None:
            return existing
        self._replace(key, value, ttl)
        return None

    async def touch(self, keys: Sequence[str], ttl: float) -> None:
        """Extend the lifetime of entries."""
        expires = self._clock() + ttl
        for key in keys:
            if (value := self._get(key)) is not None:
                self._entries[key] = _StoredValue(value, expires)

    async def items(self, key: str, added: Sequence[bytes] = (), *, limit: int = 0, ttl: float = 0) -> list[bytes]:
        """Return a list, or append to it."""
        existing = unpack_list(self._get(key))
        if not added:
            return existing
        check_sizes(added)
        self._replace(key, pack_list([*existing, *added][-limit:]), ttl)
        return []

    async def members(self, index: str, limit: int | None = None, before: Member | None = None) -> list[Member]:
        """Return the members of an index."""
        now = self._clock()
        live = (Member(expires, name) for name, expires in self._indexes.get(index, {}).items() if expires > now)
        return nlargest(limit or MAX_MEMBERS, (each for each in live if before is None or each < before))

    async def enrolled(self, index: str, members: Sequence[str]) -> list[bool]:
        """Return for each name if it is a member."""
        now, expires = self._clock(), self._indexes.get(index, {})
        return [expires.get(member, now) > now for member in members]

    async def enroll(self, index: str, member: str, ttl: float) -> None:
        """Add a member, or remove it."""
        now = self._clock()
        self._drop_member((index, member))
        if ttl:
            self._members[index, member] = now + ttl
            self._indexes.setdefault(index, {})[member] = now + ttl
        while self._members and (len(self._members) > self._max_members or next(iter(self._members.values())) <= now):
            self._drop_member(next(iter(self._members)))

    async def count(self, increments: Sequence[Increment]) -> list[dict[str, int] | None]:
        """Add to counters."""
        counted: list[dict[str, int] | None] = []
        for key, added, ttl in increments:
            counted.append(counts := add_counts(self._get(key), added))
            self._replace(key, msgspec.json.encode(counts), ttl)
        return counted

    async def lock(self, key: str, token: str, ttl: float) -> bool:
        """Take a lock, or release it."""
        if ttl:
            return await self.put(key, token.encode(), ttl, only_new=True) is None
        if is_held := self._get(key) == token.encode():
            self._drop(key)
        return is_held

    async def erase(self, tag: str, mark: bytes, ttl: float) -> bytes | None:
        """Remove the entries under a tag."""
        grave = tombstone(tag)
        mark = self._get(grave) or mark
        for key in [key for key in self._entries if tag_of(key) == tag]:
            self._drop(key)
        self._add(grave, mark, ttl)
        return mark

    async def facts(self) -> Facts:
        """Return the numbers and sizes of entries."""
        kinds = Counter(map(kind_of, self._entries))
        for index, members in self._indexes.items():
            kinds[kind_of(index)] += len(members)
        return Facts(entries=dict(kinds), size=self._bytes, most=self._max_bytes)

    async def close(self) -> None:
        """Remove all entries."""
        self._entries.clear()
        self._indexes.clear()
        self._members.clear()
        self._bytes = 0

    def _is_erased(self, key: str) -> bool:
        tag = tag_of(key)
        return tag is not None and self._get(tombstone(tag)) is not None

    def _replace(self, key: str, value: bytes, ttl: float) -> None:
        """Store a value over an existing one, unless its tag was erased."""
        if self._get(key) is not None:
            self._drop(key)
        if not self._is_erased(key):
            self._add(key, value, ttl)

    def _add(self, key: str, value: bytes, ttl: float) -> None:
        self._entries[key] = _StoredValue(value, self._clock() + ttl)
        self._bytes += len(key) + len(value)
        while self._bytes > self._max_bytes or len(self._entries) > self._max_entries:
            self._drop(next(iter(self._entries)))

    def _get(self, key: str) -> bytes | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.expires <= self._clock():
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return entry.value

    def _drop_member(self, key: tuple[str, str]) -> None:
        if self._members.pop(key, None) is not None:
            index, member = key
            del self._indexes[index][member]
            if not self._indexes[index]:
                del self._indexes[index]

    def _drop(self, key: str) -> None:
        self._bytes -= len(key) + len(self._entries.pop(key).value)
