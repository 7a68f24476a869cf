"""What is kept of conversations, for all that ask: records, lineages, lists of sessions, erasures."""

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from math import ceil
from typing import NamedTuple

from msgspec import structs

from policies.conversation.prefix_digests import (
    LINK_BYTES,
    NAME_DIGITS,
    Chain,
    hash_tag,
    is_session,
    mark_of,
    name_of,
)
from policies.record.lineage import Lineage
from policies.record.record import Record
from proxy.memory import Cache, Memory
from proxy.sessions.epochs import SETTLED, Epochs
from proxy.sessions.index import (
    FAILED_FOR,
    LEAST_OF_ID,
    Session,
    SessionOwner,
    SessionsPage,
    Target,
    compacted_at,
    entry_key,
    erased_at,
    failed_at,
    indexes_of,
    labelled_at,
    named_at,
    named_before,
    target_of,
)
from proxy.sessions.lineages import Lineages
from proxy.sessions.manual import ManualCompactions
from proxy.sessions.record_store import RecordStore
from proxy.sessions.shelf import Shelf
from proxy.sessions.stores.base import PAGE, Member, StoreError, pages_of
from proxy.sessions.stores.delegating import ReadOnlyStore
from proxy.sessions.stores.sealing import SealedStore
from proxy.telemetry.session_history import SessionPlace

# Bytes, about, that a session takes in each of three caches.
_NOTED, _HERE, _NAME = 300, 1_000, 400
# Sessions that are erased at the same time: requests wait behind that many operations of the store.
_AT_ONCE = 4
_ENROLL_EVERY = 60.0
_HEX = frozenset("0123456789abcdef")
_UNREADABLE = "the store could not tell which sessions there are"


class _Here(NamedTuple):
    """A session as this process enrolled it, under the link that it had."""

    indexes: Sequence[str]
    link: bytes
    session: Session


class Erased(NamedTuple):
    """The result of an erasure. is_complete: False if some sessions are left and the erasure must be repeated."""

    targets: list[Target]
    is_complete: bool


