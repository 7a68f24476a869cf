"""Erasing conversations: what was stored of one is removed, and is found again neither by others nor by what is late.

Everything that is stored of a conversation lies under a hash tag made of its first link. Erasing leaves a tombstone
there with a random mark; from then on the link is set apart by that mark, so that the conversation, should it go on,
lies under another tag. Memories of other replicas are keyed by links too, so none has to forget anything. But a store
may become unreachable, or lose what was written last: every replica looks for recent erasures, remembers them, and puts
tombstones back.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from policies.fingerprint import INSTRUCTIONS, set_apart
from proxy.cases import Case
from proxy.checkpoints import hash_tag
from proxy.lru import remember
from proxy.stores.base import Store, tombstone

_REMEMBERED = 20_000
_MARK_BYTES = 16
# For so many seconds an erasure is looked after.
_WATCHED = 120.0
LOOK_EVERY = 0.5
# After which every replica that reaches the store knows.
SETTLED = 2 * LOOK_EVERY
_LOOKED_UP = 500
_RECENT = "index:erasures"


class Erasures:
    """Knows what was erased; one per process."""

    def __init__(self, store: Store, ttl: float, clock: Callable[[], float]) -> None:
        """`clock` tells seconds that only go forward."""
        self._store = store
        self._ttl = ttl
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[bytes, ...]] = OrderedDict()
        self._watched: dict[bytes, float] = {}

    async def placed(self, case: Case) -> Case:
        """The case under the link that its conversation has now."""
        return case if case.link is not None else replace(case, link=await self.link(case.first_link))

    async def link(self, first: bytes) -> bytes:
        """What stands for a conversation's first link: itself, until it is erased. One look at the store for each time.

        A tombstone that is known here and gone from the store, which a failover can bring about, is put there again.
        """
        link, marks = first, list[bytes]()
        known = self._known.get(first, ())
        while (mark := await self._mark(link, known[len(marks)] if len(marks) < len(known) else None)) is not None:
            marks.append(mark)
            link = set_apart(link, mark)
        if marks:
            remember(self._known, first, tuple(marks), _REMEMBERED)
        return link

    async def erase(self, first: bytes) -> bool:
        """Remove what is stored of the conversation with this first link; whether the store did it."""
        link = await self.link(first)
        # The link moves on with the second of these only: where it fails, both are tried again.
        erased = [await self._bury(name) for name in (set_apart(link, INSTRUCTIONS), link)]
        if None in erased:
            return False
        await self.link(first)
        self._watched[first] = self._clock() + _WATCHED
        await self._store.enroll(_RECENT, first.hex(), _WATCHED)
        return True

    async def look_after(self) -> None:
        """Learn of recent erasures, whoever made them, and put tombstones back that were lost."""
        now = self._clock()
        self._watched = {first: until for first, until in self._watched.items() if until > now}
        recent = [bytes.fromhex(name) for name in await self._store.members(_RECENT) if is_link(name)]
        for first in recent:
            if self._watched.setdefault(first, now + _WATCHED) == now + _WATCHED:
                await self.link(first)
        watched = list(self._watched)
        for some in (watched[at : at + _LOOKED_UP] for at in range(0, len(watched), _LOOKED_UP)):
            there = await self._store.get_many([tombstone(hash_tag(first)) for first in some])
            for first in (first for first, mark in zip(some, there, strict=True) if mark is None):
                await self.link(first)

    async def _mark(self, link: bytes, known: bytes | None) -> bytes | None:
        (there,) = await self._store.get_many([tombstone(hash_tag(link))])
        if there is None and known is not None:
            return await self._store.erase(hash_tag(link), known, self._ttl) or known
        return there

    async def _bury(self, link: bytes) -> bytes | None:
        return await self._store.erase(hash_tag(link), secrets.token_bytes(_MARK_BYTES), self._ttl)


def is_link(name: str) -> bool:
    """Whether this is a link, SHA-256, in hex."""
    return len(name) == 64 and all(digit in "0123456789abcdef" for digit in name)
