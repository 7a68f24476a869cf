"""Values of one type in a store, sealed there and remembered here, and lists of such values."""

import asyncio
from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

from proxy.memory import Cache, Memory
from proxy.sessions.stores.sealing import SealedStore

_T = TypeVar("_T")
# The size of a value in memory per byte in the store.
_GROWTH = 4


class Shelf(Generic[_T]):
    """A store's values under keys of one kind. Damaged values, or values sealed for another key, are misses."""

    def __init__(self, sealed: SealedStore, type_: type[_T], memory: Cache[str, _T] | None = None) -> None:
        """Create a shelf. `memory` is this process's cache."""
        self._sealed = sealed
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(type_).decode
        self._memory = Cache(Memory(0), "") if memory is None else memory

    def recall(self, key: str) -> _T | None:
        """Return a remembered value."""
        return self._memory.get(key)

    def keep(self, key: str, value: _T) -> _T:
        """Remember a value in this process only, and return it."""
        return self._memory.keep(key, value, _GROWTH * len(self._encode(value)))

    async def get(self, key: str) -> _T | None:
        """Return a value from memory or the store."""
        value = self._memory.get(key)
        if value is None:
            (value,) = await self.look_up([key])
        return value if value is None else self.keep(key, value)

    async def look_up(self, keys: Sequence[str]) -> list[_T | None]:
        """Return the stored values in one round trip, without remembering them."""
        return await self._sealed.read_many(keys, self._decode)

    async def put(self, key: str, value: _T) -> None:
        """Store a value over an existing one."""
        self.keep(key, value)
        await self._sealed.put(key, self._encode(value))

    async def put_new(self, key: str, value: _T) -> _T:
        """Store a value unless another replica was first, and return the valid one."""
        earlier = await self._sealed.put(key, self._encode(value), only_new=True)
        valid = self._sealed.sealer.read(key, earlier, self._decode)
        return value if valid is None else valid


class Lists(Generic[_T]):
    """A store's lists under keys of one kind, without a memory."""

    def __init__(self, sealed: SealedStore, decoder: msgspec.msgpack.Decoder[_T], most: int) -> None:
        """Create lists. Of more than `most` values the oldest are dropped."""
        self._sealed = sealed
        self._most = most
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = decoder.decode

    async def values(self, key: str) -> list[_T] | None:
        """Return a list in its order, without damaged values; None if the store does not respond."""
        items = await self._sealed.store.items(key)
        return None if items is None else await asyncio.to_thread(self._open_items, key, items)

    async def append(self, key: str, values: Sequence[_T]) -> bool:
        """Append values to a list. Return True if the store accepted them."""
        items = [self._sealed.sealer.seal(key, self._encode(value)) for value in values]
        return not items or await self._sealed.store.items(key, items, limit=self._most, ttl=self._sealed.ttl) == []

    def _open_items(self, key: str, items: Sequence[bytes]) -> list[_T]:
        values = (self._sealed.sealer.read(key, item, self._decode) for item in items)
        return [value for value in values if value is not None]
