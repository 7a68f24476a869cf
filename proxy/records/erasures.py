"""Erasing sessions: what was stored of one is removed, and is found again neither by others nor by what is late.

A session is a conversation, by its first link, and the label that the client gives it. Everything that is stored of it
lies under a hash tag made of both. Erasing leaves a tombstone there with a random mark; from then on the link is set
apart by that mark, so that the session, should it go on, lies under another tag. Erasing a conversation whatever its
labels does the same to a link from which all of its sessions' derive. Memories of other replicas are keyed by links
too, so none has to forget anything. But a store may become unreachable, or lose what was written last: every replica
looks for recent erasures, remembers them, and puts tombstones back.

Notes that say under which tag the summary of a part lies (`index:part:...`, hashes keyed by the caller) belong to no
session. They outlive an erasure until they expire, and lead nowhere.
"""

import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from policies.chain import INSTRUCTIONS, LINK_BYTES, Chain, hash_tag, is_session, link_of_label, set_apart
from proxy.lru import remember
from proxy.stores.base import Store, StoreError, pages_of, tombstone

_REMEMBERED = 20_000
_MARK_BYTES = 16
# For so many seconds an erasure is looked after.
_WATCHED = 120.0
LOOK_EVERY = 0.5
# After which every replica that reaches the store knows.
SETTLED = 2 * LOOK_EVERY
_LOOKED_UP = 500
# Replicas enroll erasures in an order that differs by so many seconds at most from that of their expiry.
_OVERLAP = 5.0
_RECENT = "index:erasures"
_EVERY = b"every label"


