"""Stored requests of all processes: searched, bounded, erased with their sessions, and when the store is down."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import NamedTuple

import pytest

from policies.conversation.prefix_digests import mark_of
from proxy.sessions import kept_requests
from proxy.sessions.index import erased_at
from proxy.sessions.kept_requests import ErasedSessions, KeptRequests, Place, RequestRow, UnsavedRequests
from proxy.sessions.stores import CircuitBreaker, Sealer
from proxy.sessions.stores.base import MAX_VALUE_BYTES
from proxy.sessions.stores.sealing import SealedStore
from proxy.telemetry.upstream_failures import MOST_TEXT, UpstreamFailures
from tests.support.clock import Clock
from tests.support.failing_store import Failing
from tests.support.session_events import requested

pytestmark = pytest.mark.anyio


NOON, DAY = 1_800_014_400.0, 86_400.0
TTL = 35 * DAY


class Owner(NamedTuple):
    index: str
    labels: bytes


class Process(NamedTuple):
    """A process that stores its requests."""

    unsaved: UnsavedRequests
    failures: UpstreamFailures
    kept: KeptRequests

    async def serve(self, *ids: str, **fields: object) -> None:
        for id_ in ids:
            self.unsaved(requested(id=id_, **fields))
        await self.kept.write()


class World:
    """A store, a clock, and processes that begin and end."""

    def __init__(self) -> None:
        self.clock = Clock(NOON)
        self.store = Failing(clock=self.clock)
        self.owners = {tenant: Owner(f"index:{tenant}", tenant.encode() * 8) for tenant in ("default", "acme")}

    def process(self, name: str = "host:1") -> Process:
        breaker, unsaved, failures = CircuitBreaker(self.store, self.clock), UnsavedRequests(), UpstreamFailures()
        sealed = SealedStore(breaker, Sealer(b"0123456789abcdef"), TTL)
        kept = KeptRequests(unsaved, failures, sealed, name, self.owners.get, self.clock, lambda: breaker.available)
        return Process(unsaved, failures, kept)

    def kinds(self) -> Counter[str]:
        return Counter(
            key.rpartition(":")[0]
            for key, entry in self.store._entries.items()
            if entry.expires > self.clock.now and entry.value
        )


@pytest.fixture
def world() -> World:
    return World()


def every(_: RequestRow) -> bool:
    return True


async def ids(process: Process, limit: int = 1_000) -> list[str]:
    return [each.event.id for each in (await process.kept.search(every, limit=limit)).requests]


async def test_every_process_finds_the_requests_of_all_the_newest_first(world: World) -> None:
    one, two = world.process("one"), world.process("two")
    for number in range(6):
        await (one, two)[number % 2].serve(f"{number}", at=NOON + number)
    assert await ids(one) == await ids(two) == await ids(world.process()) == ["5", "4", "3", "2", "1", "0"]
    found = await two.kept.find("2")
    assert found is not None
    assert (found.event, found.replica, found.failure) == (requested(id="2", at=NOON + 2), "one", None)
    assert await two.kept.find("6") is None


async def test_pages_hold_every_request_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_requests, "_MOST_OF_PART", 7)
    monkeypatch.setattr(kept_requests, "_READ", 2)
    processes = [world.process(), world.process()]
    for number in range(100):
        await processes[number % 3 % 2].serve(f"{number:03}", at=NOON + number // 4)
    found: list[str] = []
    before: Place | None = None
    while True:
        page = await processes[0].kept.search(every, limit=9, before=before)
        found += [each.event.id for each in page.requests]
        if page.is_last:
            break
        before = Place(page.requests[-1].event.at, page.requests[-1].event.id)
    assert found == [f"{number:03}" for number in reversed(range(100))]


async def test_a_search_reads_no_more_parts_than_it_needs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_requests, "_MOST_OF_PART", 10)
    monkeypatch.setattr(kept_requests, "_READ", 1)
    process = world.process()
    await process.serve(*(f"{number:03}" for number in range(100)), at=NOON)
    for number in range(100):
        process.unsaved(requested(id=f"b{number:03}", at=NOON + 60 + number))
    await process.kept.write()
    read = Counter[str]()
    get_many = world.store.get_many

    async def counted(keys: list[str]) -> list[bytes | None]:
        read.update(key.rpartition(":")[0] for key in keys)
        return await get_many(keys)

    monkeypatch.setattr(world.store, "get_many", counted)
    newest = await process.kept.search(every, limit=5)
    assert [each.event.id for each in newest.requests] == [f"b{number:03}" for number in range(99, 94, -1)]
    assert read["figures:requests:rows"] <= 2
    read.clear()
    between = await process.kept.search(every, limit=100, since=NOON + 70, until=NOON + 75)
    assert len(between.requests) == 6
    assert read["figures:requests:rows"] <= 2


async def test_the_store_never_keeps_more_requests_than_it_may(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_requests, "MOST_REQUESTS", 100)
    monkeypatch.setattr(kept_requests, "_MOST_OF_PART", 10)
    one, two = world.process(), world.process()
    for number in range(500):
        await (one, two)[number % 2].serve(f"{number:03}", at=NOON + number)
        assert world.kinds()["figures:requests:rows"] <= 11
        world.clock.now += 1
    found = await ids(one)
    assert 80 <= len(found) <= 110
    assert found[:80] == [f"{number:03}" for number in range(499, 419, -1)]
    monkeypatch.setattr(kept_requests, "_MOST_PARTS", 4)
    for number in range(20):
        await world.process().serve(f"restart {number}", at=NOON + 500 + number)
    assert len(await ids(one)) <= 13


async def test_requests_are_kept_for_as_long_as_figures(world: World) -> None:
    process = world.process()
    await process.serve("oldest", at=NOON)
    world.clock.now += 100
    await process.serve("old", at=NOON + 100)  # in the same part
    world.clock.now += TTL - 50
    assert await ids(process) == ["old"]
    world.clock.now += 50 - DAY
    await process.serve("new", at=world.clock.now)
    assert await ids(process) == ["new", "old", "oldest"]
    world.clock.now += DAY + 101
    assert await ids(process) == ["new"]
    world.clock.now += TTL
    assert (await ids(process), +world.kinds()) == ([], {})


async def test_a_part_is_filled_over_several_writes(world: World) -> None:
    process = world.process()
    for number in range(20):
        await process.serve(f"{number:02}", at=NOON + number)
    assert world.kinds() == {"figures:requests:rows": 1, "figures:requests:details": 1}
    assert len(world.store._indexes["index:requests"]) == 1


async def test_while_the_store_is_down_requests_wait_and_the_oldest_of_too_many_are_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = world.process()
    world.store.down = True
    await process.serve("a", at=NOON)
    assert await process.kept.search(every, limit=9) == ([], True, False)
    await process.serve("b", at=NOON + 1)
    world.store.down = False
    world.clock.now += 5
    await process.kept.write()
    world.clock.now += 5
    await process.serve("c", at=NOON + 2)
    assert await ids(process) == ["c", "b", "a"]
    await process.serve(*(f"{number}" for number in range(6_000)), at=NOON + 3)
    assert len(await ids(process, 9_000)) == 5_003


async def test_a_request_of_no_tenant_is_not_stored(world: World) -> None:
    process = world.process()
    await process.serve("a", tenant=None, status=401)
    assert (await ids(process), +world.kinds()) == ([], {})


async def test_the_largest_requests_fit_into_an_entry_and_nothing_of_them_is_readable(world: World) -> None:
    process = world.process()
    process.failures.shows_content = lambda _: True
    for number in range(400):
        event = requested(id=f"{number}", label="a secret label", path="/" + secrets.token_hex(6_000))
        process.failures.hold(
            event, "http://upstream/v1", "".join(chr(1_000 + (number * i) % 9_000) for i in range(999))
        )
        process.unsaved(event)
    await process.kept.write()
    entries = [entry.value for entry in world.store._entries.values()]
    assert max(map(len, entries)) < MAX_VALUE_BYTES
    assert not any(b"secret" in value for value in entries)
    found = await process.kept.find("7")
    assert found is not None
    assert found.failure is not None
    assert len(found.failure.text) == MOST_TEXT
    assert len(await ids(process)) == 400


async def test_the_requests_of_an_erased_session_are_removed_from_what_all_processes_stored(world: World) -> None:
    one, two, gone = world.process(), world.process(), world.process()
    for process, name in ((one, "one"), (two, "two"), (gone, "gone")):
        await process.serve(f"{name} erased", session="a" * 16, label="x")
        await process.serve(f"{name} other label", session="a" * 16, label="y")
        await process.serve(f"{name} other tenant", session="a" * 16, label="x", tenant="acme")
    one.unsaved(requested(id="unsaved", session="a" * 16, label="x"))
    await note_erasure(world, "a" * 16, "x")
    await one.kept.forget(ErasedSessions("default", lambda session, label: (session, label) == ("a" * 16, "x")))
    left = {f"{name} {which}" for name in ("one", "two", "gone") for which in ("other label", "other tenant")}
    assert {*await ids(two)} == left
    sealer = Sealer(b"0123456789abcdef")
    for process in (one, two):
        await process.serve("later", at=NOON + 60, session="a" * 16, label="x")
    stored = b"".join(
        sealer.open(key, entry.value) or b""
        for key, entry in world.store._entries.items()
        if key.startswith("figures:requests")
    )
    assert b"two other label" in stored
    assert b"erased" not in stored
    assert {*await ids(one)} == {*left, "later"}


async def test_a_part_without_requests_is_removed(world: World) -> None:
    process, other = world.process(), world.process()
    await process.serve("a", session="a" * 16)
    await other.kept.forget(ErasedSessions("default", lambda *_: True))
    assert (await ids(process), +world.kinds()) == ([], {})
    assert "index:requests" not in world.store._indexes


async def test_what_another_process_stores_of_a_session_after_its_erasure_is_not_shown(world: World) -> None:
    one, two = world.process(), world.process()
    await two.serve("before", session="a" * 16, label="x", at=NOON)
    await note_erasure(world, "a" * 16, "x")
    assert await ids(one) == []
    world.clock.now += 10
    await two.serve("after", session="a" * 16, label="x", at=NOON + 10)
    assert await ids(one) == ["after"]


async def test_older_requests_are_found_behind_a_page_of_erased_ones(world: World) -> None:
    process = world.process()
    await process.serve("old", at=NOON - 60)
    await process.serve(*(f"{number:02}" for number in range(30)), session="a" * 16, label="x", at=NOON)
    await note_erasure(world, "a" * 16, "x")
    found = await world.process().kept.search(every, limit=10)
    assert ([each.event.id for each in found.requests], found.is_last) == (["old"], True)


async def note_erasure(world: World, session: str, label: str) -> None:
    """Note an erasure as `Sessions.erase` does."""
    owner = world.owners["default"]
    note = erased_at(owner, session, mark_of(owner.labels, label))
    await world.store.put(note, repr(world.clock.now).encode(), TTL)
