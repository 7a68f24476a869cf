"""What is kept of conversations, for all that ask: records, lineages, lists of sessions, erasures."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

from msgspec import structs

from policies.chain import LINK_BYTES, Chain, is_session, mark_of, name_of
from policies.record.lineage import Lineage
from policies.record.record import Record
from proxy.memory import Cache, Memory
from proxy.observing.session_trails import SessionPlace
from proxy.records.checkpoints import Checkpoints
from proxy.records.erasures import SETTLED, Erasures
from proxy.records.index import (
    FAILED_FOR,
    Session,
    SessionOwner,
    SessionsPage,
    Target,
    entry_key,
    erased_at,
    failed_at,
    indexes_of,
    labelled_at,
    named_at,
    target_of,
)
from proxy.records.lineages import Lineages
from proxy.records.manual import ManualCompactions
from proxy.records.shelf import Shelf
from proxy.records.siblings import SharedCheckpoints
from proxy.stores.base import Member, Store, StoreError, names_in
from proxy.stores.breaker import CircuitBreaker
from proxy.stores.delegating import ReadOnlyStore
from proxy.stores.memory import MemoryStore
from proxy.stores.sealing import SealedStore

# Bytes, about, that a session takes in each of three caches.
_NOTED, _HERE, _NAME = 300, 1_000, 400
_AT_ONCE = 50
# Of sessions that are looked up together.
_TOGETHER = 500
_ENROLL_EVERY = 60.0
# Fewer digits of an id may be a label.
_LEAST_OF_ID = 8
_HEX = frozenset("0123456789abcdef")
_T = TypeVar("_T")


class _Here(NamedTuple):
    """A session as this process enrolled it, under the link that it had."""

    indexes: Sequence[str]
    link: bytes
    session: Session


class Sessions:
    """The façade of what is kept of conversations; one per process.

    For requests: `checkpoints` finds and publishes records, `siblings` finds those of other labels, `lineages` has how
    compactions went, `erasures` where a session lies now, `manual` which compactions were asked for; `add` lists a
    session. For people: sessions are listed, found and erased, each with its `history`. Listing is best effort.
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
        self.checkpoints = Checkpoints(sealed, Cache(memory, "records"))
        self.erasures = Erasures(sealed.store, sealed.ttl, ticks)
        self.siblings = SharedCheckpoints(self.checkpoints, self.erasures)
        self.lineages = Lineages(sealed, clock, memory)
        self.is_up = partial(_is_up, sealed.store)
        """Whether the store does all it is asked to, rather than that a guard answers in its place."""

        self.manual = ManualCompactions(sealed, self.erasures)
        self._store = sealed.store
        self._ttl = sealed.ttl
        self._shelf = Shelf(sealed, Session)
        self._clock = clock
        self._noted = Cache[str, tuple[str, float]](memory, "noted")
        self._here = Cache[bytes, _Here](memory, "sessions")
        """What this process has enrolled: it may remember what the store has lost."""
        self._by_label = Cache[tuple[str, str, str], bytes](memory, "places")

    def read_only(self) -> "Sessions":
        """The same for requests that are only looked at: no record is stored, nor does one live longer for it."""
        store = ReadOnlyStore(self._store)
        looked_at = Sessions(replace(self.sealed, store=store), Memory(0), self._clock)
        looked_at.checkpoints, looked_at.lineages = self.checkpoints.over(store), self.lineages
        looked_at.erasures, looked_at.siblings = self.erasures, SharedCheckpoints(looked_at.checkpoints, self.erasures)
        looked_at.is_up = self.is_up
        return looked_at

    def without_store(self) -> "Sessions":
        """Sessions as if nothing had been stored."""
        return Sessions(replace(self.sealed, store=MemoryStore()), Memory(), self._clock)

    async def look_after(self) -> bool:
        """Learn what was asked for elsewhere: compactions, and erasures; whether there were any of these that were not
        known here."""
        await self.manual.look()
        return await self.erasures.look_after()

    async def history(self, session: Session, most: int) -> tuple[list[Record], Lineage | None]:
        """The records of a session, the newest first, as far as the store has them; and how its compactions went."""
        if session.record is None:
            return [], None
        tag, digest = session.record
        newest = await self.checkpoints.lying_at(tag, digest)
        known = None if newest is None else await self.lineages.look_up(tag, newest)
        likely = [compaction.digest for compaction in known.history] if known else []
        return await self.checkpoints.history(tag, digest, most, likely=likely), known

    def is_news(self, chain: Chain, record: Record | None) -> bool:
        """Whether the record that was sent is a reason to enroll its session (again): a store may have lost it."""
        state, at = self._noted.get(chain.tag) or ("", 0.0)
        borrowed = record is not None and self.siblings.is_borrowed(chain, record)
        return borrowed or state != _state(record) or abs(self._clock() - at) > _ENROLL_EVERY

    async def add(self, owner: SessionOwner, chain: Chain, label: str, model: str, record: Record | None) -> None:
        """Note that something of this session may be stored; `record` is its newest."""
        again = self._noted.get(chain.tag) is not None
        self._noted.keep(chain.tag, (_state(record), self._clock()), _NOTED)
        session = Session(
            id=chain.first_link.hex(),
            label=label,
            model=model,
            seen=self._clock(),
            covered=record.covered if record else 0,
            generation=record.generation if record else 0,
            record=(chain.tag, record.digest) if record else None,
        )
        link = chain.own_link
        indexes = indexes_of(owner, chain.first_link, chain.mark)
        self._here.keep(chain.session, _Here(indexes, link, session), _HERE)
        self._by_label.keep((owner.index, chain.name, label), chain.session, _NAME)
        await self.erasures.list_again(chain.session)
        enrolled = (self._store.enroll(index, chain.session.hex(), self._ttl) for index in indexes)
        await asyncio.gather(self._shelf.put(entry_key(link), session), *enrolled)
        if record:
            await self.siblings.keep(chain, record, again=again)

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

    async def _page(self, index: str, limit: int, before: Member | None) -> SessionsPage:
        members = await self._store.members(index, limit + 1, before)
        if members is None:
            raise StoreError("the store could not tell which sessions there are")
        listed = [member for member in members[:limit] if is_session(member.name)]
        found = await self._look_up([bytes.fromhex(member.name) for member in listed])
        return SessionsPage([*zip(listed, found, strict=True)], len(members) <= limit)

    async def _lost(self, owner: SessionOwner) -> list[tuple[Member, Session]]:
        """What this process has enrolled, and the store has no more; placed behind all others."""
        here = [(name, each) for name, each in self._here.items() if owner.index in each.indexes]
        there = await self._shelf.look_up([entry_key(each.link) for _, each in here])
        lost = [(name, each) for (name, each), stored in zip(here, there, strict=True) if stored is None]
        links = await self.erasures.links([name for name, _ in lost])
        found = [
            (Member(0.0, name.hex()), each.session)
            for (name, each), link in zip(lost, links, strict=True)
            if each.link == link
        ]
        return sorted(found, key=lambda entry: entry[0], reverse=True)

    async def of(self, owner: SessionOwner) -> list[Session]:
        """The sessions of a caller's tenant, the last used first. Raises StoreError."""
        names = await self._names(owner.index)
        some = (names[at : at + _TOGETHER] for at in range(0, len(names), _TOGETHER))
        found = [session for part in some for session in await self._look_up(part) if session is not None]
        return sorted(found, key=lambda session: -session.seen)

    async def find(self, owner: SessionOwner, begin: str, label: str) -> Session | None:
        """The session with this label of the conversation whose id begins so; None without one. Raises StoreError."""
        mark = mark_of(owner.labels, label)
        place = self.place(owner, begin, label)
        names = [place.name] if place else await self._names(named_at(owner, begin)) or await self._names(owner.index)
        for name in names:
            if name.hex().startswith(begin) and name[LINK_BYTES:] == mark:
                return (await self._look_up([name]))[0]
        return None

    async def was_erased(self, owner: SessionOwner, name: str, label: str) -> bool:
        """Whether the session with this label was erased, of a conversation by its name for people; as far as it is
        known."""
        notes = [erased_at(owner, name, mark) for mark in (None, mark_of(owner.labels, label))]
        return await self._store.get_many(notes) != [None, None]

    async def every(self, owner: SessionOwner) -> list[Target]:
        """All of a caller's tenant, readable or not. Raises StoreError."""
        return [*map(target_of, await self._names(owner.index))]

    async def find_targets(self, owner: SessionOwner, name: str, *, may_be_unlisted: bool = True) -> list[Target]:
        """The sessions with this label, or the conversations whose id begins so with eight digits or more.

        ID:LABEL is one session, and ID: the one without a label. A whole id needs nobody to have enrolled it where it
        may be unlisted: for operators alone, since an id does not tell whose it is. Raises StoreError.
        """
        found = await self._names(labelled_at(mark_of(owner.labels, name)))
        begin, colon, label = name.partition(":")
        if found or len(begin) < _LEAST_OF_ID or not _HEX.issuperset(begin):
            return [*map(target_of, found)]
        if may_be_unlisted and is_session(name) and len(name) == 2 * LINK_BYTES:
            return [Target(bytes.fromhex(name), None)]
        like = [target for target in await self.every(owner) if target.id.startswith(begin)]
        if colon:
            mark = mark_of(owner.labels, label)
            return [target for target in like if target.mark == mark]
        return [*dict.fromkeys(Target(target.first, None) for target in like)]

    async def erase(self, owner: SessionOwner, targets: Sequence[Target]) -> int:
        """Remove everything that is stored of these; how many of them were erased, the rest is to be tried again.

        Returns once every replica knows.
        """
        erased = 0
        for target in targets:
            if not await self._erase_target(owner, target):
                break
            erased += 1
        await asyncio.sleep(SETTLED if erased else 0)
        return erased

    async def _erase_target(self, owner: SessionOwner, target: Target) -> bool:
        first, mark = target
        if mark is None:
            marks = [b"", *(await self.erasures.labels(first) or ())]
            done = await self.erasures.erase_every(first)
        else:
            marks = [mark]
            done = await self.erasures.erase(first + mark)
        if done:
            await self._store.put(erased_at(owner, name_of(first), mark), b"", self._ttl)
        for mark in marks if done else ():
            self._here.drop(first + mark)
            for index in (*indexes_of(owner, first, mark), failed_at(owner)):
                await self._store.enroll(index, (first + mark).hex(), 0)
        return done

    async def _names(self, index: str) -> list[bytes]:
        """Of the sessions that are listed there, and of those that this process remembers to have enrolled there."""
        members = await names_in(self._store, index)
        if members is None:
            raise StoreError("the store could not tell which sessions there are")
        listed = dict.fromkeys(bytes.fromhex(member) for member in members if is_session(member))
        here = [name for name, here in self._here.items() if index in here.indexes and name not in listed]
        return [*listed, *filter(None, await _each(self._unless_erased, here))]

    async def _unless_erased(self, name: bytes) -> bytes | None:
        """The name of a session that was enrolled here, unless another replica has erased it since."""
        here = self._here.get(name)
        return name if here and here.link == await self.erasures.link(name) else None

    async def _look_up(self, names: Sequence[bytes]) -> list[Session | None]:
        """What is known of these, in their order."""
        links = await self.erasures.links(names)
        there = await self._shelf.look_up([entry_key(link) for link in links])
        return [self._known_session(*each) for each in zip(names, links, there, strict=True)]

    def _known_session(self, name: bytes, link: bytes, stored: Session | None) -> Session | None:
        here = self._here.get(name)
        session = stored or (here.session if here and here.link == link else None)
        if session is None or name[LINK_BYTES:]:
            return session
        # Earlier versions put sessions with labels there too; they are erased as what they lie under.
        return structs.replace(session, label="")


async def _each(work: Callable[[bytes], Awaitable[_T]], names: Sequence[bytes]) -> list[_T]:
    """What comes of each, some at once."""
    found: list[_T] = []
    for some in (names[at : at + _AT_ONCE] for at in range(0, len(names), _AT_ONCE)):
        found += await asyncio.gather(*map(work, some))
    return found


def _is_up(store: Store) -> bool:
    return not isinstance(store, CircuitBreaker) or store.available


def _state(record: Record | None) -> str:
    return record.digest if record else ""
