"""Work in the background is bounded, fails quietly, and is seen through or ended when the process ends."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import time

import pytest

from proxy.runtime.background import Background
from proxy.telemetry.log import open_log

pytestmark = pytest.mark.anyio


@pytest.fixture
def logged() -> io.BytesIO:
    return io.BytesIO()


@pytest.fixture
def background(logged: io.BytesIO) -> Background:
    return Background(open_log("debug", time.time, logged).fault)


async def test_work_goes_on_when_whoever_began_it_was_cancelled(background: Background) -> None:
    go_on, done = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await go_on.wait()
        done.set()

    async def begin() -> None:
        assert background.start("work", work())
        await asyncio.Event().wait()

    beginning = asyncio.create_task(begin())
    await asyncio.sleep(0)
    beginning.cancel()
    await asyncio.wait((beginning,))
    go_on.set()
    await background.drain(5)
    assert done.is_set()


async def test_sixteen_go_on_at_once_and_another_is_not_begun(background: Background) -> None:
    go_on = asyncio.Event()
    assert all(background.start("work", go_on.wait()) for _ in range(16))
    refused = go_on.wait()
    assert not background.start("work", refused)
    assert inspect.getcoroutinestate(refused) == inspect.CORO_CLOSED, "nobody is told that it was never awaited"
    go_on.set()
    await background.drain(5)


async def test_whoever_has_finished_makes_room(background: Background) -> None:
    for _ in range(100):
        assert background.start("work", asyncio.sleep(0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_a_failure_is_logged_by_its_name_without_its_text(background: Background, logged: io.BytesIO) -> None:
    async def fail() -> None:
        raise ValueError("what the user said")

    assert background.start("follow_up", fail())
    await background.drain(5)
    (line,) = [json.loads(line) for line in logged.getvalue().splitlines()]
    assert (line["level"], line["event"], line["error"]) == ("error", "follow_up_failed", "ValueError")
    assert b"the user" not in logged.getvalue()


async def test_what_does_not_finish_in_time_is_cancelled_and_has_cleaned_up_then(
    background: Background, logged: io.BytesIO
) -> None:
    cleaned = []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    for _ in range(3):
        background.start("work", hang())
    await asyncio.sleep(0)
    await background.drain(0)
    assert cleaned == [True] * 3
    assert logged.getvalue() == b""


async def test_nothing_is_begun_any_more_while_the_process_ends(background: Background) -> None:
    await background.drain(5)
    assert not background.start("work", asyncio.sleep(0))
