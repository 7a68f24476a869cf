"""The circuit breaker around the store, by a store that breaks to order and a clock the test sets."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from proxy.sessions.stores import CircuitBreaker
from proxy.sessions.stores.base import RefusedError, StoreError
from proxy.sessions.stores.breaker import LONGEST_PAUSE, STEADY, for_page
from proxy.sessions.stores.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.anyio

TTL = 600.0


class Broken(MemoryStore):
    """A store that does as `error` says, when `gate` opens."""

    def __init__(self) -> None:
        super().__init__()
        self.error: StoreError | None = StoreError("out of order")
        self.gate = asyncio.Event()
        self.gate.set()
        self.calls = 0

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        self.calls += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return await super().get_many(keys)


class Guarded:
    """A guarded broken store, with a clock to set and a list of what was reported."""

    def __init__(self) -> None:
        self.now = 0.0
        self.changes: list[tuple[bool, str]] = []
        self.broken = Broken()
        self.store = CircuitBreaker(self.broken, lambda: self.now)
        self.store.on_change = lambda available, reason: self.changes.append((available, reason))


async def test_answers_new_calls_at_once_while_older_ones_still_wait() -> None:
    guarded = Guarded()
    guarded.broken.gate.clear()
    waiting = [asyncio.create_task(guarded.store.get_many(["key"])) for _ in range(200)]
    await asyncio.sleep(0)
    guarded.broken.gate.set()
    await waiting[0]
    guarded.broken.gate.clear()
    assert await guarded.store.get_many(["key"]) == [None]  # the gate is shut: it was not asked
    assert await asyncio.gather(*waiting) == [[None]] * 200
    assert guarded.broken.calls == 200
    assert guarded.changes == [(False, "out of order")]


async def fifty(store: CircuitBreaker) -> list[list[bytes | None]]:
    return await asyncio.wait_for(asyncio.gather(*(store.get_many(["key"]) for _ in range(50))), 30)


async def test_lets_one_probe_through_and_trusts_its_outcome() -> None:
    guarded = Guarded()
    await guarded.store.get_many(["key"])
    guarded.now = 1.0
    guarded.broken.gate.clear()
    probe = asyncio.create_task(guarded.store.get_many(["key"]))
    await asyncio.sleep(0)
    assert await fifty(guarded.store) == [[None]] * 50
    guarded.broken.gate.set()
    await probe
    assert guarded.broken.calls == 2
    guarded.now = 1.9
    await guarded.store.get_many(["key"])
    assert guarded.broken.calls == 2
    guarded.now, guarded.broken.error = 2.0, None
    assert not guarded.store.available
    await guarded.store.get_many(["key"])
    assert guarded.store.available
    await fifty(guarded.store)
    assert guarded.broken.calls == 53
    assert guarded.changes == [(False, "out of order"), (True, "the store responds again")]
    assert guarded.store.errors == {"get_many": 2}


async def test_probes_again_when_the_prober_was_cancelled() -> None:
    guarded = Guarded()
    await guarded.store.get_many(["key"])
    guarded.now, guarded.broken.error = 1.0, None
    guarded.broken.gate.clear()
    probe = asyncio.create_task(guarded.store.get_many(["key"]))
    await asyncio.sleep(0)
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    guarded.broken.gate.set()
    await guarded.store.get_many(["key"])
    assert guarded.store.available


@pytest.mark.parametrize("error", [StoreError("no answer within 0.25 s"), RefusedError("not allowed")])
async def test_what_fails_for_a_page_is_no_failure_for_requests(error: StoreError) -> None:
    guarded = Guarded()
    guarded.broken.error = error
    for _ in range(3):
        with for_page():
            assert guarded.store.available
            assert await guarded.store.get_many(["key"]) == [None]
            assert not guarded.store.available, "for this page"
    assert guarded.store.available
    guarded.broken.error = None
    await guarded.store.get_many(["key"])
    assert guarded.broken.calls == 4
    assert (guarded.changes, guarded.store.errors) == ([], {"get_many": 3})


async def test_a_page_does_not_try_what_the_store_refuses() -> None:
    guarded = Guarded()
    guarded.broken.error = RefusedError("not allowed")
    await guarded.store.get_many(["key"])
    guarded.now = 1.0
    with for_page():
        assert await guarded.store.get_many(["key"]) == [None]
    assert guarded.broken.calls == 1
    guarded.broken.error = None
    await guarded.store.get_many(["key"])
    assert guarded.store.available


async def test_a_page_does_not_probe_a_store_that_is_down() -> None:
    guarded = Guarded()
    await guarded.store.get_many(["key"])
    guarded.now = 1.0
    with for_page():
        assert await guarded.store.get_many(["key"]) == [None]
    assert guarded.broken.calls == 1
    guarded.broken.error = None
    await guarded.store.get_many(["key"])
    assert guarded.store.available


async def test_counts_a_refused_entry_but_goes_on() -> None:
    guarded = Guarded()
    guarded.broken.error = None
    assert await guarded.store.put("key", b"v" * 300_000, TTL, only_new=True) is None
    assert guarded.store.available
    assert guarded.store.errors == {"put_new": 1}
    assert guarded.changes == []


async def test_takes_neither_a_refused_entry_nor_an_empty_question_for_a_sign_of_life() -> None:
    guarded = Guarded()
    await guarded.store.get_many(["key"])
    guarded.now = 1.0
    await guarded.store.put("key", b"v" * 300_000, TTL, only_new=True)
    assert await guarded.store.get_many([]) == []
    await guarded.store.touch([], TTL)
    assert not guarded.store.available


async def test_passes_on_what_a_working_store_says() -> None:
    store = CircuitBreaker(MemoryStore(), time.monotonic)
    assert await store.put("key", b"v", TTL, only_new=True) is None
    assert await store.put("key", b"w", TTL, only_new=True) == b"v"
    await store.touch(["key"], TTL)
    assert await store.get_many(["key", "other"]) == [b"v", None]
    assert await store.lock("lock", "mine", TTL)
    assert not await store.lock("lock", "theirs", TTL)
    await store.lock("lock", "mine", 0)
    assert await store.lock("lock", "theirs", TTL)
    await store.close()


class Full(MemoryStore):
    """A store that takes nothing new while `error` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.error: StoreError | None = RefusedError("OOM")
        self.asked = 0

    async def put(self, key: str, value: bytes, ttl: float, *, only_new: bool = False) -> bytes | None:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return await super().put(key, value, ttl, only_new=only_new)


