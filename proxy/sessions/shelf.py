"""Values of one type in a store: sealed there, remembered here; and lists of them."""

import asyncio
from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

from proxy.memory import Cache, Memory
from proxy.sessions.stores.sealing import SealedStore

_T = TypeVar("_T")
# What a value takes in memory, for each byte of it in the store.
_GROWTH = 4


class Shelf(Generic[_T]):
    """A store's values under keys of one kind. What was damaged or sealed for another place is a miss."""

    def __init__(self, sealed: SealedStore, type_: type[_T], memory: Cache[str, _T] | None = None) -> None:
        """`memory`: what this process remembers."""
        self._sealed = sealed
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(type_).decode
        self._memory = Cache(Memory(0), "") if memory is None else memory

    def recall(self, key: str) -> _T | None:
        return self._memory.get(key)

    def keep(self, key: str, value: _T) -> _T:
        """Remember a value here, and store it nowhere; returns it."""
        return self._memory.keep(key, value, _GROWTH * len(self._encode(value)))

    async def get(self, key: str) -> _T | None:
        """The value, from memory or the store."""
        value = self._memory.get(key)
        if value is None:
            (value,) = await self.look_up([key])
        return value if value is None else self.keep(key, value)

    async def look_up(self, keys: Sequence[str]) -> list[_T | None]:
        """What the store has, in one round trip; nothing is remembered."""
        return await self._sealed.read_many(keys, self._decode)

    async def put(self, key: str, value: _T) -> None:
        """Store a value over whatever was there."""
        self.keep(key, value)
        await self._sealed.put(key, self._encode(value))

    async def put_new(self, key: str, value: _T) -> _T:
        """Store a value unless another replica was first; returns the one that holds."""
        taken = await self._sealed.put(key, self._encode(value), only_new=True)
        holds = self._sealed.sealer.read(key, taken, self._decode)
        return value if holds is None else holds


class Lists(Generic[_T]):
    """A store's lists under keys of one kind; nothing is remembered here."""

    def __init__(self, sealed: SealedStore, decoder: msgspec.msgpack.Decoder[_T], most: int) -> None:
        """Of more than `most` values the oldest drop out."""
        self._sealed = sealed
        self._most = most
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = decoder.decode

    async def values(self, key: str) -> list[_T] | None:
        """Return a list in its order, without damaged values; None if the store does not answer."""
        items = await self._sealed.store.items(key)
        return None if items is None else await asyncio.to_thread(self._open_items, key, items)

    async def append(self, key: str, values: Sequence[_T]) -> bool:
        """Append values to a list. Return True if the store has taken them."""
        items = [self._sealed.sealer.seal(key, self._encode(value)) for value in values]
        return not items or await self._sealed.store.items(key, items, limit=self._most, ttl=self._sealed.ttl) == []

    def _open_items(self, key: str, items: Sequence[bytes]) -> list[_T]:
        values = (self._sealed.sealer.read(key, item, self._decode) for item in items)
        return [value for value in values if value is not None]
