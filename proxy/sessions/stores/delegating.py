"""A store over another one: every operation of it passes through one place, where it is carried out or not."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from proxy.sessions.stores.base import Increment, Member, Store

T = TypeVar("T")

READING: Final = frozenset({"get_many", "items", "members", "newest", "enrolled"})
"""Operations that leave a store as it is."""


class DelegatingStore(ABC):
    """A `Store` that delegates; what may be done in its place is answered as an empty store with free locks would.

    Operations have the names that operators know: what a method does in two ways is two, since a full store refuses the
    one and not the other.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    @abstractmethod
    async def _delegate(self, name: str, operation: Callable[[], Awaitable[T]], otherwise: T) -> T:
        """The operation's result, or `otherwise` if it is not carried out."""

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        missed: list[bytes | None] = [None] * len(keys)
        if not keys:  # asks the store nothing, so says nothing about it
            return missed
        return await self._delegate("get_many", lambda: self._store.get_many(keys), missed)

    async def put(self, key: str, value: bytes, ttl: float, *, only_new: bool = False) -> bytes | None:
        name = "put_new" if only_new else "put"
        return await self._delegate(name, lambda: self._store.put(key, value, ttl, only_new=only_new), None)

    async def touch(self, keys: Sequence[str], ttl: float) -> None:
        if keys:
            await self._delegate("touch", lambda: self._store.touch(keys, ttl), None)

    async def items(
        self, key: str, added: Sequence[bytes] = (), *, limit: int = 0, ttl: float = 0
    ) -> list[bytes] | None:
        name = "append" if added else "items"
        return await self._delegate(name, lambda: self._store.items(key, added, limit=limit, ttl=ttl), None)

    async def members(self, index: str, limit: int | None = None, before: Member | None = None) -> list[Member] | None:
        name = "members" if limit is None else "newest"
        return await self._delegate(name, lambda: self._store.members(index, limit, before), None)

    async def enrolled(self, index: str, members: Sequence[str]) -> list[bool] | None:
        return await self._delegate("enrolled", lambda: self._store.enrolled(index, members), None)

    async def enroll(self, index: str, member: str, ttl: float) -> None:
        await self._delegate("enroll" if ttl else "strike", lambda: self._store.enroll(index, member, ttl), None)

    async def count(self, increments: Sequence[Increment]) -> list[dict[str, int] | None]:
        missed: list[dict[str, int] | None] = [None] * len(increments)
        if not increments:
            return missed
        return await self._delegate("count", lambda: self._store.count(increments), missed)

    async def lock(self, key: str, token: str, ttl: float) -> bool:
        return await self._delegate("acquire" if ttl else "release", lambda: self._store.lock(key, token, ttl), True)

    async def erase(self, tag: str, mark: bytes, ttl: float) -> bytes | None:
        return await self._delegate("erase", lambda: self._store.erase(tag, mark, ttl), None)


class ReadOnlyStore(DelegatingStore):
    """A store that is read and never written: what would write is as if it had been done."""

    async def _delegate(self, name: str, operation: Callable[[], Awaitable[T]], otherwise: T) -> T:
        return await operation() if name in READING else otherwise
