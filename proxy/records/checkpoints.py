"""Finding and publishing records: an in-process memory in front of the shared store."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import msgspec

from policies.chain import hash_tag
from policies.record.record import VERSION, Record
from proxy.memory import Cache, Memory
from proxy.stores.base import Store
from proxy.stores.sealing import SealedStore

# What a record takes in memory, for each byte of it in the store.
_GROWTH = 3
# Cuts looked up in one round trip, newest first; a session has a handful of checkpoints, the newest near its end.
_LOOKED_UP = 512
# Followed back from a record: one that is damaged might lead back to itself.
_GENERATIONS = 100

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


class Checkpoints:
    """Records by the digest of the prefix they cover; immutable, so the first to publish is right for everybody."""

    def __init__(self, sealed: SealedStore, memory: Cache[str, Record] | None = None) -> None:
        self.sealed = sealed
        self._memory = Cache(Memory(), "records") if memory is None else memory

    def over(self, store: Store) -> Checkpoints:
        """The same checkpoints over another store; what this process remembers is shared."""
        return Checkpoints(replace(self.sealed, store=store), self._memory)

    def recall(self, digests: Sequence[bytes], cuts: Iterable[int]) -> Record | None:
        """The record of the newest cut that this process knows; no store access. `digests[c]` names body[:c]."""
        for cut in sorted(cuts, reverse=True):
            key = key_of(digests, cut)
            if (record := self._memory.get(key)) is not None and is_of(record, digests, cut):
                return record
        return None

    async def find(self, digests: Sequence[bytes], cuts: Iterable[int]) -> Record | None:
        """The record of the newest cut in the store; one round trip. A record that cannot be trusted is a miss."""
        newest = sorted(cuts, reverse=True)[:_LOOKED_UP]
        if not newest:
            return None
        keys = [key_of(digests, cut) for cut in newest]
        values = await self.sealed.store.get_many(keys)
        for cut, key, value in zip(newest, keys, values, strict=True):
            record = self._open(key, value, digests[cut])
            if record is not None:
                await self.sealed.store.touch([key], self.sealed.ttl)
                return self._memory.keep(key, record, _GROWTH * len(value or b""))
        return None

    async def find_newest(self, digests: Sequence[bytes], cuts: Collection[int]) -> Record | None:
        """The record of the newest cut that this process knows, else of the newest in the store."""
        return self.recall(digests, cuts) or await self.find(digests, cuts)

    async def publish(self, digests: Sequence[bytes], record: Record) -> Record:
        """Store a record unless another replica was first; returns the one that holds, so all send the same bytes.

        One that is not of this prefix is returned as it is, and kept nowhere.
        """
        cut = record.covered
        if not is_of(record, digests, cut):
            return record
        key = key_of(digests, cut)
        encoded = _encode(record)
        taken = await self.sealed.put(key, encoded, only_new=True)
        holds = self._open(key, taken, digests[cut])
        if taken is not None and holds is None and not self.sealed.sealer.is_later(taken):  # damaged: nobody can use it
            await self.sealed.put(key, encoded)
        return self._memory.keep(key, holds or record, _GROWTH * len(encoded))

    async def lying_at(self, tag: str, digest: str) -> Record | None:
        """The record of this digest in a conversation with this tag; None where the store has none that is readable."""
        key = _key(tag, digest)
        (value,) = await self.sealed.store.get_many([key])
        return self._open(key, value, bytes.fromhex(digest))

    async def history(
        self, tag: str, digest: str, most: int = _GENERATIONS, *, likely: Sequence[str] = ()
    ) -> list[Record]:
        """The record of this digest and those that it was made from, the newest first, as far as the store has them.

        likely: digests of these, as far as they are known: they are read in one round trip."""
        keys = {each: _key(tag, each) for each in (digest, *likely[-most:])}
        values = await self.sealed.store.get_many([*keys.values()])
        there = {
            each: self._open(keys[each], value, bytes.fromhex(each)) for each, value in zip(keys, values, strict=True)
        }
        found: list[Record] = []
        following: str | None = digest
        while following is not None and len(found) < most:
            record = there[following] if following in there else await self.lying_at(tag, following)
            if record is None:
                break
            found.append(record)
            following = record.parent
        return found

    async def recall_part(self, tag: str, content: bytes) -> str | None:
        """The summary that was made from exactly this content before: of the tag's conversation, or of another one,
        as long as that was not erased; then this one gets a copy. Content holds the caller's scope."""
        key, note = _part_key(tag, content), _part_note(content)
        plain, other = await self.sealed.open_many([key, note])
        if plain is None and other is not None:
            key = _part_key(other.decode("utf-8", "replace"), content)
            (plain,) = await self.sealed.open_many([key])
            if plain is not None:
                await self.keep_part(tag, content, plain.decode("utf-8", "replace"))
        return None if plain is None else plain.decode("utf-8", "replace")

    async def keep_part(self, tag: str, content: bytes, summary: str) -> None:
        """Keep one part of a bisection, so that a retry, a fork, or one that begins otherwise does not pay again.

        It lies with its conversation, and is erased with it; the note says no more than where.
        """
        key, note = _part_key(tag, content), _part_note(content)
        await self.sealed.put(key, summary.encode("utf-8", "replace"), only_new=True)
        await self.sealed.put(note, tag.encode())

    def _open(self, key: str, value: bytes | None, digest: bytes) -> Record | None:
        record = self.sealed.sealer.read(key, value, _decode)
        if record is None:
            return None
        if record.version == VERSION and record.digest == digest.hex():
            return record
        self.sealed.sealer.unreadable += 1
        return None


def is_of(record: Record, digests: Sequence[bytes], cut: int) -> bool:
    """Whether the record is one of body[:cut]."""
    return cut < len(digests) and record.digest == digests[cut].hex()


def key_of(digests: Sequence[bytes], cut: int) -> str:
    """The key of body[:cut]'s record. Versions do not get in each other's way."""
    return _key(hash_tag(digests[1]), digests[cut].hex())


def _key(tag: str, digest: str) -> str:
    return f"cp:{{{tag}}}:{VERSION}:{digest}"


def _part_key(tag: str, content: bytes) -> str:
    return f"part:{{{tag}}}:{hashlib.sha256(content).hexdigest()}"


def _part_note(content: bytes) -> str:
    return f"index:part:{hashlib.sha256(content).hexdigest()}"
