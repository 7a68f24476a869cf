"""Find and publish records: an in-process memory before the shared store."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from policies.conversation.prefix_digests import Chain, hash_tag, set_apart
from policies.record.record import VERSION, Record
from proxy.memory import Cache, Memory
from proxy.sessions.epochs import Epochs, epoch_key
from proxy.sessions.shelf import Shelf
from proxy.sessions.stores.base import Store
from proxy.sessions.stores.sealing import SealedStore

# The size of a record in memory per byte in the store.
_GROWTH = 3
# The maximum number of cuts per round trip, newest first. A session has a handful of checkpoints, the newest near its
# end.
_LOOKED_UP = 512
# The maximum number of places to follow. Their records may have been erased.
_FOLLOWED = 4
# Version 0.2.0 stored records under the tag of the first link itself.
_PLACES = b"places"
# The maximum number of generations to follow back. A damaged record might continue itself.
_GENERATIONS = 100

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


class _Place(msgspec.Struct, frozen=True):
    """The location of a record: under the link of the session that it was made for, by that session's name."""

    session: bytes
    link: bytes


class _Known(NamedTuple):
    place: _Place
    record: Record


class RecordStore:
    """Records by the digest of the prefix they cover. They are immutable, so the first publisher wins.

    A record is stored with the session that it was made for, and is erased with it. A place under the digest leads to
    it from all sessions of the caller, so a new label costs no summary. A record is valid while the epoch of its
    session lasts. A record that was undone for a session, or that continues one, is a miss there.
    """

    def __init__(
        self, sealed: SealedStore, epochs: Epochs | None = None, memory: Cache[str, _Known] | None = None
    ) -> None:
        """Create records over a store."""
        self.sealed = sealed
        self._epochs = epochs or Epochs(sealed.store, sealed.ttl)
        self._places = Shelf(sealed, _Place)
        self._memory = Cache(Memory(), "records") if memory is None else memory

    def over(self, store: Store) -> RecordStore:
        """Return the same records over another store. The memory of this process is shared."""
        return RecordStore(replace(self.sealed, store=store), self._epochs, self._memory)

    def recall(self, chain: Chain, cuts: Iterable[int]) -> Record | None:
        """Return the record of the newest cut that this process knows of the same session, without store access."""
        for cut in sorted(cuts, reverse=True):
            entry = self._memory.get(place_key(chain, cut))
            if entry is not None and entry.place.link == chain.own_link and not _is_undone(chain, *entry):
                return entry.record
        return None

    async def find(self, chain: Chain, cuts: Iterable[int]) -> Record | None:
        """Return the record of the newest cut in the store. A record that cannot be trusted is a miss."""
        newest = sorted(cuts, reverse=True)[:_LOOKED_UP]
        if not newest:
            return None
        places = await self._places.look_up([place_key(chain, cut) for cut in newest])
        candidates = [(cut, place) for cut, place in zip(newest, places, strict=True) if place is not None][:_FOLLOWED]
        foreign = [place for _, place in candidates if place.link != chain.own_link]
        current = {*await self._epochs.links([place.session for place in foreign])} if foreign else set()
        for cut, place in candidates:
            if place.link != chain.own_link and place.link not in current:
                continue
            record = await self._read(chain, cut, place)
            if record is not None and not _is_undone(chain, place, record):
                return record
        return None

    async def _read(self, chain: Chain, cut: int, place: _Place) -> Record | None:
        entry = self._memory.get(place_key(chain, cut))
        if entry is not None and entry.place == place and not _is_undone(chain, *entry):
            return entry.record
        digest = chain.digests[cut]
        key = _key(hash_tag(place.link), digest.hex())
        (value,) = await self.sealed.store.get_many([key])
        record = self._open(key, value, digest)
        if record is not None:
            keys = [key, place_key(chain, cut), epoch_key(place.session)]
            await self.sealed.store.touch(keys, self.sealed.ttl)
            self._keep(chain, place, record, len(value or b""))
        return record

    async def find_newest(self, chain: Chain, cuts: Collection[int]) -> Record | None:
        """Return the record of the newest cut that this process knows, or else of the newest in the store."""
        return self.recall(chain, cuts) or await self.find(chain, cuts)

    async def publish(self, chain: Chain, record: Record) -> Record:
        """Store a record unless another replica was first. Return the valid one, so that all send the same bytes.

        A record that is not of this prefix is returned unchanged, and is not stored.
        """
        if not is_of(record, chain.digests, record.covered):
            return record
        place = _Place(chain.session, await self._epochs.stored_link(chain))
        key = _key(hash_tag(place.link), record.digest)
        encoded = _encode(record)
        earlier = await self.sealed.put(key, encoded, only_new=True)
        valid = self._open(key, earlier, chain.digests[record.covered])
        if valid is not None and _is_undone(chain, place, valid):  # made of a record that was undone meanwhile
            valid = None
        if earlier is not None and valid is None and not self.sealed.sealer.is_later(earlier):  # no version can read it
            await self.sealed.put(key, encoded)
        earlier_place = await self._places.put_new(place_key(chain, record.covered), place)
        if earlier_place != place:
            if (other := await self.find(chain, [record.covered])) is not None:
                return other
            await self._places.put(place_key(chain, record.covered), place)
        return self._keep(chain, place, valid or record, len(encoded))

    def _keep(self, chain: Chain, place: _Place, record: Record, size: int) -> Record:
        return self._memory.keep(place_key(chain, record.covered), _Known(place, record), _GROWTH * size).record

    def tag_of(self, chain: Chain, record: Record) -> str:
        """Return the hash tag of the record of a request, as far as this process knows."""
        entry = self._memory.get(place_key(chain, record.covered))
        return hash_tag(entry.place.link) if entry is not None else chain.tag

    async def renew(self, chain: Chain, record: Record | None) -> None:
        """Extend the lifetime of a session, with the record that was sent for it."""
        if record is None:
            await self._epochs.renew(chain)
        else:
            key = _key(self.tag_of(chain, record), record.digest)
            await self._epochs.renew(chain, key, place_key(chain, record.covered))

    async def get_by_digest(self, tag: str, digest: str) -> Record | None:
        """Return the record with this digest in a conversation with this tag; None if there is no readable one."""
        key = _key(tag, digest)
        (value,) = await self.sealed.store.get_many([key])
        return self._open(key, value, bytes.fromhex(digest))

    async def look_up(self, tag: str, digests: Sequence[str]) -> dict[str, Record | None]:
        """Return the records with these digests in a conversation with this tag. One round trip."""
        keys = {digest: _key(tag, digest) for digest in digests}
        values = await self.sealed.store.get_many([*keys.values()])
        return {
            digest: self._open(key, value, bytes.fromhex(digest))
            for (digest, key), value in zip(keys.items(), values, strict=True)
        }

    async def history(
        self, tag: str, digest: str, limit: int = _GENERATIONS, *, likely: Sequence[str] = ()
    ) -> list[Record]:
        """Return the record with this digest and those that it continues, the newest first, as far as stored.

        likely: known digests of these. They are read in one round trip.
        """
        stored = await self.look_up(tag, [digest, *likely[-limit:]])
        records: list[Record] = []
        following: str | None = digest
        while following is not None and len(records) < limit:
            record = stored[following] if following in stored else await self.get_by_digest(tag, following)
            if record is None:
                break
            records.append(record)
            following = record.parent
        return records

    async def recall_part(self, tag: str, content: bytes) -> str | None:
        """Return the summary that was made from exactly this content; None if there is none.

        It may be of the tag's conversation, or of another one that was not erased. Then this one gets a copy. The
        content includes the caller's scope.
        """
        key, note = _part_key(tag, content), _part_note(content)
        plain, other = await self.sealed.open_many([key, note])
        if plain is None and other is not None:
            key = _part_key(other.decode("utf-8", "replace"), content)
            (plain,) = await self.sealed.open_many([key])
            if plain is not None:
                await self.keep_part(tag, content, plain.decode("utf-8", "replace"))
        return None if plain is None else plain.decode("utf-8", "replace")

    async def keep_part(self, tag: str, content: bytes, summary: str) -> None:
        """Store a part of a bisection, so that a retry, a fork or another beginning does not pay again.

        It is stored with its conversation, and erased with it. The note contains only its location.
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


def _is_undone(chain: Chain, place: _Place, record: Record) -> bool:
    """Return True if a record was undone for the session of a chain, or may continue an undone one.

    This includes longer records of other sessions: the records between are unknown.
    """
    if not chain.barred:
        return False
    is_foreign = place.link != chain.own_link and record.covered > min(chain.barred)
    return is_foreign or continues_undone(chain, record)


def continues_undone(chain: Chain, record: Record) -> bool:
    """Return True if a record was undone for the session of a chain, or continues an undone one."""
    return record.digest in chain.undone or record.parent in chain.undone


def is_of(record: Record, digests: Sequence[bytes], cut: int) -> bool:
    """Return True if the record covers body[:cut]."""
    return cut < len(digests) and record.digest == digests[cut].hex()


def place_key(chain: Chain, cut: int) -> str:
    """Return the key of the place of body[:cut]'s record. Versions have separate keys."""
    return f"at:{{{hash_tag(set_apart(chain.digests[min(1, cut)], _PLACES))}}}:{VERSION}:{chain.digests[cut].hex()}"


def _key(tag: str, digest: str) -> str:
    return f"cp:{{{tag}}}:{VERSION}:{digest}"


def _part_key(tag: str, content: bytes) -> str:
    return f"part:{{{tag}}}:{hashlib.sha256(content).hexdigest()}"


def _part_note(content: bytes) -> str:
    return f"index:part:{hashlib.sha256(content).hexdigest()}"
