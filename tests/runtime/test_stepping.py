"""Coroutines that run straight on until they wait, and go on as tasks from there."""

from __future__ import annotations

import asyncio

import pytest

from proxy.runtime.stepping import start
from tests.support.upstreams import TWO_WAYS, backends

pytestmark = pytest.mark.anyio

anyio_backend = backends(TWO_WAYS)


async def test_what_waits_for_nothing_ends_at_once_and_needs_no_task() -> None:
    seen: list[object] = []

    async def work() -> None:
        seen.append(asyncio.current_task() is outer)

    outer = asyncio.current_task()
    assert start(work(), asyncio.get_running_loop()) is None
    assert seen == [True]


async def test_what_waits_goes_on_as_a_task_with_what_it_waited_for() -> None:
    loop, seen = asyncio.get_running_loop(), list[object]()
    first, second = loop.create_future(), loop.create_future()

    async def work() -> None:
        seen.append(await first)
        seen.append(await second)

    task = start(work(), loop)
    assert task is not None
    first.set_result(1)
    await asyncio.sleep(0)
    second.set_result(2)
    await task
    assert seen == [1, 2]


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_a_cancellation_reaches_what_it_waits_in(turns: int) -> None:
    """Before the task has taken its first step, too."""
    loop, seen = asyncio.get_running_loop(), list[str]()

    async def work() -> None:
        try:
            await loop.create_future()
        except asyncio.CancelledError:
            seen.append("cancelled")
            await asyncio.sleep(0)
            seen.append("ended in order")

    task = start(work(), loop)
    assert task is not None
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert seen == ["cancelled", "ended in order"]


async def test_an_error_that_is_waited_for_is_raised_where_it_waits() -> None:
    loop, seen = asyncio.get_running_loop(), list[str]()
    failing = loop.create_future()

    async def work() -> None:
        try:
            await failing
        except KeyError as error:
            seen.append(str(error))

    task = start(work(), loop)
    assert task is not None
    failing.set_exception(KeyError("it"))
    await task
    assert seen == ["'it'"]
