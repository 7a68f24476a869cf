"""What is to end ends, also where somebody's code loses a cancellation."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from proxy.callers.api_head import ApiHead
from proxy.compaction.prompt_builder import PromptBuilder
from proxy.errors import ShuttingDownError
from proxy.runtime import deadlines
from proxy.runtime.background import Background
from proxy.runtime.deadlines import end_tasks, repeat_every, within
from proxy.server.error_shape import JSONErrors
from proxy.server.exchange import ClientGoneError, Exchange
from proxy.sessions.locks import Lock, poll
from proxy.sessions.stores import open_store
from proxy.sessions.stores.memory import MemoryStore
from proxy.telemetry.log import open_log
from tests.support.stages import DUE, stage
from tests.support.upstreams import CHAT, JSON, Call, ask, delta, head, proxied

pytestmark = pytest.mark.anyio

STREAM = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": true}'
PATIENCE = 30.0


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancellation is repeated soon."""
    monkeypatch.setattr(deadlines, "REPEAT_S", 0.02)


async def losing(cancellations: int) -> None:
    """Waits for ever, and loses so many cancellations, as `asyncio.wait_for` of CPython 3.11 loses one."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not cancellations:
                raise
            cancellations -= 1


@pytest.mark.parametrize("lost", [0, 1, 3])
async def test_a_deadline_ends_what_loses_cancellations(lost: int) -> None:
    task = asyncio.current_task()
    assert task is not None
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(PATIENCE), within(0.01):
            await losing(lost)
    assert task.cancelling() == 0


async def test_a_deadline_that_is_kept_leaves_no_trace() -> None:
    task = asyncio.current_task()
    assert task is not None
    async with within(PATIENCE):
        await asyncio.sleep(0)
    async with within(None):
        await asyncio.sleep(0)
    with pytest.raises(ValueError, match="mine"):
        async with within(PATIENCE):
            raise ValueError("mine")
    assert task.cancelling() == 0


async def test_who_is_cancelled_inside_a_deadline_is_cancelled() -> None:
    begun = asyncio.Event()

    async def work() -> None:
        async with within(PATIENCE):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await begun.wait()
    task.cancel()
    await asyncio.wait((task,), timeout=PATIENCE)
    assert task.cancelled()


async def test_an_inner_deadline_is_no_outer_ones() -> None:
    async with within(PATIENCE):
        with pytest.raises(TimeoutError):
            async with within(0):
                await asyncio.Event().wait()


async def test_an_outer_deadline_passes_through_an_inner_one() -> None:
    async def inner() -> None:
        try:
            async with within(PATIENCE):
                await losing(2)
        except TimeoutError:
            pytest.fail("the inner one was not over")

    with pytest.raises(TimeoutError):
        async with within(0):
            await inner()


async def test_tasks_that_lose_cancellations_are_ended() -> None:
    tasks = [asyncio.create_task(losing(lost)) for lost in (0, 1, 2)]
    await asyncio.sleep(0)
    await end_tasks(tasks)
    assert all(task.cancelled() for task in tasks)


async def test_what_is_repeated_is_not_done_again_after_its_block() -> None:
    done = 0
    begun = asyncio.Event()

    async def work() -> None:
        nonlocal done
        done += 1
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return  # lost

    async with repeat_every(work, 0.0):
        await begun.wait()
    for _ in range(10):
        await asyncio.sleep(0)
    assert done == 1


async def test_a_lock_is_not_renewed_for_ever_where_a_cancellation_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    class Losing(MemoryStore):
        touched = 0
        begun = asyncio.Event()

        async def touch(self, keys: object, ttl: float) -> None:
            self.touched += 1
            self.begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return

    monkeypatch.setattr("proxy.sessions.locks.LOCK_SECONDS", 0.0)
    store = Losing()
    async with Lock(store, "lock:k").renewing():
        await store.begun.wait()
    for _ in range(10):
        await asyncio.sleep(0)
    assert store.touched == 1


async def test_polling_ends_by_the_clock_whatever_a_look_does() -> None:
    async def look() -> None:
        try:
            await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            return

    async with asyncio.timeout(PATIENCE):
        assert await poll(look, 0.02, 0.001) is None


async def test_polling_a_real_server_ends_for_everybody(valkey_url: str) -> None:
    """Of 300 who poll with a deadline, some 40 polled for ever on CPython 3.11: redis-py sent by `asyncio.wait_for`."""
    store = open_store(valkey_url, 5.0)
    chance = random.Random(1)

    async def look() -> None:
        await store.get_many(["cp:{a}:1"])

    async def polling() -> None:
        await poll(look, 0.3 + 0.3 * chance.random(), 0.01)

    tasks = [asyncio.create_task(polling()) for _ in range(300)]
    done, late = await asyncio.wait(tasks, timeout=2 * PATIENCE)
    await end_tasks(late)
    await store.close()
    assert (len(done), len(late)) == (300, 0)


async def test_cancelled_operations_on_a_real_server_end_at_once(valkey_url: str) -> None:
    """Those that lost their cancellation went on with what came next: polling, waiting, asking a model."""
    store = open_store(valkey_url, 5.0)
    went_on = 0

    async def work() -> None:
        nonlocal went_on
        while True:
            await store.get_many(["cp:{a}:1"])
            went_on += 1
            await asyncio.sleep(0)

    for delay in range(200):
        task = asyncio.create_task(work())
        for _ in range(delay % 40):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,), timeout=PATIENCE)
        assert task.cancelled(), f"after {delay % 40} turns of the loop"
    await store.close()
    assert went_on


async def test_nothing_of_the_store_waits_where_cancellations_get_lost(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object) -> None:
        pytest.fail("asyncio.wait_for was used")

    monkeypatch.setattr(asyncio, "wait_for", forbidden)
    store = open_store(valkey_url)
    assert await store.put("cp:{a}:1", b"v", 60, only_new=True) is None
    assert await store.get_many(["cp:{a}:1", "cp:{b}:1"]) == [b"v", None]
    assert await store.lock("lock:{a}", "t", 60)
    await store.lock("lock:{a}", "t", 0)
    await store.erase("a", b"m", 60)
    await store.close()


@pytest.mark.parametrize("lost", [0, 2])
@pytest.mark.parametrize("end", ["leaving", "drain"])
async def test_an_exchange_ends_also_where_its_work_loses_cancellations(lost: int, end: str) -> None:
    made: list[Exchange] = []

    async def work() -> None:
        made.append(exchange := Exchange(ApiHead("POST", "/", []), Mock(), Mock(), JSONErrors()))
        exchange.begin_work()
        try:
            await losing(lost)
        except asyncio.CancelledError:
            assert exchange.ended_by is not None
            raise exchange.ended_by from None
        finally:
            exchange.end_work()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    (exchange,) = made
    if end == "drain":
        exchange.end(ShuttingDownError())
        exchange.end(ClientGoneError())
    else:
        exchange.lose()
    with pytest.raises(ShuttingDownError if end == "drain" else ClientGoneError):
        async with asyncio.timeout(PATIENCE):
            await task
    assert task.cancelling() == 0


async def test_work_in_the_background_does_not_hold_up_the_end() -> None:
    background = Background(open_log("info", lambda: 0.0))
    background.start("follow_up", losing(3))
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE):
        await background.drain(0.0)


async def silent(call: Call) -> None:
    await call.read()
    await call.gone()


async def half(call: Call) -> None:
    await call.read()
    await call.send(head(200, (b"Content-Type", b"text/event-stream")), delta("a"))
    await call.gone()


async def test_a_request_has_a_deadline(tmp_path: Path) -> None:
    async with proxied(tmp_path, silent, server={"request_deadline": 0.2}) as (address, behind):
        reply = await ask(address, "POST", CHAT, [JSON], STREAM)
        assert (reply.status, reply.json()["error"]["code"]) == (504, "request_deadline")  # type: ignore[index]
        async with asyncio.timeout(PATIENCE):
            await behind.calls[0].closed.wait()


async def test_an_answer_past_its_deadline_is_ended_with_an_error_and_never_looks_complete(tmp_path: Path) -> None:
    async with proxied(tmp_path, half, server={"request_deadline": 1}) as (address, _):
        reply = await ask(address, "POST", CHAT, [JSON], STREAM)
    assert (reply.status, reply.complete) == (200, False)
    assert b"request_deadline" in reply.body


async def hanging(*_: object, **__: object) -> None:
    await asyncio.Event().wait()


async def losing_some(*_: object, **__: object) -> None:
    await losing(2)


@pytest.mark.parametrize("preparing", [hanging, losing_some])
async def test_a_fault_of_ours_that_hangs_holds_no_request_up_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preparing: Callable[..., Awaitable[None]]
) -> None:
    monkeypatch.setattr(PromptBuilder, "build_first", preparing)
    policies = {"default": {"summarizer": {"timeout": 0.1}}}
    monkeypatch.setattr("proxy.compaction.job.Job.JOIN_WAIT", 0.0)
    monkeypatch.setattr("proxy.pipeline.stages._OTHER_WORK_S", 0.1)
    async with stage(tmp_path, policies=policies) as play:
        async with asyncio.timeout(PATIENCE):
            reply = await play.send(DUE)
        assert (reply.status, reply.header(b"x-compaction")) == (200, b"failed-open")
        assert [received.body for received in play.sent] == [DUE]
        (fault,) = play.logged("failed_open")
        assert "TimeoutError" in str(fault)
