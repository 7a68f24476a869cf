"""Trails of all processes over one store: those that were killed, those that began anew, and what an erasure leaves."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

import pytest

from policies.chain import LINK_BYTES, Chain, mark_of, name_of
from proxy.memory import Memory
from proxy.observing import figures
from proxy.observing.events import PromptComposed
from proxy.observing.message_fates import MOST, SentMessage, pack
from proxy.observing.session_trails import Key, SessionTrail, SessionTrails, TrailView
from proxy.records.index import Target
from proxy.records.kept_trails import ITEMS, KeptTrails
from proxy.records.sessions import Sessions
from proxy.stores import CircuitBreaker, Sealer, StoreError, open_store
from proxy.stores.base import RefusedError
from proxy.stores.memory import MemoryStore
from proxy.stores.sealing import SealedStore
from tests.support.clock import Clock
from tests.support.pages import page_of
from tests.support.session_events import AT, compacted, requested

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from proxy.stores.base import OpenedStore

# The processes here learn of an erasure when the test says so.
pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_replica")]

TTL = 600.0
SEALER = Sealer(b"0123456789abcdef")
FIRST = bytes(range(LINK_BYTES))
ID = name_of(FIRST)
LABEL = "the deploy"


class Owner(NamedTuple):
    index: str = "index:somebody"
    labels: bytes = b"key of labels"


OWNER = Owner()
MARK = mark_of(OWNER.labels, LABEL)


class Failing(MemoryStore):
    """Does nothing while it is `down`, and adds nothing while it is `full`."""

    down = full = False

    async def items(self, key: str, added: Sequence[bytes] = (), *, limit: int = 0, ttl: float = 0) -> list[bytes]:
        self._check()
        if self.full and added:
            raise RefusedError("full")
        return await super().items(key, added, limit=limit, ttl=ttl)

    def _check(self) -> None:
        if self.down:
            raise StoreError("down")


class Process:
    """One that serves, over a store that it shares."""

    def __init__(self, store: OpenedStore, clock: Clock, run: str) -> None:
        guarded = CircuitBreaker(store, clock)
        self.trails, self.run = SessionTrails(), run
        self.sessions = Sessions(SealedStore(guarded, SEALER, TTL), Memory(), clock, clock)
        self.erasures = self.sessions.erasures
        self.kept = KeptTrails(self.trails, self.sessions, lambda _: OWNER, run)

    async def serves(self, number: int = 1, *, is_listed: bool = True, **changes: object) -> None:
        if is_listed:
            link = await self.erasures.link(FIRST + MARK)
            await self.sessions.add(OWNER, Chain(b"", (), MARK, first=FIRST, link=link), LABEL, "m", None)
        for _ in range(number):
            told = {"session": ID, "label": LABEL, "tokens_received": 10, "tokens_sent": 4, "billed": 4, **changes}
            self.trails(requested(**told))

    @property
    def trail(self) -> SessionTrail | None:
        return next(iter(self.trails.of("default", ID)), None)

    async def sees(self) -> TrailView | None:
        return await self.kept.view(Key("default", ID, LABEL), self.trail, FIRST + MARK)

    async def counts(self) -> tuple[int, int]:
        """Requests and points."""
        seen = await self.sees()
        assert seen is not None
        return seen.tally.requests, len(seen.points)


def composed(at: float) -> PromptComposed:
    messages = [SentMessage(number, "tool", f"tool {number % 300}", 99, "cooled", 9) for number in range(MOST)]
    return PromptComposed(
        at=at, tenant="default", session=ID, label=LABEL, tools=1, head=2, record=3, cooled=4, results=5,
        conversation=6, window=8_000, usable=7_000, soft=4_000, due=5_000, messages=pack(messages),
    )  # fmt: skip


class World:
    """A store, a clock, and processes that begin and end."""

    def __init__(self, store: OpenedStore) -> None:
        self.clock, self.store = Clock(AT), store
        self._runs = 0

    def process(self) -> Process:
        self._runs += 1
        return Process(self.store, self.clock, f"{self._runs:016x}")


@pytest.fixture
def world() -> World:
    return World(Failing(clock=lambda: AT))


@pytest.fixture(params=["memory", "sqlite", "valkey"])
async def shared(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    urls = {"memory": lambda: "memory://", "sqlite": lambda: f"sqlite:///{tmp_path}/s.db"}
    url = urls.get(request.param, lambda: request.getfixturevalue("valkey_url"))()
    store = open_store(url, 1.0)
    yield World(store)
    await store.close()


async def test_two_processes_tell_the_same_of_a_session_that_both_served(shared: World) -> None:
    one, two = shared.process(), shared.process()
    await one.serves(40, at=AT)
    await two.serves(30, at=AT + 60, tokens_received=1_000)
    two.trails(compacted(session=ID, label=LABEL))
    await one.kept.write()
    await two.kept.write()
    for each in (one, two, shared.process()):
        assert await each.counts() == (70, 70)
        seen = await each.sees()
        assert seen is not None
        assert (seen.began, seen.newest.at, seen.newest.received, seen.is_whole) == (AT, AT + 60, 1_000, True)
        assert [point.number for point in seen.points] == [*range(1, 71)]
        assert (seen.made, seen.usd, figures.summaries(seen.tally)) == (1, 0.02, 4_300)
        assert figures.not_sent(seen.tally) == 40 * 6 + 30 * 996


async def test_a_restart_goes_on_counting(world: World) -> None:
    for number in range(1, 4):
        process = world.process()
        await process.serves(10)
        await process.kept.write()
        await process.kept.write()
        assert await process.counts() == (10 * number, 10 * number)


async def test_points_of_before_a_session_was_listed_come_along(world: World) -> None:
    one = world.process()
    await one.serves(100, is_listed=False)
    await one.kept.write()
    assert await world.process().sees() is None
    await one.serves()
    await one.kept.write()
    assert await world.process().counts() == (101, 101)


async def test_a_full_list_loses_points_and_no_sum(world: World) -> None:
    short, long, other = world.process(), world.process(), world.process()
    await short.serves(7, tokens_received=100)
    await short.kept.write()
    for number in range(3 * ITEMS):
        process = long if number % 2 else other
        await process.serves()
        await process.kept.write()
    fresh = world.process()
    requests, points = await fresh.counts()
    assert (requests, points) == (7 + 3 * ITEMS, ITEMS)
    seen = await fresh.sees()
    assert seen is not None
    assert figures.not_sent(seen.tally) == 7 * 96 + 3 * ITEMS * 6
    assert (seen.points[0].number, seen.points[-1].number) == (requests - points + 1, requests)


async def test_what_a_process_has_forgotten_of_a_session_still_counts(world: World) -> None:
    one = world.process()
    await one.serves(5)
    await one.kept.write()
    one.trails._trails.clear()
    await one.serves(3)
    await one.kept.write()
    assert await one.counts() == await world.process().counts() == (8, 8)


async def test_a_session_that_waits_to_be_written_is_not_forgotten_for_newer_ones(world: World) -> None:
    one = world.process()
    await one.serves(2)
    await one.kept.write(least=5)
    for number in range(400):
        one.trails(requested(session=f"{number:016x}"))
    assert one.trail is None
    await one.serves()
    await one.kept.write()
    assert await world.process().counts() == (3, 3)


async def test_points_are_written_once_there_are_many_or_after_a_minute(world: World) -> None:
    one = world.process()
    await one.serves(31)
    await one.kept.look()
    assert await world.process().sees() is None
    await one.serves(1)
    await one.kept.look()
    assert await world.process().counts() == (32, 32)
    await one.serves(1)
    for _ in range(9):
        await one.kept.look()
    assert await world.process().counts() == (32, 32)
    await one.kept.look()
    assert await world.process().counts() == (33, 33)


async def test_without_the_store_a_process_tells_its_own_and_says_so(world: World) -> None:
    one, two = world.process(), world.process()
    await one.serves(3)
    await one.kept.write()
    await two.serves(2)
    world.store.down = True  # type: ignore[attr-defined]
    await two.kept.write()
    seen = await two.sees()
    assert seen is not None
    assert (seen.tally.requests, len(seen.points), seen.is_whole) == (2, 2, False)
    world.store.down = False  # type: ignore[attr-defined]
    world.clock.now += 5
    await two.kept.write()
    assert await two.counts() == await one.counts() == (5, 5)


async def test_what_the_store_refuses_is_written_again(world: World) -> None:
    one = world.process()
    await one.serves(3)
    world.store.full = True  # type: ignore[attr-defined]
    await one.kept.write()
    world.store.full = False  # type: ignore[attr-defined]
    world.clock.now += 5
    await one.kept.write()
    assert await world.process().counts() == (3, 3)


async def test_what_is_not_yet_written_is_told_in_its_order_by_the_process_that_knows_it(world: World) -> None:
    one, two = world.process(), world.process()
    for number in range(10):
        await (one if number % 2 else two).serves(at=AT + number / 100, messages=number)
        await two.kept.write()
    assert await one.counts() == (10, 10)
    assert await two.counts() == (5, 5)
    seen = await one.sees()
    assert seen is not None
    assert [point.messages for point in seen.points] == [*range(10)]


async def test_what_a_prompt_consisted_of_is_told_everywhere_as_it_was_last_told(world: World) -> None:
    one, two = world.process(), world.process()
    for number, process in enumerate((one, two)):
        process.trails(composed(AT + number))
        await process.serves()
        await process.kept.write()
    two.trails(composed(AT + 2))
    for process, at in ((one, 1), (two, 2), (world.process(), 1)):
        seen = await process.sees()
        assert seen is not None
        assert seen.prompt == composed(AT + at)
    await one.sessions.erase(OWNER, page_of(Target(FIRST, MARK)))
    assert not [key for key in world.store._entries if key.startswith("trail:")]  # type: ignore[attr-defined]


async def test_of_an_erased_session_nothing_is_left_anywhere(world: World) -> None:
    one, two = world.process(), world.process()
    for each in (one, two):
        await each.serves(40)
        await each.kept.write()
    await one.sessions.erase(OWNER, page_of(Target(FIRST, MARK)))
    assert not [key for key in world.store._entries if key.startswith("trail:")]  # type: ignore[attr-defined]
    assert await two.erasures.look_after()
    assert await two.kept.forget_erased() == [Key("default", ID, LABEL)]
    assert two.trail is None
    assert await world.process().sees() is None
    await two.serves(1)
    await two.kept.write()
    assert await world.process().counts() == (1, 1)


async def test_what_was_not_written_when_a_session_was_erased_never_is(world: World) -> None:
    one, two = world.process(), world.process()
    await two.serves(40)
    await two.kept.write(least=50)
    await one.sessions.erase(OWNER, page_of(Target(FIRST, None)))
    await two.kept.write()
    assert two.trail is None
    assert await world.process().sees() is None


async def test_the_fullest_list_keeps_within_its_bound_whatever_is_counted(world: World) -> None:
    numbers, processes = random.Random(7), [world.process() for _ in range(40)]
    for number in range(4 * ITEMS):
        process = processes[number % 40]
        for _ in range(32):
            await process.serves(
                at=AT + numbers.randrange(10_000_000),
                tokens_received=numbers.randrange(2**32),
                tokens_sent=numbers.randrange(2**32),
                messages=numbers.randrange(2**16),
                window=numbers.randrange(2**32),
                checkpoint=numbers.randbytes(8).hex(),
                cached=numbers.randrange(4),
                model=numbers.randbytes(128).hex(),
            )
        await process.kept.write()
    (trail,) = [entry.value for key, entry in world.store._entries.items() if key.startswith("trail:")]  # type: ignore[attr-defined]
    assert len(trail) <= 45_000
    assert (await world.process().counts())[0] == 4 * ITEMS * 32


async def test_what_is_kept_is_sealed_and_what_is_damaged_is_left_out(world: World) -> None:
    one = world.process()
    await one.serves(3, model="a secret model")
    await one.kept.write()
    (key,) = [key for key in world.store._entries if key.startswith("trail:")]  # type: ignore[attr-defined]
    assert b"secret" not in world.store._entries[key].value  # type: ignore[attr-defined]
    await world.store.items(key, [b"damaged"], limit=ITEMS, ttl=TTL)
    assert await world.process().counts() == (3, 3)


async def test_a_session_that_failed_is_known_to_every_process_until_a_day_is_over_or_it_is_erased(
    shared: World,
) -> None:
    one, two = shared.process(), shared.process()
    await one.serves(3)
    await one.kept.write()
    assert await two.sessions.newest_failures(OWNER, 9) == ([], True)
    for changes in ({"status": 502}, {"compaction": "failed-open"}):
        await one.serves(**changes)
        await one.serves()
        await one.kept.write()
        page = await two.sessions.newest_failures(OWNER, 9)
        assert [session.label for _, session in page.entries if session] == [LABEL]
    await one.sessions.erase(OWNER, page_of(Target(FIRST, MARK)))
    assert await two.sessions.newest_failures(OWNER, 9) == ([], True)


async def test_a_failure_that_the_store_did_not_take_is_noted_later(world: World) -> None:
    process = world.process()
    await process.serves(status=0)
    assert isinstance(world.store, Failing)
    world.store.down = True
    await process.kept.write()
    world.store.down = False
    world.clock.now += 5
    await process.kept.write()
    assert len((await process.sessions.newest_failures(OWNER, 9)).entries) == 1
