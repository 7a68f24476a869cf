"""The processes that serve over one store: each says that it is there, and how it is."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from proxy.sessions.shelf import Shelf
from proxy.sessions.stores.base import names_in
from proxy.sessions.stores.sealing import SealedStore

BEAT_EVERY = 10.0
_TTL = 60.0
_INDEX = "index:replicas"
_MOST = 1_000


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """A process that serves. started, told: when it began, and when it said this, in Unix seconds.

    digest: of the config in force; problems: of a file that was refused.
    secret: what those with the same `store.secret` have in common; empty before 0.2.0.
    """

    name: str
    version: str
    started: float
    digest: str
    in_flight: int
    problems: int
    told: float = 0.0
    secret: str = ""


class Replicas:
    """This process among the others."""

    def __init__(self, sealed: SealedStore, run: str, tell: Callable[[], Replica]) -> None:
        """`run` names this process among all that ever were; `tell` says how it is."""
        self._sealed = replace(sealed, ttl=_TTL)
        self._run = run
        self._tell = tell
        self._found: Sequence[Replica] = ()
        self._found_at = float("-inf")

    async def beat(self) -> None:
        """Say that this process is there, for the next minute."""
        await Shelf(self._sealed, Replica).put(_key(self._run), self._tell())
        await self._sealed.store.enroll(_INDEX, self._run, _TTL)

    async def leave(self) -> None:
        """Say that it is not any more."""
        await self._sealed.store.enroll(_INDEX, self._run, 0)

    async def every(self) -> list[Replica]:
        """This one first, then the others by their names; this one alone where the store does not answer."""
        self._found_at = time.monotonic()
        self._found = await replicas_there(self._sealed, but=self._run)
        return [self._tell(), *self._found]

    async def recent(self) -> list[Replica]:
        """Return the same. The others may be those of ten seconds ago, so that pages do not ask the store each time."""
        if time.monotonic() - self._found_at >= BEAT_EVERY:
            return await self.every()
        return self.known()

    def known(self) -> list[Replica]:
        """Return the same without asking the store: the others as they were when it was last asked."""
        return [self._tell(), *self._found]


async def replicas_there(sealed: SealedStore, *, but: str = "") -> list[Replica]:
    """Every process that has said in the last minute that it is there, but this run, by their names."""
    runs = sorted(await names_in(sealed.store, _INDEX) or ())[:_MOST]
    told = await Shelf(sealed, Replica).look_up([_key(run) for run in runs if run != but])
    return sorted(filter(None, told), key=lambda each: (each.name, each.started))


def _key(run: str) -> str:
    return f"replica:{run}"
