"""The random epochs of sessions, by which erased data cannot be found again.

A session is a conversation, by its first link, and the label that the client gives it. Its epoch is created with the
first request that may store something. Everything that is stored of the session has a key that is derived from its name
and its epoch. To erase a session is to remove these entries, then the epoch. A session that continues gets another
epoch. If the store loses an epoch, its entries are lost too.

While a tombstone is stored for the tag of an epoch, entries under that tag vanish as they are stored. So requests in
flight leave nothing. Notes of where the summary of a part is stored (`index:part:...`) belong to no session. They
expire after an erasure and lead nowhere.

The records that were undone are listed under the same tag, so an erasure removes the list, and the list is read with
the epoch. Within an epoch nothing leaves the list.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from policies.conversation.prefix_digests import (
    INSTRUCTIONS,
    LINK_BYTES,
    Chain,
    hash_tag,
    is_session,
    link_of_label,
    set_apart,
)
from proxy.lru import remember
from proxy.sessions.stores.base import PAGE, Store, StoreError, pages_of, tombstone
from proxy.sessions.stores.breaker import CircuitBreaker

_REMEMBERED = 20_000
# The maximum number of undone records listed for a session, the newest.
_MOST_UNDONE = 100
_EPOCH_DIGITS = 32
_HEX = frozenset(b"0123456789abcdef")
_NO_EPOCH = b"0" * _EPOCH_DIGITS
# The seconds that an erasure is watched.
_WATCHED = 120.0
LOOK_EVERY = 0.5
# The time until every replica that reaches the store knows of an erasure.
SETTLED = 2 * LOOK_EVERY
_RECENT = "index:erasures"
# The maximum difference in seconds between the order of replicas' enrolments and of their expiry.
_OVERLAP = 5.0
# The mark of tombstones of this version. Version 0.2.0 stored a random mark, from which the next link was derived.
_ERASED = b"erased"
_EVERY_0_2 = b"every label"


class Epochs:
    """Find, create and erase epochs. There is one instance per process."""

    def __init__(self, store: Store, ttl: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Create epochs. `clock` returns monotonic seconds."""
        self._store = store
        self._ttl = ttl
        self._clock = clock
        self._known: OrderedDict[bytes, bytes] = OrderedDict()
        """Epochs that the store had, by session, for use while it does not respond."""

        self._unstored: OrderedDict[bytes, bytes] = OrderedDict()
        """Epochs that were created while the store did not respond."""

        self._undone: OrderedDict[bytes, frozenset[str]] = OrderedDict()
        """Undone records by the link of their session, for use while the store does not respond or has lost them."""

        self._watched: dict[str, float] = {}
        """The end of watching each recent erasure, an epoch and a session."""

        self._newest = 0.0
        """The expiry time of the newest erasure that was looked up."""

    @property
    def is_up(self) -> bool:
        """Return True if the store works and no breaker replaces it."""
        return not isinstance(self._store, CircuitBreaker) or self._store.available

    async def place(self, chain: Chain, *, stores: bool) -> Chain:
        """Return the chain with the link of its session's epoch, and its undone records.

        `stores`: create an epoch if there is none. One round trip if this process knows the epoch.
        """
        if chain.link is not None:
            return chain
        session, known_epoch = chain.session, self._known.get(chain.session)
        guess = _link(session, known_epoch)
        epoch, listed = await self._store.get_many([epoch_key(session), undone_key(guess)])
        stored = _valid(epoch)
        link = await self._started(session, stored) if stores else _link(session, self._epoch(session, stored))
        undone = self._remember_undone(link, listed) if link == guess else await self.undone(link)
        return replace(chain, link=link, undone=undone)

    async def undone(self, link: bytes) -> frozenset[str]:
        """Return the digests of the records that were undone for the session with this link."""
        (listed,) = await self._store.get_many([undone_key(link)])
        return self._remember_undone(link, listed)

    async def undo(self, link: bytes, digests: Sequence[str]) -> None:
        """List these records as undone for the session with this link, while it lives."""
        (listed,) = await self._store.get_many([undone_key(link)])
        undone = [*dict.fromkeys([*_digests_in(listed), *digests])][-_MOST_UNDONE:]
        await self._store.put(undone_key(link), " ".join(undone).encode(), self._ttl)
        remember(self._undone, link, frozenset(undone), _REMEMBERED)

    def _remember_undone(self, link: bytes, listed: bytes | None) -> frozenset[str]:
        known_digests = self._undone.get(link, frozenset())
        if listed is None:
            return known_digests
        return remember(self._undone, link, known_digests.union(_digests_in(listed)), _REMEMBERED)

    async def start(self, session: bytes) -> bytes:
        """Return the link of a session that is about to store something. Create its epoch if there is none."""
        return await self._started(session, *await self._stored([session]))

    async def _started(self, session: bytes, stored: bytes | None) -> bytes:
        """Return the link of a session with this stored epoch. Create one if there is none."""
        if stored is not None:
            return _link(session, self._remember(session, stored))
        # Before the epoch, so that an erasure of the conversation finds it. The store may have lost both.
        await self._list_label(session)
        known_epoch = None if self.is_up else self._known.get(session)
        if known_epoch is not None:
            return _link(session, known_epoch)
        fresh = self._unstored.get(session) or secrets.token_hex(_EPOCH_DIGITS // 2).encode()
        # A store that has lost only the label would erase the conversation without this session.
        earlier = await self._put_new(session, fresh) if (is_listed := await self._is_listed(session)) else None
        if not is_listed or (earlier is None and not self.is_up):
            return _link(session, remember(self._unstored, session, fresh, _REMEMBERED))
        return _link(session, self._remember(session, earlier or fresh))

    async def stored_link(self, chain: Chain) -> bytes:
        """Return the link of a chain. It is looked up if it is unknown, or if the store did not respond."""
        is_placed = chain.link is not None and chain.session not in self._unstored
        return chain.own_link if is_placed else await self.start(chain.session)

    async def link(self, session: bytes) -> bytes:
        """Return the link from which all keys of a session are derived now."""
        return (await self.links([session]))[0]

    async def links(self, sessions: Sequence[bytes]) -> list[bytes]:
        """Return the links of these sessions in their order; one round trip."""
        stored = await self._stored(sessions)
        return [_link(session, self._epoch(session, epoch)) for session, epoch in zip(sessions, stored, strict=True)]

    async def were_erased(self, links: Sequence[bytes]) -> list[bool]:
        """Return for each link True if its entries were erased, as far as the store knows."""
        marks = await self._store.get_many([tombstone(hash_tag(link)) for link in links])
        return [mark is not None for mark in marks]

    async def renew(self, chain: Chain, *keys: str) -> None:
        """Extend the lifetime of a session's epoch, label, undone records, and these entries."""
        if chain.undone:
            keys = (undone_key(chain.own_link), *keys)
        await self._store.touch([epoch_key(chain.session), *keys], self._ttl)
        await self._list_label(chain.session)

    async def erase(self, session: bytes) -> bool:
        """Remove everything that is stored of this session only. Return True if the store did it."""
        (stored,) = await self._stored([session])
        epoch = stored or self._known.get(session)  # a store may drop an epoch and keep its entries
        links = await self._links_0_2(session)
        links += [] if epoch is None else [_link(session, epoch)]
        for link in links:
            if await self._store.erase(hash_tag(link), _ERASED, self._ttl) is None:
                return False
        if epoch is not None:
            await self._store.lock(epoch_key(session), epoch.decode(), 0)
        erasure = _erasure(session, epoch or _NO_EPOCH)
        await self._store.enroll(_RECENT, erasure, _WATCHED)
        await self._strike_label(session)
        self._watch(erasure)
        return self.is_up

    async def erase_every(self, first_link: bytes) -> bool:
        """Remove everything that is stored of the conversation with this first link. Raises StoreError."""
        if not await self.erase(first_link):
            return False
        async for marks in self.labels(first_link):
            for mark in marks:
                if not await self.erase(first_link + mark):
                    return False
        return True

    async def labels(self, first_link: bytes) -> AsyncIterator[list[bytes]]:
        """Yield the marks of a conversation's labels page by page. Raises StoreError."""
        async for page in pages_of(self._store, _labels_at(first_link)):
            yield [bytes.fromhex(member.name) for member in page]

    async def look_after(self) -> bool:
        """Learn the recent erasures of all replicas, and repeat those that the store has lost, as in a failover.

        Return True if this process learned of new ones.
        """
        now = self._clock()
        self._watched = {erasure: until for erasure, until in self._watched.items() if until > now}
        news: list[str] = []
        newest = self._newest
        with suppress(StoreError):
            async for page in pages_of(self._store, _RECENT):
                news += [each.name for each in page if each.name not in self._watched and _is_erasure(each.name)]
                newest = max(newest, page[0].expires)
                if page[-1].expires < self._newest - _OVERLAP:
                    break
        self._newest = newest
        for erasure in news:
            self._watch(erasure)
        # The others follow at the next call.
        watched = [*self._watched][:PAGE]
        stored = await self._stored([_session_of(erasure) for erasure in watched])
        for erasure, epoch in zip(watched, stored, strict=True):
            self._watched[erasure] = self._watched.pop(erasure)
            if epoch is not None and erasure.startswith(epoch.decode()):
                await self.erase(_session_of(erasure))
        return bool(news)

    async def _stored(self, sessions: Sequence[bytes]) -> list[bytes | None]:
        """Return the epochs of these sessions as the store has them, None for one that is damaged."""
        stored = await self._store.get_many([epoch_key(session) for session in sessions])
        return [_valid(epoch) for epoch in stored]

    async def _put_new(self, session: bytes, epoch: bytes) -> bytes | None:
        """Store an epoch. Return the epoch that was stored before, if any."""
        earlier = await self._store.put(epoch_key(session), epoch, self._ttl, only_new=True)
        if earlier is None or _is_epoch(earlier):
            return earlier
        await self._store.put(epoch_key(session), epoch, self._ttl)
        return None

    def _epoch(self, session: bytes, stored: bytes | None) -> bytes | None:
        """Return the valid epoch: the stored one, or the one known here if the store does not respond."""
        if stored is None and not self.is_up:
            return self._known.get(session) or self._unstored.get(session)
        return stored

    def _remember(self, session: bytes, epoch: bytes) -> bytes:
        """Remember an epoch that the store has, and return it."""
        self._unstored.pop(session, None)
        if _erasure(session, epoch) not in self._watched:
            remember(self._known, session, epoch, _REMEMBERED)
        return epoch

    def _watch(self, erasure: str) -> None:
        """Forget the epoch of an erased session, and watch the erasure for a while."""
        self._watched[erasure] = self._clock() + _WATCHED
        for remembered in (self._known, self._unstored):
            remembered.pop(_session_of(erasure), None)

    async def _list_label(self, session: bytes) -> None:
        first_link, mark = session[:LINK_BYTES], session[LINK_BYTES:]
        if mark:
            await self._store.enroll(_labels_at(first_link), mark.hex(), self._ttl)

    async def _is_listed(self, session: bytes) -> bool:
        """Return True if the session has no label, or its label is in the list of its conversation."""
        first_link, mark = session[:LINK_BYTES], session[LINK_BYTES:]
        return not mark or await self._store.enrolled(_labels_at(first_link), [mark.hex()]) == [True]

    async def _strike_label(self, session: bytes) -> None:
        first_link, mark = session[:LINK_BYTES], session[LINK_BYTES:]
        if mark:
            await self._store.enroll(_labels_at(first_link), mark.hex(), 0)

    async def _links_0_2(self, session: bytes) -> list[bytes]:
        """Return the links under which version 0.2.0 may have stored this session; none if they were erased."""
        first_link, mark = session[:LINK_BYTES], session[LINK_BYTES:]
        every = set_apart(first_link, _EVERY_0_2)
        start = await self._last_link_0_2(every)
        link = await self._last_link_0_2(link_of_label(first_link if start is None or start == every else start, mark))
        return [] if link is None else [set_apart(link, INSTRUCTIONS), link]

    async def _last_link_0_2(self, link: bytes) -> bytes | None:
        """Follow the tombstones of version 0.2.0 from a link. Return None if this version has erased the last link."""
        while True:
            (mark,) = await self._store.get_many([tombstone(hash_tag(link))])
            if mark is None or mark == _ERASED:
                return link if mark is None else None
            link = set_apart(link, mark)


def epoch_key(session: bytes) -> str:
    """Return the key of a session's epoch."""
    return f"epoch:{session.hex()}"


def undone_key(link: bytes) -> str:
    """Return the key of the list of records that were undone for the session with this link."""
    return f"lineage:{{{hash_tag(link)}}}:undone"


def _digests_in(listed: bytes | None) -> list[str]:
    return (listed or b"").decode("ascii", "replace").split()


def _valid(epoch: bytes | None) -> bytes | None:
    """Return a stored epoch, None for one that is damaged."""
    return epoch if epoch is not None and _is_epoch(epoch) else None


def _link(session: bytes, epoch: bytes | None) -> bytes:
    """Return the link of a session in an epoch. Without an epoch it is the link of version 0.2.0."""
    if epoch is None:
        return link_of_label(session[:LINK_BYTES], session[LINK_BYTES:])
    return set_apart(session, epoch)


def _is_epoch(value: bytes) -> bool:
    return len(value) == _EPOCH_DIGITS and _HEX.issuperset(value)


def _erasure(session: bytes, epoch: bytes) -> str:
    """Return the name of an erasure: an epoch and a session, both in hex."""
    return epoch.decode() + session.hex()


def _is_erasure(name: str) -> bool:
    """Return True for the name of an erasure. Version 0.2.0 enrolled other names."""
    return len(name) > _EPOCH_DIGITS and is_session(name[_EPOCH_DIGITS:])


def _session_of(erasure: str) -> bytes:
    return bytes.fromhex(erasure[_EPOCH_DIGITS:])


def _labels_at(first_link: bytes) -> str:
    return f"index:labels:{hash_tag(first_link)}"
