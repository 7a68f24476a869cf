"""Which sessions of a tenant have something stored, for whoever is to look at or erase them. Best effort."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
from msgspec import structs

from proxy.cases import Case, Draft, labelled
from proxy.checkpoints import hash_tag
from proxy.erasures import SETTLED, Erasures
from proxy.lru import remember
from proxy.sessions import LINK_BYTES, is_name, mark_of
from proxy.siblings import Siblings
from proxy.stores.base import Store
from proxy.stores.sealing import Sealer
from proxy.tenants import Caller

_REMEMBERED = 20_000
_AT_ONCE = 50
_ENROLL_EVERY = 60.0
# Fewer digits of an id may be a label.
_LEAST_OF_ID = 8
_HEX = frozenset("0123456789abcdef")


class Session(msgspec.Struct, frozen=True):
    """A conversation under a label, for people.

    id:      its first link, 64 hex digits; log lines and headers show the first 16. Conversations with the same key and
             the same first message have one id.
    label:   what the client calls it; empty where it has no name for it. None stands for all labels, to be erased.
    seen:    Unix seconds of its last use, to the minute.
    covered: messages that its newest checkpoint stands for, 0 without one; generation: how many there were in a row.
    """

    id: str
    label: str | None
    model: str
    seen: float
    covered: int = 0
    generation: int = 0


class _Here(NamedTuple):
    """A session as this process enrolled it, under the link that it had."""

    indexes: Sequence[str]
    link: bytes
    session: Session


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Session).decode


class SessionIndex:
    """Enrolls, lists and erases sessions; one per process."""

    def __init__(
        self,
        store: Store,
        sealer: Sealer,
        ttl: float,
        erasures: Erasures,
        siblings: Siblings,
        clock: Callable[[], float],
    ) -> None:
        """`clock` tells Unix seconds."""
        self._store = store
        self._sealer = sealer
        self._ttl = ttl
        self._erasures = erasures
        self._siblings = siblings
        self._clock = clock
        self._noted: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._here: OrderedDict[bytes, _Here] = OrderedDict()
        """What this process has enrolled: it may remember what the store has lost."""

    def is_news(self, case: Case, sent: Draft) -> bool:
        """Whether this draft is a reason to enroll its session (again): a store may have lost it."""
        state, at = self._noted.get(case.tag, ("", 0.0))
        return state != _state(sent) or abs(self._clock() - at) > _ENROLL_EVERY

    async def enroll(self, case: Case, sent: Draft) -> None:
        """Note that something of this session may be stored."""
        remember(self._noted, case.tag, (_state(sent), self._clock()), _REMEMBERED)
        record = sent.record
        session = Session(
            id=case.first_link.hex(),
            label=case.label,
            model=case.request.model,
            seen=self._clock(),
            covered=record.covered if record else 0,
            generation=record.generation if record else 0,
        )
        link = case.link or labelled(case.first_link, case.mark)
        indexes = _indexes(case.caller, case.mark)
        remember(self._here, case.session, _Here(indexes, link, session), _REMEMBERED)
        key = _key(link)
        await self._erasures.list_again(case.session)
        await self._store.put(key, self._sealer.seal(key, _encode(session)), self._ttl)
        for index in indexes:
            await self._store.enroll(index, case.session.hex(), self._ttl)
        if record:
            await self._siblings.note(case, record)

    async def of(self, caller: Caller) -> list[Session]:
        """The sessions of a caller's tenant, the last used first."""
        return await self._listed(caller.index)

    async def named(self, caller: Caller, name: str) -> list[Session]:
        """The sessions with this label, or the conversations whose id begins so with eight digits or more.

        ID:LABEL is one session, and ID: the one without a label. A whole id needs nobody to have enrolled it.
        """
        found = await self._listed(_labelled_at(mark_of(caller, name)))
        begin, colon, label = name.partition(":")
        if found or len(begin) < _LEAST_OF_ID or not _HEX.issuperset(begin):
            return found
        if is_name(name) and len(name) == 2 * LINK_BYTES:
            return [Session(id=name, label=None, model="", seen=0)]
        like = [session for session in await self.of(caller) if session.id.startswith(begin)]
        if colon:
            return [session for session in like if session.label == label]
        return [*{session.id: structs.replace(session, label=None) for session in like}.values()]

    async def erase(self, caller: Caller, sessions: Sequence[Session]) -> int:
        """Remove everything that is stored of these; how many of them were erased, the rest is to be tried again.

        Returns once every replica knows.
        """
        erased = 0
        for session in sessions:
            if not await self._erased(caller, session):
                break
            erased += 1
        await asyncio.sleep(SETTLED if erased else 0)
        return erased

    async def _erased(self, caller: Caller, session: Session) -> bool:
        first = bytes.fromhex(session.id)
        if session.label is None:
            marks = [b"", *await self._erasures.labels(first)]
            done = await self._erasures.erase_every(first)
        else:
            marks = [mark_of(caller, session.label)]
            done = await self._erasures.erase(first + marks[0])
        for mark in marks if done else ():
            self._here.pop(first + mark, None)
            for index in _indexes(caller, mark):
                await self._store.strike(index, (first + mark).hex())
        return done

    async def _listed(self, index: str) -> list[Session]:
        names = {bytes.fromhex(member) for member in await self._store.members(index) if is_name(member)}
        names |= {name for name, here in self._here.items() if index in here.indexes}
        found: list[Session] = []
        every = [*names]
        for some in (every[at : at + _AT_ONCE] for at in range(0, len(every), _AT_ONCE)):
            found += filter(None, await asyncio.gather(*map(self._look, some)))
        return sorted(found, key=lambda session: -session.seen)

    async def _look(self, name: bytes) -> Session | None:
        link = await self._erasures.link(name)
        key, here = _key(link), self._here.get(name)
        (value,) = await self._store.get_many([key])
        return self._sealer.read(key, value, _decode) or (here.session if here and here.link == link else None)


def _indexes(caller: Caller, mark: bytes) -> list[str]:
    """Where a session is listed: among its tenant's and, with a label, among those of that label."""
    return [caller.index, *([_labelled_at(mark)] if mark else [])]


def _labelled_at(mark: bytes) -> str:
    return f"index:label:{mark.hex()}"


def _state(sent: Draft) -> str:
    return sent.record.digest if sent.record else ""


def _key(link: bytes) -> str:
    return f"session:{{{hash_tag(link)}}}"
