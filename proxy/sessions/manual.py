"""Requested compactions: each is made with the next request of its session, by any process."""

import secrets
from dataclasses import replace

from policies.conversation.prefix_digests import Chain, hash_tag, is_session
from proxy.sessions.epochs import Epochs
from proxy.sessions.shelf import Shelf
from proxy.sessions.stores.base import names_in
from proxy.sessions.stores.sealing import SealedStore

# The lifetime of a request for a compaction, in seconds.
_WAITS = 86_400.0
_ASKED = "index:asked"
_TOKEN_BYTES = 8


class ManualCompactions:
    """Requests for compactions, stored with their sessions and erased with them. One instance per process.

    Every process polls which sessions have one, so no request has to read the store for it.
    """

    def __init__(self, sealed: SealedStore, epochs: Epochs) -> None:
        """Create the requests over a store."""
        self._store = sealed.store
        self._tokens = Shelf(replace(sealed, ttl=_WAITS), str)
        self._epochs = epochs
        self.asked: frozenset[bytes] = frozenset()
        """Sessions with a requested compaction that is not made yet, by the names of `Chain.session`."""

    async def look(self) -> None:
        """Learn the requests of all processes. Keep the known ones if the store does not respond."""
        members = await names_in(self._store, _ASKED)
        if members is not None:
            self.asked = frozenset(bytes.fromhex(member) for member in members if is_session(member))

    async def ask(self, session: bytes) -> None:
        """Request a compaction of a session with its next request."""
        await self._tokens.put(_key(await self._epochs.start(session)), secrets.token_hex(_TOKEN_BYTES))
        await self._store.enroll(_ASKED, session.hex(), _WAITS)
        self.asked |= {session}

    def may_be_due(self, chain: Chain) -> bool:
        """Return True if a compaction may be requested for a request's session. It needs no store access."""
        return bool(self.asked) and chain.session in self.asked

    async def take(self, session: bytes) -> bool:
        """Return True if the caller must compact this session now. Of all callers, only one gets True."""
        (token,) = await self._tokens.look_up([_key(await self._epochs.link(session))])
        self.asked -= {session}
        await self._store.enroll(_ASKED, session.hex(), 0)
        return token is not None and await self._store.lock(f"claim:asked:{token}", token, _WAITS)


def _key(link: bytes) -> str:
    return f"ask:{{{hash_tag(link)}}}"
