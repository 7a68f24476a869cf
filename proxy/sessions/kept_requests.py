"""Requests that outlive the process: every process stores its own in parts, and all of them are searched.

A part has the figures by which requests are searched, and in another entry all that is known of each. The name of a
part in the index says from when to when its requests ended, so that a search reads the newest parts first.
"""

import asyncio
import math
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from heapq import nlargest
from typing import NamedTuple, TypeVar

import msgspec

from policies.conversation.prefix_digests import mark_of
from proxy.sessions.index import SessionOwner, erased_at
from proxy.sessions.locks import claim
from proxy.sessions.stores.sealing import SealedStore
from proxy.telemetry.events import Event, RequestEnded
from proxy.telemetry.history_entries import RequestEntry
from proxy.telemetry.hooks import RequestListener
from proxy.telemetry.upstream_failures import UpstreamFailure, UpstreamFailures

_T = TypeVar("_T")
REQUESTS_EVERY = 10.0
MOST_REQUESTS = 100_000
"""The approximate number of requests in the store, of all replicas. The oldest are dropped. They take some 20 MB."""
# A part ends with its day, and before it exceeds the store's value size.
_MOST_OF_PART, _MOST_BYTES = 250, 200_000
_MOST_PARTS = 2_000
# The maximum number of requests that wait for the store.
_MOST_UNSAVED = 5_000
# Parts that are read in one round trip.
_READ = 20
_INDEX = "index:requests"
_LOCK = "lock:requests"
_LOCK_WAIT = 5.0
# The lifetime of a removed entry, in seconds.
_REMOVED = 1.0
_DAY = 86_400.0
# Names in the index have no fractions of a second.
_MS = 1_000


class RequestRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The figures by which a request is searched. Fields are those of `RequestEnded`."""

    id: str
    at: float
    ms: float
    status: int
    tenant: str
    session: str
    label: str
    compaction: str


class KeptRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A finished request.

    replica: the name of the process that served it. failure: of the upstream, if known.
    """

    event: RequestEnded
    replica: str = ""
    failure: UpstreamFailure | None = None


class Place(NamedTuple):
    """The end of a page of requests: the time and id of its last request."""

    at: float
    id: str


class FoundRequests(NamedTuple):
    """Requests, the newest first.

    is_last: True if there are no older ones. is_whole: False if the store does not respond, so that there are none.
    """

    requests: list[KeptRequest]
    is_last: bool = True
    is_whole: bool = True


class ErasedSessions(NamedTuple):
    """Sessions of a tenant. is_erased: returns True for the id and the label of one of them."""

    tenant: str
    is_erased: Callable[[str, str], bool]

    def has(self, row: RequestRow) -> bool:
        """Return True if a request belongs to one of them."""
        return row.tenant == self.tenant and bool(row.session) and self.is_erased(row.session, row.label)


class UnsavedRequests(RequestListener):
    """A hook that collects the requests of tenants until they are stored."""

    def __init__(self) -> None:
        """Create an empty hook."""
        self.events: deque[RequestEnded] = deque(maxlen=_MOST_UNSAVED)

    def on_request(self, event: RequestEnded, _: RequestEntry) -> None:
        """Add a tenant's request."""
        if event.tenant is not None:
            self.events.append(event)

    def on_event(self, event: Event) -> None:
        """Ignore other events."""


class _Part(NamedTuple):
    """A part as the index names it.

    last, first: when its newest and its oldest request ended, in milliseconds.
    """

    last: int
    first: int
    number: int
    id: str

    @property
    def name(self) -> str:
        return f"{self.last:x}-{self.first:x}-{self.number:x}-{self.id}"


