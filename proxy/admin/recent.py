"""The newest requests and compactions, as their events said it, and those who watch them come in."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from proxy.observing.events import CompactionEnded, Event, RequestEnded

_KEPT = 1_000
# A viewer that does not read loses the oldest of what waits for it, and nobody else notices.
_WAITING = 100
_MOST_VIEWERS = 50

Shown = RequestEnded | CompactionEnded


class Entry(NamedTuple):
    """An event and its number: later ones have higher ones."""

    number: int
    event: Shown


class Recent:
    """A hook that keeps the last thousand events of this process, and tells those who watch."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque(maxlen=_KEPT)
        self._number = 0
        self._viewers: set[Viewer] = set()

    def __call__(self, event: Event) -> None:
        if not isinstance(event, RequestEnded | CompactionEnded):
            return
        self._number += 1
        entry = Entry(self._number, event)
        self._entries.append(entry)
        for viewer in self._viewers:
            viewer.put(entry)

    def newest(self, before: int | None = None) -> Iterator[Entry]:
        """The newest first, of those with a lower number than `before`."""
        return (entry for entry in reversed(self._entries) if before is None or entry.number < before)

    def forget(self, tenant: str, session: str, is_meant: Callable[[str], bool]) -> None:
        """Keep nothing of the sessions of a conversation whose label is meant."""
        kept = [entry for entry in self._entries if not _is_of(entry.event, tenant, session, is_meant)]
        self._entries = deque(kept, _KEPT)

    @contextmanager
    def watched(self) -> Iterator["Viewer | None"]:
        """What comes in from now on; None where as many watch as may."""
        if len(self._viewers) >= _MOST_VIEWERS:
            yield None
            return
        viewer = Viewer()
        self._viewers.add(viewer)
        try:
            yield viewer
        finally:
            self._viewers.discard(viewer)


def _is_of(event: Shown, tenant: str, session: str, is_meant: Callable[[str], bool]) -> bool:
    label = (event.label or "") if isinstance(event, RequestEnded) else ""
    return (event.tenant, event.session) == (tenant, session) and is_meant(label)


class Viewer:
    """Somebody who watches. lost: entries that it was too slow to read."""

    def __init__(self) -> None:
        self._waiting: deque[Entry] = deque(maxlen=_WAITING)
        self._came = asyncio.Event()
        self.lost = 0

    def put(self, entry: Entry) -> None:
        self.lost += len(self._waiting) == _WAITING
        self._waiting.append(entry)
        self._came.set()

    async def taken(self, seconds: float) -> list[Entry]:
        """What has come in, the oldest first; empty where nothing did for so many seconds."""
        timer = asyncio.get_running_loop().call_later(seconds, self._came.set)
        try:
            await self._came.wait()
        finally:
            timer.cancel()
        self._came.clear()
        found = [*self._waiting]
        self._waiting.clear()
        return found
