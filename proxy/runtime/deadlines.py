"""Ending work for certain: a cancellation can get lost in somebody else's code, so it is repeated until it is obeyed.

CPython 3.11's `asyncio.wait_for` returns its result where a cancellation arrives just as its inner future is done
(python/cpython#86296), and libraries catch `CancelledError`. Whatever then waits once more waits for ever. So nothing
in the proxy relies on a single cancellation: `asyncio.timeout` and `asyncio.wait_for` are banned (pyproject.toml).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

# Seconds between two cancellations of the same task: enough for what a task does about the first one.
AGAIN = 1.0
_TIMES = 5


class RepeatedCancel:
    """Cancels a task again and again, from `begin` to `stop`."""

    def __init__(self, task: asyncio.Task[object]) -> None:
        self._task = task
        self._cancellations = 0
        self._next: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        self._cancellations += 1
        self._task.cancel()
        self._next = asyncio.get_running_loop().call_later(AGAIN, self.begin)

    @property
    def has_begun(self) -> bool:
        return self._cancellations > 0

    def stop(self) -> bool:
        """Take the cancellations back; whether there were any."""
        if self._next is not None:
            self._next.cancel()
        for _ in range(self._cancellations):
            self._task.uncancel()
        return self.has_begun


class within:  # noqa: N801 - reads as asyncio.timeout does
    """Limit a block to so many seconds, None for no limit: as `asyncio.timeout`, with a cancellation that is repeated.

    Raises TimeoutError if the block was ended. A block that obeys no cancellation but ends is taken as it ended.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - coroutines are run by tasks
        self._before = task.cancelling()
        self._task = task
        self._ending = RepeatedCancel(task)
        self._timer = None
        if self._seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, self._seconds), self._ending.begin)
        return self

    @property
    def has_expired(self) -> bool:
        """Return True if the time is up. It distinguishes a timeout from any other cancellation of the block."""
        return self._ending.has_begun

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        begun = self._ending.stop()
        if begun and kind is asyncio.CancelledError and self._task.cancelling() <= self._before:
            raise TimeoutError from error


async def end_tasks(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel these tasks, repeatedly if necessary, and wait a few seconds at most until they have ended."""
    for _ in range(_TIMES):
        for task in tasks:
            task.cancel()
        if not tasks:
            return
        _, tasks = await asyncio.wait(tasks, timeout=AGAIN)


@asynccontextmanager
async def repeat_every(work: Callable[[], Awaitable[object]], seconds: float) -> AsyncIterator[None]:
    """Do this every so many seconds while the block lasts, and not once after it."""
    over = False

    async def repeat() -> None:
        while not over:
            await asyncio.sleep(seconds)
            await work()

    repeating = asyncio.create_task(repeat())
    try:
        yield
    finally:
        over = True
        repeating.cancel()