class Erasures:
    """Knows what was erased; one per process."""

    def __init__(self, store: Store, ttl: float, clock: Callable[[], float]) -> None:
        """`clock` tells seconds that only go forward."""
        self._store = store
        self._ttl = ttl
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[bytes, ...]] = OrderedDict()
        self._listed: OrderedDict[bytes, None] = OrderedDict()
        self._watched: dict[bytes, float] = {}
        self._newest = 0.0
        """The expiry time of the newest erasure that was looked up."""

    async def place(self, chain: Chain, *, stores: bool) -> Chain:
        """The chain under the link that its session has now. Where something of it may be stored, its label is listed
        before, so that an erasure of the whole conversation finds it."""
        if chain.link is not None:
            return chain
        return replace(chain, link=await (self._listed_link if stores else self.link)(chain.session))

    async def link(self, session: bytes) -> bytes:
        """What stands for the first link of a session: a link and, of a session with a label, its mark."""
        _, link = await self._place(session)
        return link

    async def links(self, sessions: Sequence[bytes]) -> list[bytes]:
        """The links of these, in their order; of those that were never erased in one round trip."""
        roots = [
            (set_apart(name[:LINK_BYTES], _EVERY), link_of_label(name[:LINK_BYTES], name[LINK_BYTES:]))
            for name in sessions
        ]
        marks = await self._store.get_many([tombstone(hash_tag(root)) for pair in roots for root in pair])
        found = []
        for name, pair, there in zip(sessions, roots, zip(marks[::2], marks[1::2], strict=True), strict=True):
            is_untouched = there == (None, None) and self._known.keys().isdisjoint(pair)
            found.append(pair[1] if is_untouched else await self.link(name))
        return found

    async def list_again(self, session: bytes) -> None:
        """Have a label listed for another while: it is in use, and a store may have lost it."""
        first, mark = session[:LINK_BYTES], session[LINK_BYTES:]
        if mark:
            await self._list(await self._start(first), mark)

    async def erase(self, session: bytes) -> bool:
        """Remove what is stored of this session, and of no other; whether the store did it."""
        first, mark = session[:LINK_BYTES], session[LINK_BYTES:]
        start = await self._start(first)
        # Before, so that who lists it anew, for what is stored from then on, stays listed.
        await self._strike(start, mark)
        if await self._put_tombstones(link_of_label(start, mark)):
            return True
        await self.list_again(session)
        return False

    async def erase_every(self, first: bytes) -> bool:
        """Remove what is stored of the conversation with this first link, whatever its labels."""
        start = await self._start(first)
        if not await self._erase_listed(start) or not await self._put_tombstones(set_apart(first, _EVERY)):
            return False
        if not await self._erase_listed(start):  # and what came meanwhile; nobody begins there any more
            return False
        with suppress(StoreError):
            async for page in pages_of(self._store, _labels_at(start)):
                for mark in page:
                    await self._store.enroll(_labels_at(start), mark.name, 0)
        return True

    async def labels(self, first: bytes) -> AsyncIterator[list[bytes]]:
        """Yield the marks of the labels that a conversation has been seen with, page by page. Raises StoreError."""
        async for page in pages_of(self._store, _labels_at(await self._start(first))):
            yield [bytes.fromhex(mark.name) for mark in page]

    async def look_after(self) -> bool:
        """Learn of recent erasures of all replicas, and put tombstones back that were lost; whether there were any that
        nobody here knew."""
        now = self._clock()
        self._watched = {root: until for root, until in self._watched.items() if until > now}
        news = await self._unknown_erasures()
        for root in news:
            self._watched[root] = now + _WATCHED
            await self._follow_tombstones(root)
        # The others have their turn at the next look.
        watched = [*self._watched.items()][:_LOOKED_UP]
        there = await self._store.get_many([tombstone(hash_tag(root)) for root, _ in watched])
        for (root, until), mark in zip(watched, there, strict=True):
            del self._watched[root]
            self._watched[root] = until
            if mark is None:
                await self._follow_tombstones(root)
        return bool(news)

    async def _unknown_erasures(self) -> list[bytes]:
        """Return the recent erasures that are not known here, of those enrolled since the last look and a page more."""
        recent: dict[bytes, None] = {}
        newest = self._newest
        try:
            async for page in pages_of(self._store, _RECENT):
                recent |= dict.fromkeys(bytes.fromhex(member.name) for member in page if is_session(member.name))
                newest = max(newest, page[0].expires)
                if page[-1].expires < self._newest - _OVERLAP:
                    break
        except StoreError:
            return []
        self._newest = newest
        return [root for root in recent if root not in self._watched]

    async def _place(self, session: bytes) -> tuple[bytes, bytes]:
        """Where the conversation of a session starts, and the session's own link."""
        first, mark = session[:LINK_BYTES], session[LINK_BYTES:]
        root, every = link_of_label(first, mark), set_apart(first, _EVERY)
        if root not in self._known and every not in self._known:
            marks = await self._store.get_many([tombstone(hash_tag(link)) for link in (every, root)])
            if marks == [None, None]:  # never erased, like nearly all
                return first, root
        start = await self._start(first)
        return start, await self._follow_tombstones(link_of_label(start, mark))

    async def _listed_link(self, session: bytes) -> bytes:
        mark = session[LINK_BYTES:]
        start, link = await self._place(session)
        while mark and link not in self._listed:
            await self._list(start, mark)
            remember(self._listed, link, None, _REMEMBERED)
            start, link = await self._place(session)  # it may have been erased meanwhile
        return link

    async def _start(self, first: bytes) -> bytes:
        """The conversation's own link, or what has its place since all of its sessions were erased."""
        every = set_apart(first, _EVERY)
        link = await self._follow_tombstones(every)
        return first if link == every else link

    async def _follow_tombstones(self, root: bytes) -> bytes:
        """Where this link leads, from tombstone to tombstone; itself, until it is erased.

        A tombstone that is known here and gone from the store, which a failover can bring about, is put there again.
        """
        link, marks = root, list[bytes]()
        known = self._known.get(root, ())
        while (mark := await self._mark(link, known[len(marks)] if len(marks) < len(known) else None)) is not None:
            marks.append(mark)
            link = set_apart(link, mark)
        if marks:
            remember(self._known, root, tuple(marks), _REMEMBERED)
        return link

    async def _erase_listed(self, start: bytes) -> bool:
        if not await self._put_tombstones(start):
            return False
        try:
            async for page in pages_of(self._store, _labels_at(start)):
                for mark in page:
                    if not await self._put_tombstones(link_of_label(start, bytes.fromhex(mark.name))):
                        return False
        except StoreError:
            return False
        return True

    async def _put_tombstones(self, root: bytes) -> bool:
        link = await self._follow_tombstones(root)
        # The link moves on with the second of these only: where it fails, both are tried again.
        erased = [await self._put_tombstone(name) for name in (set_apart(link, INSTRUCTIONS), link)]
        if None in erased:
            return False
        await self._follow_tombstones(root)
        self._watched[root] = self._clock() + _WATCHED
        await self._store.enroll(_RECENT, root.hex(), _WATCHED)
        return True

    async def _list(self, start: bytes, mark: bytes) -> None:
        await self._store.enroll(_labels_at(start), mark.hex(), self._ttl)

    async def _strike(self, start: bytes, mark: bytes) -> None:
        if mark:
            await self._store.enroll(_labels_at(start), mark.hex(), 0)

    async def _mark(self, link: bytes, known: bytes | None) -> bytes | None:
        (there,) = await self._store.get_many([tombstone(hash_tag(link))])
        if there is None and known is not None:
            return await self._store.erase(hash_tag(link), known, self._ttl) or known
        return there

    async def _put_tombstone(self, link: bytes) -> bytes | None:
        return await self._store.erase(hash_tag(link), secrets.token_bytes(_MARK_BYTES), self._ttl)


def _labels_at(start: bytes) -> str:
    return f"index:labels:{hash_tag(start)}"
