"""Reliable cancellation: it can get lost in other code, so it is repeated until the task ends.

CPython 3.11's `asyncio.wait_for` returns its result if a cancellation arrives just as its inner future is done
(python/cpython#86296), and libraries catch `CancelledError`. Code that then waits again waits forever. So nothing in
the proxy relies on a single cancellation: `asyncio.timeout` and `asyncio.wait_for` are banned (pyproject.toml).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

# Seconds between two cancellations of the same task: enough for its handling of the first one.
REPEAT_S = 1.0
_TIMES = 5


class RepeatedCancel:
    """Cancels a task repeatedly, from `begin` to `stop`."""

    def __init__(self, task: asyncio.Task[object]) -> None:
        """Prepare to cancel this task."""
        self._task = task
        self._cancellations = 0
        self._next: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Cancel the task now, and again every `REPEAT_S` seconds."""
        self._cancellations += 1
        self._task.cancel()
        self._next = asyncio.get_running_loop().call_later(REPEAT_S, self.begin)

    @property
    def has_begun(self) -> bool:
        """Return True if the task was cancelled at least once."""
        return self._cancellations > 0

    def stop(self) -> bool:
        """Take the cancellations back. Returns True if there were any."""
        if self._next is not None:
            self._next.cancel()
        for _ in range(self._cancellations):
            self._task.uncancel()
        return self.has_begun


class within:  # noqa: N801 - reads as asyncio.timeout does
    """Limit a block to some seconds, None for no limit, like `asyncio.timeout` with repeated cancellation.

    Raises TimeoutError if the block was ended. A block that ignores the cancellation but ends keeps its result.
    """

    def __init__(self, seconds: float | None) -> None:
        """Create a limit in seconds."""
        self._seconds = seconds

    async def __aenter__(self) -> Self:
        """Start the timer."""
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
        """Stop the timer. Raises TimeoutError if it ended the block."""
        if self._timer is not None:
            self._timer.cancel()
        was_cancelled = self._ending.stop()
        if was_cancelled and kind is asyncio.CancelledError and self._task.cancelling() <= self._before:
            raise TimeoutError from error


async def end_tasks(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel these tasks, repeatedly if necessary, and wait for at most a few seconds until they have ended."""
    for _ in range(_TIMES):
        for task in tasks:
            task.cancel()
        if not tasks:
            return
        _, tasks = await asyncio.wait(tasks, timeout=REPEAT_S)


@asynccontextmanager
async def repeat_every(work: Callable[[], Awaitable[object]], seconds: float) -> AsyncIterator[None]:
    """Repeat this work every `seconds` while the block lasts, and not after it."""
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
