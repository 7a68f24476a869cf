"""Caches of the process with one bound of bytes for all together."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from threading import Lock
from typing import Generic, TypeVar, cast

import msgspec

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

DEFAULT_BYTES = 64 * 1024 * 1024
# The size of an entry without its key and its value.
_ENTRY = 200


class _CacheEntry(msgspec.Struct, gc=False):
    """A cached value. The garbage collector skips it: no value refers to its cache."""

    value: object
    size: int


class Memory:
    """Caches that share a bound. The least recently used entry of all is dropped first.

    The event loop and worker threads use it together, so each operation holds a lock.
    """

    def __init__(self, most: int = DEFAULT_BYTES) -> None:
        """Create a memory of at most so many bytes."""
        self._lock = Lock()
        self._most = most
        self._entries: OrderedDict[tuple[str, Hashable], _CacheEntry] = OrderedDict()
        self._held: dict[str, int] = {}
        self._all = 0

    @property
    def most(self) -> int:
        """Return the bound in bytes."""
        return self._most

    @most.setter
    def most(self, most: int) -> None:
        with self._lock:
            self._most = most
            self._evict()

    @property
    def held_bytes(self) -> Mapping[str, int]:
        """Return the approximate bytes by the name of a cache."""
        return self._held

    def get(self, key: tuple[str, Hashable]) -> object | None:
        """Return a value and count it as used now; None if it is unknown."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry.value

    def keep(self, key: tuple[str, Hashable], value: object, size: int) -> None:
        """Store a value of about so many bytes."""
        entry = _CacheEntry(value, size + _ENTRY)
        with self._lock:
            self._remove(key)
            self._entries[key] = entry
            self._count(key, entry.size)
            self._evict()

    def drop(self, key: tuple[str, Hashable]) -> None:
        """Forget a value."""
        with self._lock:
            self._remove(key)

    def items(self, name: str) -> list[tuple[Hashable, object]]:
        """Return the entries of a cache, the least recently used first."""
        with self._lock:
            return [(key, entry.value) for (cache, key), entry in self._entries.items() if cache == name]

    def _remove(self, key: tuple[str, Hashable]) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._count(key, -entry.size)

    def _count(self, key: tuple[str, Hashable], size: int) -> None:
        self._held[key[0]] += size
        self._all += size

    def _evict(self) -> None:
        while self._entries and self._all > self._most:
            self._remove(next(iter(self._entries)))

    def cache(self, name: str) -> None:
        """Add a cache with this name."""
        self._held.setdefault(name, 0)


class Cache(Generic[K, V]):
    """The entries of one kind in a memory, separated by `name`."""

    def __init__(self, memory: Memory, name: str) -> None:
        """Create a cache in a memory."""
        self._memory = memory
        self._name = name
        memory.cache(name)

    def get(self, key: K) -> V | None:
        """Return the value and count it as used now; None if it is unknown or was dropped."""
        return cast("V | None", self._memory.get((self._name, key)))

    def drop(self, key: K) -> None:
        """Forget the value, if it is known."""
        self._memory.drop((self._name, key))

    def items(self) -> list[tuple[K, V]]:
        """Return all entries, the least recently used first. It takes time in proportion to the whole memory."""
        return [(cast("K", key), cast("V", value)) for key, value in self._memory.items(self._name)]

    def keep(self, key: K, value: V, size: int) -> V:
        """Store a value of about so many bytes, including its key, and return it."""
        self._memory.keep((self._name, key), value, size)
        return value