class GuardedFull(Guarded):
    def __init__(self) -> None:
        super().__init__()
        self.full = Full()
        self.store = CircuitBreaker(self.full, lambda: self.now)
        self.store.on_change = lambda available, reason: self.changes.append((available, reason))


async def test_goes_on_with_what_is_not_refused_and_says_once_that_something_is() -> None:
    guarded = GuardedFull()
    await MemoryStore.put(guarded.full, "other", b"v", TTL, only_new=True)
    for second in range(5):
        guarded.now = float(second)
        for _ in range(3):
            await asyncio.gather(*(guarded.store.put("key", b"v", TTL, only_new=True) for _ in range(10)))
            await guarded.store.touch(["other"], TTL)
            assert await guarded.store.get_many(["key", "other"]) == [None, b"v"]
    assert guarded.full.asked == 5  # once a pause
    assert guarded.changes == [(False, "OOM")]
    assert not guarded.store.available
    guarded.now, guarded.full.error = 5.0, None
    assert await guarded.store.put("key", b"v", TTL, only_new=True) is None
    assert await guarded.store.put("key", b"w", TTL, only_new=True) == b"v"
    assert guarded.changes == [(False, "OOM"), (True, "the store accepts all operations again")]
    assert guarded.store.available


async def test_takes_a_refusal_for_an_answer_when_it_probes() -> None:
    guarded = GuardedFull()
    guarded.full.error = StoreError("out of order")
    await guarded.store.put("key", b"v", TTL, only_new=True)
    guarded.now, guarded.full.error = 1.0, RefusedError("OOM")
    await guarded.store.put("key", b"v", TTL, only_new=True)
    assert guarded.changes == [(False, "out of order"), (True, "the store responds again"), (False, "OOM")]
    await MemoryStore.put(guarded.full, "other", b"v", TTL, only_new=True)
    assert await guarded.store.get_many(["other"]) == [b"v"]


