"""Coroutines that run straight on until they have to wait: most requests never do before they are sent.

As eager tasks do (`asyncio.Task(eager_start=True)`, Python 3.12), on every supported version and loop.
"""

import asyncio
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any

_Work = Coroutine[Any, Any, None]


def started(work: _Work, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None] | None:
    """Run `work` up to where it waits, and return the task that it goes on as; None if it has ended.

    Until then it belongs to no task: what needs one awaits `in_task` before. `work` must not raise.
    """
    try:
        waits_for = work.send(None)
    except StopIteration:
        return None
    return loop.create_task(_going_on(work, waits_for))


async def in_task() -> asyncio.Task[Any]:
    """The current task, once there is one."""
    if (task := asyncio.current_task()) is None:
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - what waits goes on as a task
    return task


async def _going_on(work: _Work, waits_for: object) -> None:
    await _rest(work, waits_for)


@coroutine
def _rest(work: _Work, waits_for: object) -> Generator[object, Any, None]:
    """What is left of a coroutine that waits for this."""
    while True:
        try:
            yield waits_for
            break
        except BaseException as error:  # noqa: BLE001 - whatever is raised where it waits is its own
            try:
                waits_for = work.throw(error)
            except StopIteration:
                return
    yield from work
