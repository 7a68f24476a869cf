"""Locks in a store, and waiting for what another process does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from proxy.sessions.locks import Lock, poll
from proxy.sessions.stores.memory import MemoryStore

pytestmark = pytest.mark.anyio


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - it may hang on several things at once
            await asyncio.sleep(0)


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
    monkeypatch.setattr("proxy.sessions.locks.LOCK_SECONDS", 0.03)
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
