"""The newest requests of this process: listed, and as they end."""

import re
from collections.abc import AsyncIterator, Callable, Iterable
from typing import NamedTuple

import msgspec

from proxy.admin.recent import Entry, Recent
from proxy.observing.events import CompactionEnded, RequestEnded

PAGE = 100
# So often it is looked whether the process ends, and whether somebody still listens.
_LOOK_EVERY = 1.0
_SIGN_EVERY = 15
_CLASS = re.compile(r"[1-5]xx")


class Filter(NamedTuple):
    """Which requests are wanted; empty for all. status: a number, or a class as 5xx. session: how the id begins."""

    tenant: str = ""
    outcome: str = ""
    status: str = ""
    session: str = ""

    def holds(self, event: RequestEnded) -> bool:
        return (
            self.tenant in ("", event.tenant)
            and self.outcome in ("", event.compaction)
            and (event.session or "").startswith(self.session)
            and self._has_status(event.status)
        )

    def _has_status(self, status: int) -> bool:
        if _CLASS.fullmatch(self.status):
            return str(status)[:1] == self.status[:1]
        return self.status in ("", str(status))


class Page(msgspec.Struct, frozen=True):
    """Requests, the newest first. cursor: asks for older ones; None where there are none."""

    requests: list[RequestEnded]
    cursor: int | None


def page(recent: Recent, wanted: Callable[[RequestEnded], bool], before: int | None) -> Page:
    """The newest requests that are wanted, of those before a cursor."""
    found: list[Entry] = []
    for entry in recent.newest(before):
        if isinstance(entry.event, RequestEnded) and wanted(entry.event):
            if len(found) == PAGE:
                return Page(_requests(found), found[-1].number)
            found.append(entry)
    return Page(_requests(found), None)


def _requests(entries: Iterable[Entry]) -> list[RequestEnded]:
    return [entry.event for entry in entries if isinstance(entry.event, RequestEnded)]


async def stream(
    recent: Recent, wanted: Callable[[RequestEnded | CompactionEnded], bool], is_ended: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """Server-sent events: `message` for a request, `compaction` for one, `lost` with how many were not sent in time."""
    with recent.watched() as viewer:
        if viewer is None:
            yield b"event: full\ndata: {}\n\n"
            return
        yield b": open\n\n"
        quiet, lost = 0, 0
        while not is_ended():
            entries = await viewer.taken(_LOOK_EVERY)
            if viewer.lost > lost:
                yield b'event: lost\ndata: {"lost": %d}\n\n' % (viewer.lost - lost)
                lost = viewer.lost
            for entry in entries:
                if wanted(entry.event):
                    yield _written(entry)
            quiet = 0 if entries else quiet + 1
            if quiet and quiet % _SIGN_EVERY == 0:
                yield b":\n\n"


def _written(entry: Entry) -> bytes:
    kind = b"event: compaction\n" if isinstance(entry.event, CompactionEnded) else b""
    return b"id: %d\n%bdata: %b\n\n" % (entry.number, kind, msgspec.json.encode(entry.event))
