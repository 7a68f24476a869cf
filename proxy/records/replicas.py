"""The processes that serve over one store: each says that it is there, and how it is."""

from collections.abc import Callable
from dataclasses import replace

import msgspec

from proxy.records.shelf import Shelf
from proxy.stores.base import names_in
from proxy.stores.sealing import SealedStore

BEAT_EVERY = 10.0
_TTL = 60.0
_INDEX = "index:replicas"
_MOST = 1_000


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """A process that serves. started, told: when it began, and when it said this, in Unix seconds.

    digest: of the config in force; problems: of a file that was refused.
    """

    name: str
    version: str
    started: float
    digest: str
    in_flight: int
    problems: int
    told: float = 0.0


class Replicas:
    """This process among the others."""

    def __init__(self, sealed: SealedStore, run: str, tell: Callable[[], Replica]) -> None:
        """`run` names this process among all that ever were; `tell` says how it is."""
        self._store = sealed.store
        self._shelf = Shelf(replace(sealed, ttl=_TTL), Replica)
        self._run = run
        self._tell = tell

    async def beat(self) -> None:
        """Say that this process is there, for the next minute."""
        await self._shelf.put(_key(self._run), self._tell())
        await self._store.enroll(_INDEX, self._run, _TTL)

    async def leave(self) -> None:
        """Say that it is not any more."""
        await self._store.enroll(_INDEX, self._run, 0)

    async def every(self) -> list[Replica]:
        """This one first, then the others by their names; this one alone where the store does not answer."""
        runs = sorted(await names_in(self._store, _INDEX) or ())[:_MOST]
        others = await self._shelf.look_up([_key(run) for run in runs if run != self._run])
        return [self._tell(), *sorted(filter(None, others), key=lambda each: (each.name, each.started))]


def _key(run: str) -> str:
    return f"replica:{run}"
