"""Sums of all processes over one store: those that are gone, those that began anew, and when it does not answer."""

from __future__ import annotations

import random

import pytest

from proxy.sessions.kept_figures import KeptFigures
from proxy.sessions.replicas import Replica, Replicas
from proxy.sessions.stores import CircuitBreaker, Sealer, StoreError
from proxy.sessions.stores.base import MAX_VALUE_BYTES
from proxy.sessions.stores.memory import MemoryStore
from proxy.sessions.stores.sealing import SealedStore
from proxy.telemetry.tally import DAY_HOURS, HOUR, MOST_ROWS, Hours, Tally
from tests.support.clock import Clock
from tests.support.failing_store import Failing

pytestmark = pytest.mark.anyio

NOON = 1_800_014_400.0
DAY = DAY_HOURS * HOUR
TTL = 35.0 * DAY
SEALER = Sealer(b"0123456789abcdef")


class World:
    """A store, a clock, and processes that begin and end."""

    def __init__(self) -> None:
        self.clock = Clock(NOON)
        self.kept = Failing(clock=self.clock)
        self._runs = 0

    def process(self) -> tuple[Hours, KeptFigures]:
        self._runs += 1
        store, hours = CircuitBreaker(self.kept, self.clock), Hours(self.clock)
        run = f"host:8795:{self._runs}"
        return hours, KeptFigures(hours, SealedStore(store, SEALER, TTL), run, self.clock, lambda: store.available)


@pytest.fixture
def world() -> World:
    return World()


async def requests(figures: KeptFigures, hours: int) -> int:
    return sum(tally.requests for tally in (await figures.last(hours)).of.values())


async def test_every_process_adds_up_all_of_them(world: World) -> None:
    (one, ours), (two, theirs) = world.process(), world.process()
    one.row("a", "m").requests += 3
    one.row("b", "m").requests += 5
    two.row("a", "m").requests += 7
    await theirs.write()
    assert (await ours.last(24)).of == {("a", "m"): Tally(requests=10), ("b", "m"): Tally(requests=5)}
    assert (await theirs.last(24)).of == {("a", "m"): Tally(requests=7)}  # not yet written
    await ours.write()
    assert await theirs.last(24) == await ours.last(24)
    assert (await ours.last(24)).is_whole


async def test_a_restart_goes_on_counting_and_writes_over_nothing(world: World) -> None:
    for number in range(1, 4):
        hours, figures = world.process()
        hours.row("a", "m").requests += 10
        await figures.write()
        await figures.write()
        assert await requests(figures, 24) == 10 * number


async def test_a_span_ends_at_its_first_hour_over_the_days(world: World) -> None:
    hours, figures = world.process()
    for _ in range(50):
        hours.row("a", "m").requests += 1
        await figures.write()
        world.clock.now += HOUR
    world.clock.now -= HOUR
    fresh = world.process()[1]
    for span in (1, 24, 30, 50, 24 * 30):
        assert await requests(fresh, span) == await requests(figures, span) == min(span, 50)


@pytest.mark.parametrize(("span", "step", "lengths"), [(6, 1, [1] * 6), (30, 24, [18, 12]), (1, 1, [1])])
async def test_a_span_is_told_in_parts_that_begin_where_clocks_say_so(
    world: World, span: int, step: int, lengths: list[int]
) -> None:
    world.clock.now -= world.clock.now % DAY + HOUR * 20  # four in the morning, the day before
    hours, figures = world.process()
    for _ in range(32):
        hours.row("a", "m").requests += 1
        world.clock.now += HOUR
    world.clock.now -= HOUR
    parts = (await figures.last(span, step)).parts
    assert [part["a", "m"].requests for _, part in sorted(parts.items())] == lengths
    assert all(at % step == 0 for at in parts)


async def test_without_the_store_a_process_tells_its_own_and_says_so(world: World) -> None:
    (one, ours), (two, theirs) = world.process(), world.process()
    one.row("a", "m").requests += 1
    two.row("a", "m").requests += 1
    await theirs.write()
    world.kept.down = True
    assert (await requests(ours, 24), (await ours.last(24)).is_whole) == (1, False)
    await ours.write()
    world.kept.down = False
    world.clock.now += 5
    await ours.write()
    assert await requests(theirs, 24) == 2
    assert (await requests(ours, 24), (await ours.last(24)).is_whole) == (2, True)


async def test_a_day_that_is_forgotten_while_others_are_written_is_left_out(world: World) -> None:
    hours, kept = world.process()
    hours.row("default", "m").requests += 1
    world.clock.now += DAY
    hours.row("default", "m").requests += 1
    put = world.kept.put

    async def put_late(key: str, value: bytes, ttl: float, *, only_new: bool = False) -> bytes | None:
        world.clock.now += 60 * DAY
        hours.row("default", "m").requests += 1
        return await put(key, value, ttl, only_new=only_new)

    world.kept.put = put_late  # type: ignore[method-assign]
    await kept.write()
    assert len(hours.days) == 1


async def test_what_is_kept_is_sealed_and_what_is_damaged_is_a_miss(world: World) -> None:
    hours, figures = world.process()
    hours.row("a secret tenant", "m").requests += 1
    await figures.write()
    (key,) = world.kept._entries
    assert b"tenant" not in world.kept._entries[key].value
    await world.kept.put(key, b"damaged", TTL)
    assert await requests(world.process()[1], 24) == 0


async def test_the_fullest_day_fits_into_an_entry(world: World) -> None:
    hours, figures = world.process()
    numbers = random.Random(7)
    for _ in range(24):
        for number in range(MOST_ROWS):
            row = hours.row(f"tenant {number % 9}", f"model {number}")
            for field in Tally.__struct_fields__:
                setattr(row, field, numbers.randrange(10_000_000))
        world.clock.now += HOUR
    world.clock.now = NOON
    await figures.write()
    assert len(world.kept._entries) == 2
    assert all(len(entry.value) < MAX_VALUE_BYTES for entry in world.kept._entries.values())


def replicas(store: MemoryStore, name: str, digest: str = "d") -> Replicas:
    told = Replica(name=name, version="1", started=NOON, digest=digest, in_flight=0, problems=0)
    return Replicas(SealedStore(store, SEALER, TTL), f"{name}:x", lambda: told)


async def test_replicas_are_listed_while_they_live(world: World) -> None:
    one, two, three = (replicas(world.kept, name) for name in ("one", "two", "three"))
    for each in (one, two, three):
        await each.beat()
    assert [each.name for each in await two.every()] == ["two", "one", "three"]
    await three.leave()
    world.clock.now += 50
    await two.beat()
    world.clock.now += 11
    assert [each.name for each in await two.every()] == ["two"]
    assert [each.name for each in await one.every()] == ["one", "two"]
    world.kept.down = True
    with pytest.raises(StoreError):
        await one.every()
