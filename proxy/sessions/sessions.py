"""Storage of conversations: records, lineages, lists of sessions, erasures."""

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

# The approximate bytes of a session in each of three caches.
_NOTED, _HERE, _NAME = 300, 1_000, 400
# The number of sessions erased concurrently: requests wait for that many operations of the store.
_AT_ONCE = 4
_ENROLL_EVERY = 60.0
_HEX = frozenset("0123456789abcdef")
_UNREADABLE = "the store could not list the sessions"


class _Here(NamedTuple):
    """A session as this process enrolled it, with its link at that time."""

    indexes: Sequence[str]
    link: bytes
    session: Session


class Erased(NamedTuple):
    """The result of an erasure.

    is_complete: False if some sessions are left and the erasure must be repeated.
    """

    targets: list[Target]
    is_complete: bool


class Sessions:
    """The facade of stored conversations. There is one instance per process.

    For requests: `records` finds and publishes records, `lineages` has the states of compactions, `epochs` has the keys
    of sessions, `manual` has requested compactions, and `add` lists a session. For people: sessions are listed, found
    and erased, each with its `history`. Listing is best effort.
    """

    def __init__(
        self,
        sealed: SealedStore,
        memory: Memory,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the facade. `clock` returns Unix seconds, `ticks` monotonic seconds."""
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
        """Sessions that this process has enrolled, including those that the store has lost."""
        self._by_label = Cache[tuple[str, str, str], bytes](memory, "places")

    def is_up(self) -> bool:
        """Return True if the store works and no breaker replaces it."""
        return self.epochs.is_up

    def read_only(self) -> "Sessions":
        """Return sessions for requests that are only explained: no record is stored, and no lifetime is extended."""
        store = ReadOnlyStore(self._store)
        read_only_sessions = Sessions(replace(self.sealed, store=store), Memory(0), self._clock)
        read_only_sessions.records, read_only_sessions.lineages = self.records.over(store), self.lineages
        read_only_sessions.epochs = self.epochs
        return read_only_sessions

    async def look_after(self) -> bool:
        """Learn requested compactions and erasures. Return True if there were new erasures."""
        await self.manual.look()
        return await self.epochs.look_after()

    async def history(self, session: Session, most: int) -> tuple[list[Record], Lineage | None]:
        """Return the stored records of a session, the newest first, and the lineage of its compactions."""
        if session.record is None:
            return [], None
        tag, digest = session.record
        newest = await self.records.get_by_digest(tag, digest)
        lineage = None if newest is None else await self.lineages.look_up(tag, newest)
        likely = [compaction.digest for compaction in lineage.history] if lineage else []
        return await self.records.history(tag, digest, most, likely=likely), lineage

    async def undone(self, name: bytes) -> tuple[list[Record], frozenset[str]]:
        """Return the stored records that were undone for the session with this name, and the digests of all."""
        link = await self.epochs.link(name)
        digests = await self.epochs.undone(link)
        stored = await self.records.look_up(hash_tag(link), sorted(digests)) if digests else {}
        return [record for record in stored.values() if record is not None], digests

    async def undo(self, name: bytes, session: Session) -> Record | None:
        """Undo the newest record of a session for all replicas. Return the record; None if none is left.

        Its parent is used from the next request on. Records that continue it are undone too. name: of the session
        (`Chain.session`).
        """
        link = await self.epochs.link(name)
        undone = await self.epochs.undone(link)
        records, lineage = await self.history(session, len(undone) + 1)
        record = next((each for each in records if each.digest not in undone), None)
        if record is None or session.record is None:
            return None
        undone_digests = [record.digest]
        digests = [compaction.digest for compaction in lineage.history] if lineage else []
        for digest, later in (await self.records.look_up(session.record[0], digests)).items():
            if later is not None and later.parent in undone_digests:
                undone_digests.append(digest)
        await self.epochs.undo(link, undone_digests)
        return record

    def is_news(self, chain: Chain, record: Record | None) -> bool:
        """Return True if the sent record is a reason to enroll its session, also again: a store may have lost it."""
        state, at = self._noted.get(chain.tag) or ("", 0.0)
        return state != _state(record) or abs(self._clock() - at) > _ENROLL_EVERY

    async def add(self, owner: SessionOwner, chain: Chain, label: str, model: str, record: Record | None) -> None:
        """Note that something of this session may be stored. `record` is its newest."""
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
        name_listed = self._store.enroll(named_at(owner, session.id), session.id, self._ttl)
        renewed = self.records.renew(chain, record)
        await asyncio.gather(self._shelf.put(entry_key(link), session), name_listed, renewed, *enrolled)

    def place(self, owner: SessionOwner, name: str, label: str) -> SessionPlace | None:
        """Return where the session with this label is stored; None if this process has not enrolled it.

        name: of the conversation, for people.
        """
        name_listed = self._by_label.get((owner.index, name, label))
        enrolled = None if name_listed is None else self._here.get(name_listed)
        return None if name_listed is None or enrolled is None else SessionPlace(name_listed, enrolled.link)

    async def newest(self, owner: SessionOwner, limit: int, before: Member | None = None) -> SessionsPage:
        """Return sessions of an owner's tenant after one of the page before. Raises StoreError.

        The last page includes the sessions that this process has enrolled and the store has lost, however many.
        """
        page = await self._page(owner.index, limit, before)
        if not page.is_last:
            return page
        lost = [entry for entry in await self._lost(owner) if before is None or entry[0] < before]
        return SessionsPage([*page.entries, *lost], is_last=True)

    async def note_failure(self, owner: SessionOwner, name: bytes) -> None:
        """Note that a request of this session has failed now."""
        await self._store.enroll(failed_at(owner), name.hex(), FAILED_FOR)

    async def newest_failures(self, owner: SessionOwner, limit: int, before: Member | None = None) -> SessionsPage:
        """Return the sessions that failed within a day, the last failure first, as `newest`. Raises StoreError."""
        return await self._page(failed_at(owner), limit, before)

    async def newest_records(self, owner: SessionOwner, limit: int) -> list[tuple[Session, list[Record]]]:
        """Return the last compacted sessions of an owner's tenant with their newest records. Raises StoreError.

        limit: of records in all. Few sessions have several each.
        """
        page = await self._page(compacted_at(owner), limit, None)
        sessions = [session for _, session in page.entries if session is not None and session.record is not None]
        each = ceil(limit / max(1, len(sessions)))
        histories = await asyncio.gather(*(self.history(session, each) for session in sessions))
        return [(session, records) for session, (records, _) in zip(sessions, histories, strict=True)]

    async def _page(self, index: str, limit: int, before: Member | None) -> SessionsPage:
        members = await self._store.members(index, limit + 1, before)
        if members is None:
            raise StoreError(_UNREADABLE)
        listed = [member for member in members[:limit] if is_session(member.name)]
        sessions = await self._look_up([bytes.fromhex(member.name) for member in listed])
        return SessionsPage([*zip(listed, sessions, strict=True)], len(members) <= limit)

    async def _lost(self, owner: SessionOwner) -> list[tuple[Member, Session]]:
        """Return the sessions that this process has enrolled and the store has lost, after all others."""
        names = [name for name, enrolled in self._here.items() if owner.index in enrolled.indexes]
        entries: list[tuple[Member, Session]] = []
        for group in (names[at : at + PAGE] for at in range(0, len(names), PAGE)):
            links = await self.epochs.links(group)
            stored = await self._shelf.look_up([entry_key(link) for link in links])
            lost = await self._remembered([name for name, each in zip(group, stored, strict=True) if each is None])
            entries += [(Member(0.0, name.hex()), session) for name, session in lost.items()]
        return sorted(entries, key=lambda entry: entry[0], reverse=True)

    async def of(self, owner: SessionOwner) -> list[Session]:
        """Return all sessions of an owner's tenant, the last used first. Raises StoreError."""
        targets: dict[Target, None] = {}
        async for page in self.every(owner):
            targets |= dict.fromkeys(page)
        return await self.look_up(targets)

    async def look_up(self, targets: Iterable[Target]) -> list[Session]:
        """Return the entries of these sessions, the last used first."""
        names = [target.first + (target.mark or b"") for target in targets]
        groups = (names[at : at + PAGE] for at in range(0, len(names), PAGE))
        sessions = [session for part in groups for session in await self._look_up(part) if session is not None]
        return sorted(sessions, key=lambda session: -session.seen)

    async def find(self, owner: SessionOwner, begin: str, label: str | None) -> Session | None:
        """Return the session with this label of the conversation with this beginning of its id. Raises StoreError.

        The beginning has eight digits or more. A label of None means the last used one. None if there is none.
        """
        if label is None:
            return await self._find_last_used(owner, begin)
        mark = mark_of(owner.labels, label)
        place = self.place(owner, begin, label)
        firsts = [] if place else await self._conversations(owner, begin)
        names = [place.name] if place else [first_link + mark for first_link in firsts]
        return next((session for session in await self._look_up(names) if session is not None), None)

    async def _find_last_used(self, owner: SessionOwner, begin: str) -> Session | None:
        """Return the last used session, without a label or in the newest page of those with one."""
        sessions: list[Session] = []
        for first_link in (await self._conversations(owner, begin))[:1]:
            names = await self._existing(owner, [first_link])
            async for marks in self.epochs.labels(first_link):
                names += await self._existing(owner, [first_link + mark for mark in marks])
                break
            sessions = await self.look_up(map(target_of, names))
        return sessions[0] if sessions else None

    async def was_erased(self, owner: SessionOwner, name: str, label: str) -> bool:
        """Return True if the session with this label is known to be erased. name: of the conversation, for people."""
        notes = [erased_at(owner, name, mark) for mark in (None, mark_of(owner.labels, label))]
        return await self._store.get_many(notes) != [None, None]

    def every(self, owner: SessionOwner) -> AsyncIterator[list[Target]]:
        """Yield all sessions of an owner's tenant, readable or not, page by page. Raises StoreError."""
        return self._pages(owner.index)

    async def find_targets(
        self, owner: SessionOwner, name: str, *, may_be_unlisted: bool = True
    ) -> AsyncIterator[list[Target]]:
        """Yield the sessions with this label, or the conversations with this beginning of their id, page by page.

        An id has eight digits or more. ID:LABEL is one session, and ID: the one without a label. With
        `may_be_unlisted`, a complete id need not be listed. Only operators may use that, since an id does not show its
        tenant. Raises StoreError.
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
            targets = [*map(target_of, await self._existing(owner, [first_link + mark for first_link in firsts]))]
        else:
            targets = [Target(first_link, None) for first_link in firsts]
        if targets:
            yield targets

    async def find_sessions(self, owner: SessionOwner, name: str) -> AsyncIterator[list[Target]]:
        """Yield the listed sessions with a name page by page, as `find_targets`. Raises StoreError."""
        async for page in self.find_targets(owner, name, may_be_unlisted=False):
            if sessions := [target for target in page if target.mark is not None]:
                yield sessions
            for first_link in (target.first for target in page if target.mark is None):
                yield [*map(target_of, await self._existing(owner, [first_link]))]
                async for marks in self.epochs.labels(first_link):
                    yield [*map(target_of, await self._existing(owner, [first_link + mark for mark in marks]))]

    async def has_conversation(self, owner: SessionOwner, first_link: bytes) -> bool:
        """Return True if a conversation is listed for the tenant. Raises StoreError."""
        return first_link in await self._conversations(owner, first_link.hex())

    async def erase(self, owner: SessionOwner, pages: AsyncIterable[Sequence[Target]]) -> Erased:
        """Remove everything that is stored of these targets. Return when every replica knows.

        Raises StoreError if the store could not list them, and nothing was erased.
        """
        erased: dict[Target, None] = {}
        is_complete = True
        try:
            async for page in pages:
                for group in (page[at : at + _AT_ONCE] for at in range(0, len(page), _AT_ONCE)):
                    done = await asyncio.gather(*(self._erase_target(owner, target) for target in group))
                    erased |= {target: None for target, is_done in zip(group, done, strict=True) if is_done}
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
        first_link, mark = target
        marks = [mark or b""]
        if mark is not None:
            done = await self.epochs.erase(first_link + mark)
        else:
            async for page in self.epochs.labels(first_link):
                marks += page
            done = await self.epochs.erase_every(first_link)
        if not done:
            return False
        moment = repr(self._clock()).encode()
        await self._store.put(erased_at(owner, name_of(first_link), mark), moment, self._ttl)
        for mark in marks:
            self._here.drop(first_link + mark)
            for index in _every_index(owner, target.id, mark):
                await self._store.enroll(index, (first_link + mark).hex(), 0)
        if target.mark is None or not await self._has_sessions(owner, first_link):
            await self._store.enroll(named_at(owner, target.id), target.id, 0)
        return True

    async def _has_sessions(self, owner: SessionOwner, first_link: bytes) -> bool:
        """Return True if a conversation has a listed session. Raises StoreError."""
        if await self._existing(owner, [first_link]):
            return True
        async for _ in self.epochs.labels(first_link):
            return True
        return False

    async def _conversations(self, owner: SessionOwner, begin: str) -> list[bytes]:
        """Return the first links of a tenant's conversations with this beginning of their id. Raises StoreError.

        They are looked up by key. Conversations that are not found may be of an earlier version, or lost by the store.
        Then the newest page of the tenant's sessions is searched, and the sessions that this process has enrolled.
        """
        if len(begin) < LEAST_OF_ID or not _HEX.issuperset(begin):
            return []
        names = await self._newest_names(named_at(owner, begin))
        if len(begin) >= NAME_DIGITS:
            names += await self._newest_names(named_before(owner, begin))
        if firsts := _firsts_of(names, begin):
            return firsts
        enrolled_names = [name for name, enrolled_names in self._here.items() if owner.index in enrolled_names.indexes]
        if firsts := _firsts_of(await self._remembered(_that_begin(enrolled_names, begin)), begin):
            return firsts
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
        """Yield the sessions in an index, and those that this process enrolled there. Raises StoreError."""
        remembered = {name for name, remembered in self._here.items() if index in remembered.indexes}
        async for page in pages_of(self._store, index):
            names = [bytes.fromhex(member.name) for member in page if is_session(member.name)]
            remembered.difference_update(names)
            if names:
                yield [*map(target_of, names)]
        if lost := await self._remembered([*remembered]):
            yield [*map(target_of, lost)]

    async def _remembered(self, names: Sequence[bytes]) -> dict[bytes, Session]:
        """Return those of these sessions that this process enrolled, and that no replica has erased since."""
        sessions: dict[bytes, Session] = {}
        for group in (names[at : at + PAGE] for at in range(0, len(names), PAGE)):
            enrolled = {name: enrolled for name in group if (enrolled := self._here.get(name))}
            erased = await self.epochs.were_erased([each.link for each in enrolled.values()])
            sessions |= {
                name: each.session
                for (name, each), is_erased in zip(enrolled.items(), erased, strict=True)
                if not is_erased
            }
        return sessions

    async def _look_up(self, names: Sequence[bytes]) -> list[Session | None]:
        """Return the entries of these sessions in their order."""
        links = await self.epochs.links(names)
        stored = await self._shelf.look_up([entry_key(link) for link in links])
        remembered = await self._remembered(
            [name for name, session in zip(names, stored, strict=True) if session is None]
        )
        entries = [(name, session or remembered.get(name)) for name, session in zip(names, stored, strict=True)]
        # Earlier versions also listed sessions with labels there. They are erased under that name.
        return [
            session if session is None or name[LINK_BYTES:] else structs.replace(session, label="")
            for name, session in entries
        ]


def _every_index(owner: SessionOwner, id_: str, mark: bytes) -> list[str]:
    """Return the indexes that may list a session."""
    return [*indexes_of(owner, mark), failed_at(owner), compacted_at(owner), named_before(owner, id_)]


def _firsts_of(names: Iterable[bytes], begin: str) -> list[bytes]:
    """Return the first links of these sessions that begin with this."""
    return [*dict.fromkeys(name[:LINK_BYTES] for name in _that_begin(names, begin))]


def _that_begin(names: Iterable[bytes], begin: str) -> list[bytes]:
    return [name for name in names if name.hex().startswith(begin)]


def _state(record: Record | None) -> str:
    return record.digest if record else ""
