"""A store inside this process: for trying things out, and for tests; nothing survives a restart."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from proxy.stores.base import check_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class _Entry:
    value: bytes
    expires: float


class MemoryStore:
    """A dict, the least recently used entry first; bounded by bytes and by number of entries."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        max_bytes: int = 64_000_000,
        max_entries: int = 10_000,
    ) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._bytes = 0

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        return [self._get(key) for key in keys]

    async def put_new(self, key: str, value: bytes, ttl: float) -> bytes | None:
        check_size(value)
        winner = self._get(key)
        if winner is not None:
            return winner
        self._entries[key] = _Entry(value, self._clock() + ttl)
        self._bytes += len(key) + len(value)
        self._evict()
        return None

    async def put(self, key: str, value: bytes, ttl: float) -> None:
        check_size(value)
        if self._get(key) is not None:
            self._drop(key)
        await self.put_new(key, value, ttl)

    async def touch(self, keys: Sequence[str], ttl: float) -> None:
        expires = self._clock() + ttl
        for key in keys:
            value = self._get(key)
            if value is not None:
                self._entries[key] = _Entry(value, expires)

    async def acquire(self, key: str, token: str, ttl: float) -> bool:
        return await self.put_new(key, token.encode(), ttl) is None

    async def release(self, key: str, token: str) -> None:
        if self._get(key) == token.encode():
            self._drop(key)

    async def close(self) -> None:
        self._entries.clear()
        self._bytes = 0

    def _get(self, key: str) -> bytes | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.expires <= self._clock():
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return entry.value

    def _drop(self, key: str) -> None:
        self._bytes -= len(key) + len(self._entries.pop(key).value)

    def _evict(self) -> None:
        while self._bytes > self._max_bytes or len(self._entries) > self._max_entries:
            self._drop(next(iter(self._entries)))
