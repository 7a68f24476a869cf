"""Work that is done once for everybody who waits for it, and not at all when nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence

import pytest

from proxy.records.locks import Lock, SingleFlight, poll
from proxy.stores.memory import MemoryStore

pytestmark = pytest.mark.anyio


class Work:
    """Counts its starts and ends, and waits for its gate in between."""

    def __init__(self) -> None:
        self.started = 0
        self.cancelled = 0
        self.running = asyncio.Event()
        self.gate = asyncio.Event()
        self.cleaned = asyncio.Event()

    async def __call__(self) -> int:
        self.started += 1
        number = self.started
        self.running.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            await self.cleaned.wait()
            raise
        return number


def join(flights: SingleFlight[int], work: Work, key: str = "k") -> asyncio.Task[int]:
    return asyncio.create_task(flights.run(key, work))


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - it may hang on several things at once
            await asyncio.sleep(0)


async def test_two_hundred_who_ask_at_once_get_one_result() -> None:
    flights, work = SingleFlight[int](), Work()
    asking = [join(flights, work) for _ in range(200)]
    await work.running.wait()
    work.gate.set()
    assert await asyncio.gather(*asking) == [1] * 200
    assert work.started == 1


async def test_other_keys_are_other_work() -> None:
    flights, work = SingleFlight[int](), Work()
    work.gate.set()
    assert await asyncio.gather(join(flights, work, "a"), join(flights, work, "b")) == [1, 2]


async def test_who_asks_after_the_end_starts_anew() -> None:
    flights, work = SingleFlight[int](), Work()
    work.gate.set()
    assert [await flights.run("k", work), await flights.run("k", work)] == [1, 2]


async def test_work_goes_on_while_anybody_waits_for_it() -> None:
    flights, work = SingleFlight[int](), Work()
    first, second = join(flights, work), join(flights, work)
    await work.running.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    work.gate.set()
    assert await second == 1
    assert work.cancelled == 0


async def test_the_last_who_leaves_ends_the_work() -> None:
    flights, work = SingleFlight[int](), Work()
    work.cleaned.set()
    asking = [join(flights, work) for _ in range(3)]
    await work.running.wait()
    for task in asking:
        task.cancel()
    assert all(isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(*asking, return_exceptions=True))
    await until(lambda: work.cancelled == 1)


async def test_who_comes_while_abandoned_work_cleans_up_waits_for_that_and_starts_anew() -> None:
    flights, work = SingleFlight[int](), Work()
    leaving = join(flights, work)
    await work.running.wait()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    coming = [join(flights, work) for _ in range(3)]
    await until(lambda: work.cancelled == 1)
    assert work.started == 1
    work.cleaned.set()
    work.gate.set()
    assert await asyncio.gather(*coming) == [2] * 3


async def test_who_gives_up_waiting_for_a_cleanup_changes_nothing() -> None:
    flights, work = SingleFlight[int](), Work()
    leaving = join(flights, work)
    await work.running.wait()
    leaving.cancel()
    await until(lambda: work.cancelled == 1)
    impatient = join(flights, work)
    await asyncio.sleep(0)
    impatient.cancel()
    work.cleaned.set()
    work.gate.set()
    assert await join(flights, work) == 2
    assert impatient.cancelled()


async def test_an_error_reaches_everybody_unchanged_and_is_not_kept() -> None:
    flights = SingleFlight[int]()
    gate = asyncio.Event()

    async def fail() -> int:
        await gate.wait()
        raise LookupError("once")

    asking = [asyncio.create_task(flights.run("k", fail)) for _ in range(3)]
    gate.set()
    results = await asyncio.gather(*asking, return_exceptions=True)
    assert [str(error) for error in results if isinstance(error, LookupError)] == ["once"] * 3

    def succeed() -> Coroutine[None, None, int]:
        return asyncio.sleep(0, 7)

    assert await flights.run("k", succeed) == 7


async def test_polling_ends_with_the_first_that_is_found() -> None:
    found = iter([None, None, "there"])

    async def look() -> str | None:
        return next(found)

    assert await poll(look, 5.0, 0.0) == "there"


async def test_polling_gives_up() -> None:
    looked = 0

    async def look() -> None:
        nonlocal looked
        looked += 1

    assert await poll(look, 0.0, 0.0) is None
    assert looked <= 2


async def test_a_lock_is_renewed_while_its_work_lasts_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.records.locks.LOCK_SECONDS", 0.03)
    touched: list[list[str]] = []
    twice = asyncio.Event()

    class Store(MemoryStore):
        async def touch(self, keys: Sequence[str], ttl: float) -> None:
            assert ttl == 0.03
            touched.append(list(keys))
            if len(touched) == 2:
                twice.set()

    before = asyncio.all_tasks()
    async with Lock(Store(), "lock:k").renewing(), asyncio.timeout(30):
        await twice.wait()
    await until(lambda: asyncio.all_tasks() == before)
    assert set(map(tuple, touched)) == {("lock:k",)}


async def test_a_lock_is_let_go_of_where_its_work_fails() -> None:
    before = asyncio.all_tasks()
    with pytest.raises(ValueError, match="failed"):
        async with Lock(MemoryStore(), "lock:k").renewing():
            raise ValueError("failed")
    await until(lambda: asyncio.all_tasks() == before)