class _OpenPart:
    """The part that this process fills.

    name: in the index; empty if it is not stored yet.
    """

    def __init__(self, day: int) -> None:
        self.day = day
        self.id = secrets.token_hex(8)
        self.name = ""
        self.is_saved = True
        self.rows: dict[str, RequestRow] = {}
        self.details: dict[str, msgspec.Raw] = {}
        self.size = 0

    @property
    def is_full(self) -> bool:
        return len(self.rows) >= _MOST_OF_PART or self.size >= _MOST_BYTES

    def fill(self, requests: Iterable[KeptRequest]) -> int:
        """Add requests until the part is full, and return the number of added ones."""
        added = 0
        for request in requests:
            if self.is_full:
                break
            row, details = make_row(request.event), msgspec.msgpack.encode(request)
            self.rows[row.id], self.details[row.id] = row, msgspec.Raw(details)
            self.size += len(details)
            added += 1
        self.is_saved = self.is_saved and not added
        return added

    def drop(self, ids: Iterable[str]) -> None:
        for id_ in ids:
            if self.rows.pop(id_, None) is not None:
                del self.details[id_]
                self.is_saved = False


class KeptRequests:
    """The stored requests of all processes over one store."""

    def __init__(
        self,
        unsaved: UnsavedRequests,
        failures: UpstreamFailures,
        sealed: SealedStore,
        replica: str,
        owner_of: Callable[[str], SessionOwner | None],
        clock: Callable[[], float],
        is_up: Callable[[], bool],
    ) -> None:
        """Create the requests. `owner_of` returns the owner of a tenant's sessions; `clock` returns Unix seconds."""
        self._unsaved = unsaved
        self._failures = failures
        self._sealed = sealed
        self._store = sealed.store
        self._replica = replica
        self._owner_of = owner_of
        self._clock = clock
        self._is_up = is_up
        self._open: _OpenPart | None = None
        self._decode_rows = msgspec.msgpack.Decoder(list[RequestRow]).decode
        self._decode_details = msgspec.msgpack.Decoder(dict[str, msgspec.Raw]).decode
        self._decode_request = msgspec.msgpack.Decoder(KeptRequest).decode

    async def write(self) -> None:
        """Store the requests that ended since the last call. A later call repeats what failed."""
        events = self._unsaved.events
        while True:
            part = self._open
            if part is None or part.is_full or part.day != self._today:
                if part is not None:
                    await self._save(part)
                    if not part.is_saved:
                        return
                self._open = None
                if not events:
                    return
                part = self._open = _OpenPart(self._today)
            room = _MOST_OF_PART - len(part.rows)
            ended = [events.popleft() for _ in range(min(room, len(events)))]
            added = part.fill(await asyncio.to_thread(self._describe, ended))
            events.extendleft(reversed(ended[added:]))
            if not part.is_full:
                await self._save(part)
                return

    def _describe(self, events: Sequence[RequestEnded]) -> list[KeptRequest]:
        """Return requests with their upstream failures."""
        failures = (self._failures.of(event.id) for event in events)
        return [
            KeptRequest(event=event, replica=self._replica, failure=failure)
            for event, failure in zip(events, failures, strict=True)
        ]

    @property
    def _today(self) -> int:
        return int(self._clock() // _DAY)

    async def _save(self, part: _OpenPart) -> None:
        """Store a part over its stored version, without the requests of sessions that were erased meanwhile."""
        part.drop(await self._erased(part.rows.values()))
        if part.is_saved:
            return
        rows, details = [*part.rows.values()], dict(part.details)
        old_name, part.name = part.name, _part_of(part.id, rows).name if rows else ""
        if rows:
            await self._put(part.id, rows, details)
            await self._store.enroll(_INDEX, part.name, self._sealed.ttl)
        if old_name not in ("", part.name):
            await self._store.enroll(_INDEX, old_name, 0)
        if rows and not old_name:
            await self._remove_oldest()
        part.is_saved = self._is_up() and part.rows.keys() == details.keys()

    async def _put(self, part: str, rows: Sequence[RequestRow], details: Mapping[str, msgspec.Raw]) -> None:
        for key, value in ((_details_key(part), details), (_rows_key(part), rows)):
            sealed = await asyncio.to_thread(self._seal, key, value)
            await self._store.put(key, sealed, self._sealed.ttl)

    def _seal(self, key: str, value: object) -> bytes:
        return self._sealed.sealer.seal(key, msgspec.msgpack.encode(value))

    async def _remove_oldest(self) -> None:
        """Remove the oldest parts that exceed the limits."""
        number = 0
        for count, part in enumerate(await self._parts() or (), 1):
            number += part.number
            if number > MOST_REQUESTS or count > _MOST_PARTS:
                await self._remove(part)

    async def _remove(self, part: _Part) -> None:
        await self._store.enroll(_INDEX, part.name, 0)
        for key in (_rows_key(part.id), _details_key(part.id)):
            await self._store.put(key, b"", _REMOVED)

    async def _parts(self) -> list[_Part] | None:
        """Return the stored parts, the newest first; None if the store does not respond."""
        members = await self._store.members(_INDEX)
        if members is None:
            return None
        parts = sorted(part for member in members if (part := _read_name(member.name)))
        # A part that grew may also be listed under its previous name.
        return sorted({part.id: part for part in parts}.values(), reverse=True)

    async def find(self, request: str) -> KeptRequest | None:
        """Return the request with this id; None if there is none."""
        places = await self._find_places(lambda row: row.id == request, 1)
        return next(iter(await self._read_requests(places or [])), None)

    async def search(
        self,
        is_wanted: Callable[[RequestRow], bool],
        *,
        limit: int,
        before: Place | None = None,
        since: float = -math.inf,
        until: float = math.inf,
    ) -> FoundRequests:
        """Return the newest requests that are wanted and ended from `since` to `until`, in Unix seconds."""

        def holds(row: RequestRow) -> bool:
            is_between = since <= row.at <= until and (before is None or (row.at, row.id) < before)
            return is_between and is_wanted(row)

        while True:
            newest = min(until, before.at if before else math.inf)
            places = await self._find_places(holds, limit + 1, since, newest)
            if places is None:
                return FoundRequests([], is_whole=False)
            requests = await self._read_requests(places[:limit])
            is_last = len(places) <= limit
            if requests or is_last:
                return FoundRequests(requests, is_last, self._is_up())
            before = places[limit - 1][0]  # all of these were erased

    async def _find_places(
        self,
        is_wanted: Callable[[RequestRow], bool],
        limit: int,
        since: float = -math.inf,
        until: float = math.inf,
    ) -> list[tuple[Place, str]] | None:
        """Return the places of the newest wanted requests, at most `limit`, each with its part.

        None if the store does not respond. Only parts with requests from `since` to `until` are read.
        """
        parts = await self._parts()
        if parts is None or not self._is_up():
            return None
        oldest = max(since, self._clock() - self._sealed.ttl)
        likely = [part for part in parts if part.last >= _MS * oldest - 1 and part.first <= _MS * until]
        places: list[tuple[Place, str]] = []
        for group in _groups(likely):
            if len(places) == limit and _MS * places[-1][0].at > group[0].last + 1:
                break
            rows = await self._read_rows(group, lambda row: row.at >= oldest and is_wanted(row))
            group_places = (
                (Place(row.at, row.id), part.id)
                for part, wanted_rows in zip(group, rows, strict=True)
                for row in wanted_rows
            )
            places = nlargest(limit, [*places, *group_places])
        return places

    async def _read_rows(
        self, parts: Sequence[_Part], is_wanted: Callable[[RequestRow], bool]
    ) -> list[list[RequestRow]]:
        """Return the wanted rows of each of these parts."""
        keys = [_rows_key(part.id) for part in parts]
        values = await self._store.get_many(keys)
        return await asyncio.to_thread(self._open_rows, keys, values, is_wanted)

    def _open_rows(
        self, keys: Sequence[str], values: Sequence[bytes | None], is_wanted: Callable[[RequestRow], bool]
    ) -> list[list[RequestRow]]:
        read = partial(self._sealed.sealer.read, decode=self._decode_rows)
        return [
            [row for row in read(key, value or None) or () if is_wanted(row)]
            for key, value in zip(keys, values, strict=True)
        ]

    async def _read_requests(self, places: Sequence[tuple[Place, str]]) -> list[KeptRequest]:
        """Return requests in the order of their places, without missing and erased ones."""
        details: dict[str, dict[str, msgspec.Raw]] = {}
        for group in _groups([*dict.fromkeys(part for _, part in places)]):
            values = await self._store.get_many([_details_key(part) for part in group])
            details |= await asyncio.to_thread(self._open_details, group, values)
        raws = (details.get(part, {}).get(place.id) for place, part in places)
        requests = [self._decode_request(raw) for raw in raws if raw is not None]
        erased = await self._erased(make_row(each.event) for each in requests)
        return [each for each in requests if each.event.id not in erased]

    def _open_details(self, parts: Sequence[str], values: Sequence[bytes | None]) -> dict[str, dict[str, msgspec.Raw]]:
        read = self._sealed.sealer.read
        return {
            part: read(_details_key(part), value or None, self._decode_details) or {}
            for part, value in zip(parts, values, strict=True)
        }

    async def _erased(self, rows: Iterable[RequestRow]) -> Set[str]:
        """Return the ids of those of these requests whose session was erased after they ended."""
        notes = {row.id: (row.at, keys) for row in rows if (keys := self._note_keys(row))}
        keys = [*dict.fromkeys(key for _, both in notes.values() for key in both)]
        if not keys:
            return set()
        values = dict(zip(keys, await self._store.get_many(keys), strict=True))
        return {id_ for id_, (at, both) in notes.items() if any(at <= _time_of(values[key]) for key in both)}

    def _note_keys(self, row: RequestRow) -> list[str]:
        """Return the keys of the notes about the erasure of a request's session."""
        owner = self._owner_of(row.tenant) if row.session else None
        if owner is None:
            return []
        return [erased_at(owner, row.session, mark) for mark in (None, mark_of(owner.labels, row.label))]

    async def forget(self, erased: ErasedSessions) -> None:
        """Remove the requests of erased sessions, including those that other processes have stored."""
        events = [event for event in self._unsaved.events if not erased.has(make_row(event))]
        self._unsaved.events.clear()
        self._unsaved.events.extend(events)
        if self._open is not None:
            self._open.drop([row.id for row in self._open.rows.values() if erased.has(row)])
        # Two processes that rewrite a part concurrently would restore what the other removes.
        async with claim(self._store, _LOCK, _no_result, _LOCK_WAIT):
            for group in _groups(await self._parts() or []):
                for part, rows in zip(group, await self._read_rows(group, lambda _: True), strict=True):
                    if any(erased.has(row) for row in rows):
                        await self._rewrite(part, [row for row in rows if not erased.has(row)])

    async def _rewrite(self, part: _Part, rows: Sequence[RequestRow]) -> None:
        """Store a part with only these of its requests."""
        if not rows:
            await self._remove(part)
            return
        (value,) = await self._store.get_many([_details_key(part.id)])
        details = (await asyncio.to_thread(self._open_details, [part.id], [value]))[part.id]
        await self._put(part.id, rows, {row.id: details[row.id] for row in rows if row.id in details})


async def _no_result() -> None:
    """Return None: every process rewrites the parts for itself."""


def _groups(parts: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """Yield groups of parts that are read in one round trip."""
    return (parts[at : at + _READ] for at in range(0, len(parts), _READ))


def make_row(event: RequestEnded) -> RequestRow:
    """Return the searchable figures of a tenant's request."""
    return RequestRow(
        event.id,
        event.at,
        event.ms,
        event.status,
        event.tenant or "",
        event.session or "",
        event.label or "",
        event.compaction or "",
    )


def _part_of(id_: str, rows: Sequence[RequestRow]) -> _Part:
    moments = [int(_MS * row.at) for row in rows]
    return _Part(max(moments), min(moments), len(rows), id_)


def _read_name(name: str) -> _Part | None:
    last_ms, first_ms, number, id_ = [*name.split("-"), "", "", ""][:4]
    try:
        return _Part(int(last_ms, 16), int(first_ms, 16), int(number, 16), id_)
    except ValueError:
        return None


def _time_of(note: bytes | None) -> float:
    """Return when a session was erased, in Unix seconds. Release 0.2.0 did not store the time."""
    try:
        return float(note) if note else -math.inf
    except ValueError:
        return -math.inf


def _rows_key(part: str) -> str:
    return f"figures:requests:rows:{part}"


def _details_key(part: str) -> str:
    return f"figures:requests:details:{part}"
