"""The processes that serve over one store. Each reports its state."""

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
    """A serving process.

    started: in Unix seconds. told: the time of its report. digest: of the config in force. problems: of a refused file.
    secret: equal for replicas with the same `store.secret`; empty before 0.2.0.
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
    """The state of this process and of the other replicas."""

    def __init__(self, sealed: SealedStore, run: str, report: Callable[[], Replica]) -> None:
        """Create replicas. `run` is this process's unique id; `report` returns its state."""
        self._sealed = replace(sealed, ttl=_TTL)
        self._run = run
        self._report = report
        self._found: Sequence[Replica] = ()
        self._found_at = float("-inf")

    async def beat(self) -> None:
        """Report the state of this process for the next minute."""
        await Shelf(self._sealed, Replica).put(_key(self._run), self._report())
        await self._sealed.store.enroll(_INDEX, self._run, _TTL)

    async def leave(self) -> None:
        """Remove the report of this process."""
        await self._sealed.store.enroll(_INDEX, self._run, 0)

    async def every(self) -> list[Replica]:
        """Return this process and the others by name; only this one if the store does not respond."""
        self._found_at = time.monotonic()
        self._found = await find_replicas(self._sealed, but=self._run)
        return [self._report(), *self._found]

    async def recent(self) -> list[Replica]:
        """Return all replicas. The others may be ten seconds old, so that pages do not always read the store."""
        if time.monotonic() - self._found_at >= BEAT_EVERY:
            return await self.every()
        return self.known()

    def known(self) -> list[Replica]:
        """Return all replicas without store access, as of the last read."""
        return [self._report(), *self._found]


async def find_replicas(sealed: SealedStore, *, but: str = "") -> list[Replica]:
    """Return every process that reported in the last minute, except this run, by name."""
    runs = sorted(await names_in(sealed.store, _INDEX) or ())[:_MOST]
    reports = await Shelf(sealed, Replica).look_up([_key(run) for run in runs if run != but])
    return sorted(filter(None, reports), key=lambda each: (each.name, each.started))


def _key(run: str) -> str:
    return f"replica:{run}"
