"""Which conversations of a tenant have something stored, for whoever is to look at or erase them. Best effort."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from proxy.cases import Case, Draft
from proxy.checkpoints import hash_tag
from proxy.erasures import SETTLED, Erasures, is_link
from proxy.lru import remember
from proxy.stores.base import Store
from proxy.stores.sealing import Sealer

_REMEMBERED = 20_000
_AT_ONCE = 50
_ENROLL_EVERY = 60.0


class Session(msgspec.Struct, frozen=True):
    """A conversation for people.

    id:      its first link, 64 hex digits; log lines and headers show the first 16.
    label:   what the client calls it; empty where it has no name for it.
    seen:    Unix seconds of its last use, to the minute.
    covered: messages that its newest checkpoint stands for, 0 without one; generation: how many there were in a row.
    """

    id: str
    label: str
    model: str
    seen: float
    covered: int = 0
    generation: int = 0


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Session).decode


class SessionIndex:
    """Enrolls, lists and erases conversations; one per process."""

    def __init__(
        self, store: Store, sealer: Sealer, ttl: float, erasures: Erasures, clock: Callable[[], float]
    ) -> None:
        """`clock` tells Unix seconds."""
        self._store = store
        self._sealer = sealer
        self._ttl = ttl
        self._erasures = erasures
        self._clock = clock
        self._noted: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def is_news(self, case: Case, sent: Draft) -> bool:
        """Whether this draft is a reason to enroll its conversation (again): a store may have lost it."""
        state, at = self._noted.get(case.tag, ("", 0.0))
        return state != _state(sent) or abs(self._clock() - at) > _ENROLL_EVERY

    async def enroll(self, case: Case, sent: Draft, label: str) -> None:
        """Note that something of this conversation may be stored."""
        remember(self._noted, case.tag, (_state(sent), self._clock()), _REMEMBERED)
        record = sent.record
        session = Session(
            id=case.first_link.hex(),
            label=label,
            model=case.request.model,
            seen=self._clock(),
            covered=record.covered if record else 0,
            generation=record.generation if record else 0,
        )
        key = _key(case.link or case.first_link)
        await self._store.put(key, self._sealer.seal(key, _encode(session)), self._ttl)
        await self._store.enroll(case.caller.index, session.id, self._ttl)

    async def of(self, index: str) -> list[Session]:
        """A tenant's conversations, the last used first."""
        members = [bytes.fromhex(member) for member in await self._store.members(index) if is_link(member)]
        found: list[Session] = []
        for some in (members[start : start + _AT_ONCE] for start in range(0, len(members), _AT_ONCE)):
            found += filter(None, await asyncio.gather(*map(self._look, some)))
        return sorted(found, key=lambda session: -session.seen)

    async def named(self, index: str, name: str) -> list[Session]:
        """The conversations with this label, or whose id begins so with eight digits or more.

        A whole id needs nobody to have enrolled it.
        """
        if is_link(name):
            return [Session(id=name, label="", model="", seen=0)]
        by_id = len(name) >= 8
        return [s for s in await self.of(index) if s.label == name or (by_id and s.id.startswith(name))]

    async def erase(self, index: str, sessions: Sequence[Session]) -> int:
        """Remove everything that is stored of these; how many of them were erased, the rest is to be tried again.

        Returns once every replica knows.
        """
        erased = 0
        for session in sessions:
            if not await self._erasures.erase(bytes.fromhex(session.id)):
                break
            await self._store.strike(index, session.id)
            erased += 1
        await asyncio.sleep(SETTLED if erased else 0)
        return erased

    async def _look(self, first: bytes) -> Session | None:
        key = _key(await self._erasures.link(first))
        (value,) = await self._store.get_many([key])
        return self._sealer.read(key, value, _decode)


def _state(sent: Draft) -> str:
    return sent.record.digest if sent.record else ""


def _key(link: bytes) -> str:
    return f"session:{{{hash_tag(link)}}}"
