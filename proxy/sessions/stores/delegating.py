"""A store over another one, with one method that decides if an operation is executed."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from proxy.sessions.stores.base import Increment, Member, Store

T = TypeVar("T")

READING: Final = frozenset({"get_many", "items", "members", "newest", "enrolled"})
"""Operations that do not change a store."""


class DelegatingStore(ABC):
    """A `Store` that delegates. An operation that is not executed returns the result of an empty store with free locks.

    Operations have the names that operators see. A method with two modes is two operations, since a full store refuses
    only one of them.
    """

    def __init__(self, store: Store) -> None:
        """Create a store over this one."""
        self._store = store

    @abstractmethod
    async def _delegate(self, name: str, operation: Callable[[], Awaitable[T]], otherwise: T) -> T:
        """Return the operation's result, or `otherwise` if it is not executed."""

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of these keys."""
        missed: list[bytes | None] = [None] * len(keys)
        if not keys:  # no store access, so no statement about the store
            return missed
        return await self._delegate("get_many", lambda: self._store.get_many(keys), missed)

    async def put(self, key: str, value: bytes, ttl: float, *, only_new: bool = False) -> bytes | None:
        """Store a value."""
        name = "put_new" if only_new else "put"
        return await self._delegate(name, lambda: self._store.put(key, value, ttl, only_new=only_new), None)

    async def touch(self, keys: Sequence[str], ttl: float) -> None:
        """Extend the lifetime of entries."""
        if keys:
            await self._delegate("touch", lambda: self._store.touch(keys, ttl), None)

    async def items(
        self, key: str, added: Sequence[bytes] = (), *, limit: int = 0, ttl: float = 0
    ) -> list[bytes] | None:
        """Return a list, or append to it."""
        name = "append" if added else "items"
        return await self._delegate(name, lambda: self._store.items(key, added, limit=limit, ttl=ttl), None)

    async def members(self, index: str, limit: int | None = None, before: Member | None = None) -> list[Member] | None:
        """Return the members of an index."""
        name = "members" if limit is None else "newest"
        return await self._delegate(name, lambda: self._store.members(index, limit, before), None)

    async def enrolled(self, index: str, members: Sequence[str]) -> list[bool] | None:
        """Return for each name if it is a member."""
        return await self._delegate("enrolled", lambda: self._store.enrolled(index, members), None)

    async def enroll(self, index: str, member: str, ttl: float) -> None:
        """Add a member, or remove it."""
        await self._delegate("enroll" if ttl else "strike", lambda: self._store.enroll(index, member, ttl), None)

    async def count(self, increments: Sequence[Increment]) -> list[dict[str, int] | None]:
        """Add to counters."""
        missed: list[dict[str, int] | None] = [None] * len(increments)
        if not increments:
            return missed
        return await self._delegate("count", lambda: self._store.count(increments), missed)

    async def lock(self, key: str, token: str, ttl: float) -> bool:
        """Take a lock, or release it."""
        return await self._delegate("acquire" if ttl else "release", lambda: self._store.lock(key, token, ttl), True)

    async def erase(self, tag: str, mark: bytes, ttl: float) -> bytes | None:
        """Remove the entries under a tag."""
        return await self._delegate("erase", lambda: self._store.erase(tag, mark, ttl), None)


class ReadOnlyStore(DelegatingStore):
    """A store that is read and never written. Writes return as if they were done."""

    async def _delegate(self, name: str, operation: Callable[[], Awaitable[T]], otherwise: T) -> T:
        return await operation() if name in READING else otherwise
