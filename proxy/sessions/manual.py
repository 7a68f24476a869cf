"""Compactions that somebody has asked for: each is made with the next request of its session, by whichever process."""

import secrets
from dataclasses import replace

from policies.conversation.prefix_digests import Chain, hash_tag, is_session
from proxy.sessions.epochs import Epochs
from proxy.sessions.shelf import Shelf
from proxy.sessions.stores.base import names_in
from proxy.sessions.stores.sealing import SealedStore

# So long one waits for a request.
_WAITS = 86_400.0
_ASKED = "index:asked"
_TOKEN_BYTES = 8


class ManualCompactions:
    """What was asked for lies with its session, and is erased with it; one per process.

    Every process looks now and then of which sessions that is so, and no request has to ask the store for it.
    """

    def __init__(self, sealed: SealedStore, epochs: Epochs) -> None:
        self._store = sealed.store
        self._tokens = Shelf(replace(sealed, ttl=_WAITS), str)
        self._epochs = epochs
        self.asked: frozenset[bytes] = frozenset()
        """Sessions of which a compaction was asked for, and not made yet, by the names of `Chain.session`."""

    async def look(self) -> None:
        """Learn what was asked for elsewhere; as before where the store does not answer."""
        members = await names_in(self._store, _ASKED)
        if members is not None:
            self.asked = frozenset(bytes.fromhex(member) for member in members if is_session(member))

    async def ask(self, session: bytes) -> None:
        """Have a session compacted with its next request."""
        await self._tokens.put(_key(await self._epochs.start(session)), secrets.token_hex(_TOKEN_BYTES))
        await self._store.enroll(_ASKED, session.hex(), _WAITS)
        self.asked |= {session}

    def may_be_due(self, chain: Chain) -> bool:
        """Whether that is so of a request's session; told at once where nothing was asked for, as nearly always."""
        return bool(self.asked) and chain.session in self.asked

    async def take(self, session: bytes) -> bool:
        """Whether it falls to the caller to compact this session now: of all who ask, to one."""
        (token,) = await self._tokens.look_up([_key(await self._epochs.link(session))])
        self.asked -= {session}
        await self._store.enroll(_ASKED, session.hex(), 0)
        return token is not None and await self._store.lock(f"claim:asked:{token}", token, _WAITS)


def _key(link: bytes) -> str:
    return f"ask:{{{hash_tag(link)}}}"
