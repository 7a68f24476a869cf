"""Figures that outlive the process: every process stores its own sums, and reading adds them up."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import msgspec

from proxy.sessions.shelf import Shelf
from proxy.sessions.stores.base import names_in
from proxy.sessions.stores.sealing import SealedStore
from proxy.telemetry.tally import DAY_HOURS, HOUR, Hours, Tally

WRITE_EVERY = 30.0
# The maximum number of processes to add up for a day. Replicas that restart every minute exceed it.
_MOST_RUNS = 1_000

_Rows = list[tuple[int, str, str, Tally]]


class Sums(msgspec.Struct, frozen=True):
    """Sums of a span.

    of: by tenant and model. is_whole: True if all replicas' sums are in it, False if only this one's. parts: the same
    for each part of the span, by hours since 1970 of its start; empty parts are missing.
    """

    of: dict[tuple[str, str], Tally]
    is_whole: bool
    parts: dict[int, dict[tuple[str, str], Tally]]


class KeptFigures:
    """The sums of all processes over one store, including this one's.

    A process never overwrites another's sums, so neither a restart nor a shared name loses any.
    """

    def __init__(
        self,
        hours: Hours,
        sealed: SealedStore,
        run: str,
        clock: Callable[[], float],
        is_up: Callable[[], bool],
    ) -> None:
        """Create the sums. `run` is this process's unique id; `clock` returns Unix seconds."""
        self._hours = hours
        self._store = sealed.store
        self._shelf = Shelf(sealed, _Rows)
        self._ttl = sealed.ttl
        self._run = run
        self._clock = clock
        self._is_up = is_up

    async def write(self) -> None:
        """Store the changed sums. A later call repeats what failed."""
        for day in sorted(self._hours.changed):
            if day not in self._hours.days:  # forgotten during the write
                continue
            rows = [(*row, tally) for row, tally in self._hours.days[day].items()]
            self._hours.changed.discard(day)
            await self._store.enroll(_index(day), self._run, self._ttl)
            await self._shelf.put(_key(day, self._run), rows)
            if not self._is_up():
                self._hours.changed.add(day)

    async def last(self, hours: int, step: int = DAY_HOURS) -> Sums:
        """Return the sums of so many hours including this one, also in parts of `step` hours."""
        newest = int(self._clock()) // HOUR
        oldest = newest - hours + 1
        days = range(oldest // DAY_HOURS, newest // DAY_HOURS + 1)
        runs = await asyncio.gather(*(names_in(self._store, _index(day)) for day in days))
        stored = await self._shelf.look_up([*self._keys_elsewhere(days, runs)])
        own = [
            [(*row, tally) for row, tally in self._hours.days[day].items()] for day in days if day in self._hours.days
        ]
        parts: dict[int, dict[tuple[str, str], Tally]] = {}
        for hour, tenant, model, tally in (row for rows in (*own, *stored) for row in rows or ()):
            if oldest <= hour <= newest:
                parts.setdefault(hour - hour % step, {}).setdefault((tenant, model), Tally()).add(tally)
        of: dict[tuple[str, str], Tally] = {}
        for key, tally in (row for part in parts.values() for row in part.items()):
            of.setdefault(key, Tally()).add(tally)
        return Sums(of, None not in runs and self._is_up(), parts)

    def _keys_elsewhere(self, days: Sequence[int], runs: Sequence[list[str] | None]) -> list[str]:
        """Return the keys of the sums that this process does not have itself."""
        return [
            _key(day, run)
            for day, names in zip(days, runs, strict=True)
            for run in sorted(names or ())[:_MOST_RUNS]
            if run != self._run or day not in self._hours.days
        ]


def _date(day: int) -> str:
    return f"{datetime.fromtimestamp(day * DAY_HOURS * HOUR, UTC):%Y-%m-%d}"


def _index(day: int) -> str:
    return f"index:figures:{_date(day)}"


def _key(day: int, run: str) -> str:
    return f"figures:{_date(day)}:{run}"