async def test_rests_longer_when_it_keeps_falling_over_but_never_five_seconds() -> None:
    guarded = Guarded()
    pauses = []
    for _ in range(6):
        guarded.broken.error = StoreError("out of order")
        await guarded.store.get_many(["key"])
        fell, calls = guarded.now, guarded.broken.calls
        guarded.broken.error = None
        while guarded.broken.calls == calls:
            guarded.now += 0.5
            await guarded.store.get_many(["key"])
        pauses.append(guarded.now - fell)
    assert pauses == [1, 2, 4, 4, 4, 4]
    assert LONGEST_PAUSE < 5
    assert len(guarded.changes) == 2 * 6
    guarded.now += STEADY
    guarded.broken.error = StoreError("out of order")
    await guarded.store.get_many(["key"])
    guarded.now, guarded.broken.error = guarded.now + 1, None
    await guarded.store.get_many(["key"])
    assert guarded.store.available


async def test_is_not_taken_down_again_by_what_began_before_it_recovered() -> None:
    guarded = Guarded()
    guarded.broken.gate.clear()
    slow = [asyncio.create_task(guarded.store.get_many(["key"])) for _ in range(3)]
    await asyncio.sleep(0)
    guarded.broken.gate, held = asyncio.Event(), guarded.broken.gate
    guarded.broken.gate.set()
    await guarded.store.get_many(["key"])
    guarded.now, guarded.broken.error = 1.0, None
    await guarded.store.get_many(["key"])
    assert guarded.store.available
    guarded.broken.error = StoreError("too late")
    held.set()
    assert await asyncio.gather(*slow) == [[None]] * 3
    assert guarded.store.available
    assert [available for available, _ in guarded.changes] == [False, True]


async def test_is_not_kept_down_longer_by_what_began_before_it_fell_over() -> None:
    guarded = Guarded()
    guarded.broken.gate.clear()
    slow = asyncio.create_task(guarded.store.get_many(["key"]))
    await asyncio.sleep(0)
    guarded.broken.gate, held = asyncio.Event(), guarded.broken.gate
    guarded.broken.gate.set()
    await guarded.store.get_many(["key"])
    guarded.now = 0.9
    held.set()
    await slow
    guarded.now, guarded.broken.error = 1.0, None
    await guarded.store.get_many(["key"])
    assert guarded.store.available


class Unclosable(MemoryStore):
    async def close(self) -> None:
        raise StoreError("out of order")


async def test_closing_a_broken_store_is_counted_and_no_error() -> None:
    store = CircuitBreaker(Unclosable(), time.monotonic)
    await store.close()
    assert store.errors == {"close": 1}


def probing(store: CircuitBreaker) -> asyncio.Task[object]:
    """The probe that goes on by itself."""
    assert store._probe is not None
    return store._probe


async def test_nobody_waits_for_a_probe_that_a_frozen_store_does_not_answer() -> None:
    guarded = Guarded()
    await guarded.store.get_many(["key"])
    guarded.now, guarded.broken.error = 1.0, None
    guarded.broken.gate.clear()
    assert await asyncio.wait_for(guarded.store.get_many(["key"]), 30) == [None]  # the gate is shut
    assert await fifty(guarded.store) == [[None]] * 50
    assert guarded.broken.calls == 2  # it still asks, and asks alone
    guarded.broken.gate.set()
    await probing(guarded.store)
    assert guarded.changes == [(False, "out of order"), (True, "the store responds again")]


async def test_a_probe_that_goes_on_alone_fails_as_any_other_and_ends_with_the_store() -> None:
    guarded = Guarded()
    await guarded.store.get_many(["key"])
    guarded.now = 1.0
    guarded.broken.gate.clear()
    await guarded.store.get_many(["key"])
    guarded.broken.gate.set()
    await probing(guarded.store)
    assert (guarded.store.errors, guarded.store.available) == ({"get_many": 2}, False)
    guarded.now = 2.0
    guarded.broken.gate.clear()
    await guarded.store.get_many(["key"])
    probe = probing(guarded.store)
    await guarded.store.close()
    await asyncio.wait({probe})
    assert probe.cancelled()
