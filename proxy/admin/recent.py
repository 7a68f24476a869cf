"""The newest requests and compactions of this process, in memory and as a stream."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import NamedTuple

import msgspec

from proxy.telemetry.events import CompactionEnded, Event, RequestEnded
from proxy.telemetry.history_entries import RequestEntry
from proxy.telemetry.hooks import RequestListener

_KEPT = 1_000
# A viewer that does not read loses its oldest waiting entries. Other viewers are not affected.
_WAITING = 100
_MOST_VIEWERS = 50

Shown = RequestEnded | CompactionEnded


class NumberedEvent(NamedTuple):
    """An event and its number. Later events have higher numbers."""

    number: int
    event: Shown


class Recent(RequestListener):
    """A hook that keeps the last thousand events of this process, and passes them to viewers."""

    def __init__(self) -> None:
        """Create an empty list."""
        self._entries: deque[NumberedEvent] = deque(maxlen=_KEPT)
        self._number = 0
        self._viewers: set[Viewer] = set()

    def on_request(self, event: RequestEnded, _: RequestEntry) -> None:
        """Add a request."""
        self._add(event)

    def on_event(self, event: Event) -> None:
        """Add a compaction."""
        if isinstance(event, CompactionEnded):
            self._add(event)

    def _add(self, event: Shown) -> None:
        self._number += 1
        entry = NumberedEvent(self._number, event)
        self._entries.append(entry)
        for viewer in self._viewers:
            viewer.put(entry)

    def newest(self) -> Iterator[NumberedEvent]:
        """Return the events, the newest first. Later events do not change the result."""
        return reversed([*self._entries])

    def since(self, number: int | None) -> Iterator[NumberedEvent]:
        """Return the events with a higher number, the newest first; none without a number."""
        return takewhile(lambda entry: number is not None and entry.number > number, self.newest())

    most = _KEPT

    @property
    def oldest(self) -> float | None:
        """Return the end of the oldest kept event, in Unix seconds; None without events."""
        return self._entries[0].event.at if self._entries else None

    def requests(self) -> Iterator[RequestEnded]:
        """Return the requests, the newest first."""
        events = (entry.event for entry in self.newest())
        return (event for event in events if isinstance(event, RequestEnded))

    def of(self, tenant: str, session: str, label: str) -> list[RequestEnded]:
        """Return the requests of a session, the newest first."""
        events = (entry.event for entry in self.newest() if _is_of(entry.event, tenant, session, label.__eq__))
        return [event for event in events if isinstance(event, RequestEnded)]

    def forget(self, tenant: str, session: str, is_meant: Callable[[str], bool]) -> None:
        """Forget the sessions of a conversation whose label matches."""
        remaining = [entry for entry in self._entries if not _is_of(entry.event, tenant, session, is_meant)]
        self._entries = deque(remaining, _KEPT)

    @contextmanager
    def watch(self) -> Iterator["Viewer | None"]:
        """Yield a viewer of new events; None if there are too many viewers."""
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
    """A reader of new events.

    lost: entries that it was too slow to read.
    """

    def __init__(self) -> None:
        """Create a viewer without entries."""
        self._waiting: deque[NumberedEvent] = deque(maxlen=_WAITING)
        self._came = asyncio.Event()
        self.lost = 0

    def put(self, entry: NumberedEvent) -> None:
        """Add an entry."""
        self.lost += len(self._waiting) == _WAITING
        self._waiting.append(entry)
        self._came.set()

    async def take(self, seconds: float) -> list[NumberedEvent]:
        """Return the new entries, the oldest first; an empty list after so many seconds without one."""
        timer = asyncio.get_running_loop().call_later(seconds, self._came.set)
        try:
            await self._came.wait()
        finally:
            timer.cancel()
        self._came.clear()
        entries = [*self._waiting]
        self._waiting.clear()
        return entries


_MOST_DIGITS = 18
# The interval in seconds to check for the end of the process and for disconnected viewers.
_LOOK_EVERY = 1.0
_SIGN_EVERY = 15


def number_of(text: str) -> int | None:
    """Return the number of an entry from the id of its event; None for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


async def stream(
    recent: Recent,
    wanted: Callable[[RequestEnded | CompactionEnded], bool],
    is_ended: Callable[[], bool],
    after: int | None = None,
) -> AsyncIterator[bytes]:
    """Yield server-sent events: `message` for a request, `compaction`, and `lost` with the number of missed events.

    after: the last received number before a lost connection. Events after it that are still in memory come first.
    """
    with recent.watch() as viewer:
        if viewer is None:
            yield b"event: full\ndata: {}\n\n"
            return
        yield b": open\n\n"
        for entry in reversed([*recent.since(after)]):
            if wanted(entry.event):
                yield _written(entry)
        quiet, lost = 0, 0
        while not is_ended():
            entries = await viewer.take(_LOOK_EVERY)
            if viewer.lost > lost:
                yield b'event: lost\ndata: {"lost": %d}\n\n' % (viewer.lost - lost)
                lost = viewer.lost
            for entry in entries:
                if wanted(entry.event):
                    yield _written(entry)
            quiet = 0 if entries else quiet + 1
            if quiet and quiet % _SIGN_EVERY == 0:
                yield b":\n\n"


def _written(entry: NumberedEvent) -> bytes:
    kind = b"event: compaction\n" if isinstance(entry.event, CompactionEnded) else b""
    return b"id: %d\n%bdata: %b\n\n" % (entry.number, kind, msgspec.json.encode(entry.event))
