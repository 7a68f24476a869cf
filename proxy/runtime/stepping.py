"""Coroutines that run synchronously until they first wait. Most writes never wait.

They behave like eager tasks (`asyncio.Task(eager_start=True)`, Python 3.12), on every supported version and loop.
"""

import asyncio
from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any

_Work = Coroutine[Any, Any, None]


def start(work: _Work, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None] | None:
    """Run `work` until it waits. Returns the task that continues it; None if it has ended.

    Until then it belongs to the calling task, if there is one. Raises the errors of `work` until then.
    """
    try:
        waits_for = work.send(None)
    except StopIteration:
        return None
    return loop.create_task(_StartedCoroutine(work, waits_for))


class _StartedCoroutine(Coroutine[Any, Any, None]):
    """A coroutine that replays its first step, which was already taken.

    A native coroutine would not work: cancelled before its own first step, it would never reach the inner one.
    """

    def __init__(self, work: _Work, waits_for: object) -> None:
        self._work = work
        self._waits_for = waits_for
        self._is_started = False

    def send(self, value: Any) -> Any:
        if self._is_started:
            return self._work.send(value)
        self._is_started = True
        waits_for, self._waits_for = self._waits_for, None
        return waits_for

    def throw(  # type: ignore[override]
        self, kind: Any, value: BaseException | None = None, traceback: TracebackType | None = None
    ) -> Any:
        self._is_started = True
        return self._work.throw(kind if value is None else value.with_traceback(traceback))

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, None]:
        raise TypeError("it can only be run by a task")

    def __getattr__(self, name: str) -> object:
        """Return attributes of the coroutine that show its position: `cr_frame`, `cr_await`, `cr_code`."""
        return getattr(self._work, name)
