"""A store in memory that can be down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxy.sessions.stores import StoreError
from proxy.sessions.stores.memory import MemoryStore

if TYPE_CHECKING:
    from proxy.sessions.stores.base import Member


class Failing(MemoryStore):
    """Does nothing while it is `down`."""

    down = False

    async def put(self, key: str, value: bytes, ttl: float, *, only_new: bool = False) -> bytes | None:
        self._check()
        return await super().put(key, value, ttl, only_new=only_new)

    async def get_many(self, keys: object) -> list[bytes | None]:
        self._check()
        return await super().get_many(keys)  # type: ignore[arg-type]

    async def members(self, index: str, limit: int | None = None, before: Member | None = None) -> list[Member]:
        self._check()
        return await super().members(index, limit, before)

    def _check(self) -> None:
        if self.down:
            raise StoreError("down")