class Sessions:
    """The façade of what is kept of conversations; one per process.

    For requests: `records` finds and publishes records, `lineages` has how compactions went, `epochs` where a
    session is stored now, `manual` which compactions were asked for; `add` lists a session. For people: sessions are
    listed, found and erased, each with its `history`. Listing is best effort.
    """

    def __init__(
        self,
        sealed: SealedStore,
        memory: Memory,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` returns Unix seconds, `ticks` seconds that only go forward."""
        self.sealed = sealed
        self.epochs = Epochs(sealed.store, sealed.ttl, ticks)
        self.records = RecordStore(sealed, self.epochs, Cache(memory, "records"))
        self.lineages = Lineages(sealed, clock, memory)
        self.manual = ManualCompactions(sealed, self.epochs)
        self._store = sealed.store
        self._ttl = sealed.ttl
        self._shelf = Shelf(sealed, Session)
        self._clock = clock
        self._noted = Cache[str, tuple[str, float]](memory, "noted")
        self._here = Cache[bytes, _Here](memory, "sessions")
        """What this process has enrolled: it may remember what the store has lost."""
        self._by_label = Cache[tuple[str, str, str], bytes](memory, "places")

    def is_up(self) -> bool:
        """Return True if the store does all it is asked to, rather than a breaker in its place."""
        return self.epochs.is_up

    def read_only(self) -> "Sessions":
        """The same for requests that are only looked at: no record is stored, nor does one live longer for it."""
        store = ReadOnlyStore(self._store)
        looked_at = Sessions(replace(self.sealed, store=store), Memory(0), self._clock)
        looked_at.records, looked_at.lineages = self.records.over(store), self.lineages
        looked_at.epochs = self.epochs
        return looked_at

    async def look_after(self) -> bool:
        """Learn what was asked for elsewhere: compactions, and erasures; whether there were any of these that were not
        known here."""
        await self.manual.look()
        return await self.epochs.look_after()

    async def history(self, session: Session, most: int) -> tuple[list[Record], Lineage | None]:
        """The records of a session, the newest first, as far as the store has them; and how its compactions went."""
        if session.record is None:
            return [], None
        tag, digest = session.record
        newest = await self.records.lying_at(tag, digest)
        known = None if newest is None else await self.lineages.look_up(tag, newest)
        likely = [compaction.digest for compaction in known.history] if known else []
        return await self.records.history(tag, digest, most, likely=likely), known

    async def undone(self, name: bytes) -> tuple[list[Record], frozenset[str]]:
        """Return the records that were undone for the session of this name, as far as the store has them.

        With the digests of all."""
        link = await self.epochs.link(name)
        digests = await self.epochs.undone(link)
        stored = await self.records.look_up(hash_tag(link), sorted(digests)) if digests else {}
        return [record for record in stored.values() if record is not None], digests

    async def undo(self, name: bytes, session: Session) -> Record | None:
        """Undo the newest record of a session, for all replicas: its parent is in use from the next request on.

        So are the records undone that continue it. name: of the session (`Chain.session`). Return the record, None if
        none is left.
        """
        link = await self.epochs.link(name)
        undone = await self.epochs.undone(link)
        records, lineage = await self.history(session, len(undone) + 1)
        record = next((each for each in records if each.digest not in undone), None)
        if record is None or session.record is None:
            return None
        gone = [record.digest]
        made = [compaction.digest for compaction in lineage.history] if lineage else []
        for digest, later in (await self.records.look_up(session.record[0], made)).items():
            if later is not None and later.parent in gone:
                gone.append(digest)
        await self.epochs.undo(link, gone)
        return record

    def is_news(self, chain: Chain, record: Record | None) -> bool:
        """Whether the record that was sent is a reason to enroll its session (again): a store may have lost it."""
        state, at = self._noted.get(chain.tag) or ("", 0.0)
        return state != _state(record) or abs(self._clock() - at) > _ENROLL_EVERY

    async def add(self, owner: SessionOwner, chain: Chain, label: str, model: str, record: Record | None) -> None:
        """Note that something of this session may be stored; `record` is its newest."""
        self._noted.keep(chain.tag, (_state(record), self._clock()), _NOTED)
        chain = await self.epochs.place(chain, stores=True)
        session = Session(
            id=chain.first_link.hex(),
            label=label,
            model=model,
            seen=self._clock(),
            covered=record.covered if record else 0,
            generation=record.generation if record else 0,
            record=(self.records.tag_of(chain, record), record.digest) if record else None,
            left_out=record.left_out_counts if record else {},
        )
        link = chain.own_link
        indexes = indexes_of(owner, chain.mark)
        self._here.keep(chain.session, _Here(indexes, link, session), _HERE)
        self._by_label.keep((owner.index, chain.name, label), chain.session, _NAME)
        enrolled = [self._store.enroll(index, chain.session.hex(), self._ttl) for index in indexes]
        if record and (ttl := record.compacted + self._ttl - self._clock()) > 0:
            enrolled.append(self._store.enroll(compacted_at(owner), chain.session.hex(), ttl))
        named = self._store.enroll(named_at(owner, session.id), session.id, self._ttl)
        renewed = self.records.renew(chain, record)
        await asyncio.gather(self._shelf.put(entry_key(link), session), named, renewed, *enrolled)

    def place(self, owner: SessionOwner, name: str, label: str) -> SessionPlace | None:
        """Where the store has the session with this label of a conversation, by its name for people; None where this
        process has not enrolled it."""
        listed = self._by_label.get((owner.index, name, label))
        here = None if listed is None else self._here.get(listed)
        return None if listed is None or here is None else SessionPlace(listed, here.link)

    async def newest(self, owner: SessionOwner, limit: int, before: Member | None = None) -> SessionsPage:
        """So many of the sessions of a caller's tenant, behind one that a page before has told. Raises StoreError.

        The last page has those too that this process has enrolled and the store has lost, however many.
        """
        page = await self._page(owner.index, limit, before)
        if not page.is_last:
            return page
        lost = [entry for entry in await self._lost(owner) if before is None or entry[0] < before]
        return SessionsPage([*page.entries, *lost], is_last=True)

    async def note_failure(self, owner: SessionOwner, name: bytes) -> None:
        """A request of this session has failed just now."""
        await self._store.enroll(failed_at(owner), name.hex(), FAILED_FOR)

    async def newest_failures(self, owner: SessionOwner, limit: int, before: Member | None = None) -> SessionsPage:
        """So many of the sessions that have failed within a day, as `newest`: the last one to fail first. Raises
        StoreError."""
        return await self._page(failed_at(owner), limit, before)

    async def newest_records(self, owner: SessionOwner, most: int) -> list[tuple[Session, list[Record]]]:
        """Return the sessions of a caller's tenant that were compacted last, each with its newest records: of few
        sessions several each, so many together. Raises StoreError."""
        page = await self._page(compacted_at(owner), most, None)
        sessions = [session for _, session in page.entries if session is not None and session.record is not None]
        each = ceil(most / max(1, len(sessions)))
        made = await asyncio.gather(*(self.history(session, each) for session in sessions))
        return [(session, found) for session, (found, _) in zip(sessions, made, strict=True)]

    async def _page(self, index: str, limit: int, before: Member | None) -> SessionsPage:
        members = await self._store.members(index, limit + 1, before)
        if members is None:
            raise StoreError(_UNREADABLE)
        listed = [member for member in members[:limit] if is_session(member.name)]
        found = await self._look_up([bytes.fromhex(member.name) for member in listed])
        return SessionsPage([*zip(listed, found, strict=True)], len(members) <= limit)

    async def _lost(self, owner: SessionOwner) -> list[tuple[Member, Session]]:
        """Return what this process has enrolled and the store has lost, placed after all others."""
        names = [name for name, here in self._here.items() if owner.index in here.indexes]
        found: list[tuple[Member, Session]] = []
        for some in (names[at : at + PAGE] for at in range(0, len(names), PAGE)):
            links = await self.epochs.links(some)
            stored = await self._shelf.look_up([entry_key(link) for link in links])
            lost = await self._remembered([name for name, each in zip(some, stored, strict=True) if each is None])
            found += [(Member(0.0, name.hex()), session) for name, session in lost.items()]
        return sorted(found, key=lambda entry: entry[0], reverse=True)

    async def of(self, owner: SessionOwner) -> list[Session]:
        """Return all sessions of a caller's tenant, the last used first, read page by page. Raises StoreError."""
        targets: dict[Target, None] = {}
        async for page in self.every(owner):
            targets |= dict.fromkeys(page)
        return await self.look_up(targets)

    async def look_up(self, targets: Iterable[Target]) -> list[Session]:
        """Return what is known of these sessions, the last used first."""
        names = [target.first + (target.mark or b"") for target in targets]
        some = (names[at : at + PAGE] for at in range(0, len(names), PAGE))
        found = [session for part in some for session in await self._look_up(part) if session is not None]
        return sorted(found, key=lambda session: -session.seen)

    async def find(self, owner: SessionOwner, begin: str, label: str | None) -> Session | None:
        """Return the session with this label of the conversation whose id begins so, with eight digits or more; for
        None the one of them that was used last. None if there is none. Raises StoreError."""
        if label is None:
            return await self._find_last_used(owner, begin)
        mark = mark_of(owner.labels, label)
        place = self.place(owner, begin, label)
        firsts = [] if place else await self._conversations(owner, begin)
        names = [place.name] if place else [first + mark for first in firsts]
        return next((session for session in await self._look_up(names) if session is not None), None)

    async def _find_last_used(self, owner: SessionOwner, begin: str) -> Session | None:
        """Return the session without a label, or among the newest page of those with one, that was used last."""
        found: list[Session] = []
        for first in (await self._conversations(owner, begin))[:1]:
            names = await self._existing(owner, [first])
            async for marks in self.epochs.labels(first):
                names += await self._existing(owner, [first + mark for mark in marks])
                break
            found = await self.look_up(map(target_of, names))
        return found[0] if found else None

    async def was_erased(self, owner: SessionOwner, name: str, label: str) -> bool:
        """Whether the session with this label was erased, of a conversation by its name for people; as far as it is
        known."""
        notes = [erased_at(owner, name, mark) for mark in (None, mark_of(owner.labels, label))]
        return await self._store.get_many(notes) != [None, None]

    def every(self, owner: SessionOwner) -> AsyncIterator[list[Target]]:
        """Yield all sessions of a caller's tenant, readable or not, page by page. Raises StoreError."""
        return self._pages(owner.index)

    async def find_targets(
        self, owner: SessionOwner, name: str, *, may_be_unlisted: bool = True
    ) -> AsyncIterator[list[Target]]:
        """Yield page by page the sessions with this label, or the conversations whose id begins so.

        An id has eight digits or more. ID:LABEL is one session, and ID: the one without a label. A whole id needs not
        be listed if `may_be_unlisted`: for operators alone, since an id does not tell whose it is. Raises StoreError.
        """
        is_label = False
        async for page in self._pages(labelled_at(mark_of(owner.labels, name))):
            is_label = True
            yield page
        if is_label:
            return
        begin, colon, label = name.partition(":")
        if may_be_unlisted and is_session(name) and len(name) == 2 * LINK_BYTES:
            yield [Target(bytes.fromhex(name), None)]
            return
        firsts = await self._conversations(owner, begin)
        if colon:
            mark = mark_of(owner.labels, label)
            found = [*map(target_of, await self._existing(owner, [first + mark for first in firsts]))]
        else:
            found = [Target(first, None) for first in firsts]
        if found:
            yield found

    async def find_sessions(self, owner: SessionOwner, name: str) -> AsyncIterator[list[Target]]:
        """Yield page by page the listed sessions that a name has, as `find_targets`. Raises StoreError."""
        async for page in self.find_targets(owner, name, may_be_unlisted=False):
            if sessions := [target for target in page if target.mark is not None]:
                yield sessions
            for first in (target.first for target in page if target.mark is None):
                yield [*map(target_of, await self._existing(owner, [first]))]
                async for marks in self.epochs.labels(first):
                    yield [*map(target_of, await self._existing(owner, [first + mark for mark in marks]))]

    async def has_conversation(self, owner: SessionOwner, first: bytes) -> bool:
        """Return True if a conversation is listed for the tenant. Raises StoreError."""
        return first in await self._conversations(owner, first.hex())

    async def erase(self, owner: SessionOwner, pages: AsyncIterable[Sequence[Target]]) -> Erased:
        """Remove everything that is stored of these. Return once every replica knows.

        Raises StoreError if the store could not say which they are, and nothing was erased."""
        erased: dict[Target, None] = {}
        is_complete = True
        try:
            async for page in pages:
                for some in (page[at : at + _AT_ONCE] for at in range(0, len(page), _AT_ONCE)):
                    done = await asyncio.gather(*(self._erase_target(owner, target) for target in some))
                    erased |= {target: None for target, is_done in zip(some, done, strict=True) if is_done}
                    is_complete = is_complete and all(done)
                if not is_complete:
                    break
        except StoreError:
            if not erased:
                raise
            is_complete = False
        await asyncio.sleep(SETTLED if erased else 0)
        return Erased([*erased], is_complete)

    async def _erase_target(self, owner: SessionOwner, target: Target) -> bool:
        try:
            return await self._erase_and_strike(owner, target)
        except StoreError:
            return False

    async def _erase_and_strike(self, owner: SessionOwner, target: Target) -> bool:
        first, mark = target
        marks = [mark or b""]
        if mark is not None:
            done = await self.epochs.erase(first + mark)
        else:
            async for page in self.epochs.labels(first):
                marks += page
            done = await self.epochs.erase_every(first)
        if not done:
            return False
        moment = repr(self._clock()).encode()
        await self._store.put(erased_at(owner, name_of(first), mark), moment, self._ttl)
        for mark in marks:
            self._here.drop(first + mark)
            for index in _every_index(owner, target.id, mark):
                await self._store.enroll(index, (first + mark).hex(), 0)
        if target.mark is None or not await self._has_sessions(owner, first):
            await self._store.enroll(named_at(owner, target.id), target.id, 0)
        return True

    async def _has_sessions(self, owner: SessionOwner, first: bytes) -> bool:
        """Return True if a conversation has a session that is listed. Raises StoreError."""
        if await self._existing(owner, [first]):
            return True
        async for _ in self.epochs.labels(first):
            return True
        return False

    async def _conversations(self, owner: SessionOwner, begin: str) -> list[bytes]:
        """Return the first links of the conversations of a tenant whose id begins so. Raises StoreError.

        They are looked up by key. What is not found so may be of an earlier version, or lost by the store: then the
        newest page of the tenant's sessions is searched, and what this process has enrolled.
        """
        if len(begin) < LEAST_OF_ID or not _HEX.issuperset(begin):
            return []
        named = await self._newest_names(named_at(owner, begin))
        if len(begin) >= NAME_DIGITS:
            named += await self._newest_names(named_before(owner, begin))
        if found := _firsts_of(named, begin):
            return found
        here = [name for name, here in self._here.items() if owner.index in here.indexes]
        if found := _firsts_of(await self._remembered(_that_begin(here, begin)), begin):
            return found
        return _firsts_of(await self._newest_names(owner.index), begin)

    async def _existing(self, owner: SessionOwner, names: Sequence[bytes]) -> list[bytes]:
        """Return those of a tenant's sessions that have a readable entry or are listed. Raises StoreError."""
        sessions = await self._look_up(names)
        missing = [name for name, session in zip(names, sessions, strict=True) if session is None]
        listed = await self._store.enrolled(owner.index, [name.hex() for name in missing]) if missing else []
        if listed is None:
            raise StoreError(_UNREADABLE)
        gone = {name for name, is_listed in zip(missing, listed, strict=True) if not is_listed}
        return [name for name in names if name not in gone]

    async def _newest_names(self, index: str) -> list[bytes]:
        members = await self._store.members(index, PAGE)
        if members is None:
            raise StoreError(_UNREADABLE)
        return [bytes.fromhex(member.name) for member in members if is_session(member.name)]

    async def _pages(self, index: str) -> AsyncIterator[list[Target]]:
        """Yield the sessions that are listed in an index, and those that this process remembers to have enrolled there.

        Raises StoreError."""
        here = {name for name, here in self._here.items() if index in here.indexes}
        async for page in pages_of(self._store, index):
            names = [bytes.fromhex(member.name) for member in page if is_session(member.name)]
            here.difference_update(names)
            if names:
                yield [*map(target_of, names)]
        if lost := await self._remembered([*here]):
            yield [*map(target_of, lost)]

    async def _remembered(self, names: Sequence[bytes]) -> dict[bytes, Session]:
        """Return those of these sessions that were enrolled here, and that no other replica has erased since."""
        found: dict[bytes, Session] = {}
        for some in (names[at : at + PAGE] for at in range(0, len(names), PAGE)):
            here = {name: here for name in some if (here := self._here.get(name))}
            erased = await self.epochs.were_erased([each.link for each in here.values()])
            found |= {name: each.session for (name, each), gone in zip(here.items(), erased, strict=True) if not gone}
        return found

    async def _look_up(self, names: Sequence[bytes]) -> list[Session | None]:
        """What is known of these, in their order."""
        links = await self.epochs.links(names)
        stored = await self._shelf.look_up([entry_key(link) for link in links])
        here = await self._remembered([name for name, session in zip(names, stored, strict=True) if session is None])
        known = [(name, session or here.get(name)) for name, session in zip(names, stored, strict=True)]
        # Earlier versions put sessions with labels there too; they are erased as what they lie under.
        return [
            session if session is None or name[LINK_BYTES:] else structs.replace(session, label="")
            for name, session in known
        ]


def _every_index(owner: SessionOwner, id_: str, mark: bytes) -> list[str]:
    """Return the indexes that may list a session."""
    return [*indexes_of(owner, mark), failed_at(owner), compacted_at(owner), named_before(owner, id_)]


def _firsts_of(names: Iterable[bytes], begin: str) -> list[bytes]:
    """Return the first links of these sessions whose id begins so."""
    return [*dict.fromkeys(name[:LINK_BYTES] for name in _that_begin(names, begin))]


def _that_begin(names: Iterable[bytes], begin: str) -> list[bytes]:
    return [name for name in names if name.hex().startswith(begin)]


def _state(record: Record | None) -> str:
    return record.digest if record else ""
