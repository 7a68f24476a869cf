"""Coroutines that run straight on until they have to wait: most writes never do.

As eager tasks do (`asyncio.Task(eager_start=True)`, Python 3.12), on every supported version and loop.
"""

import asyncio
from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any

_Work = Coroutine[Any, Any, None]


def start(work: _Work, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None] | None:
    """Run `work` until it waits. Return the task that goes on with it, None if it has ended.

    Until then it belongs to the task that calls this, if there is one. Raises what `work` raises until then.
    """
    try:
        waits_for = work.send(None)
    except StopIteration:
        return None
    return loop.create_task(_Begun(work, waits_for))


class _Begun(Coroutine[Any, Any, None]):
    """A coroutine whose first step is taken, as one that still has to take it.

    A native one would not do: cancelled before its own first step, it would never reach the one inside.
    """

    def __init__(self, work: _Work, waits_for: object) -> None:
        self._work = work
        self._waits_for = waits_for
        self._is_begun = False

    def send(self, value: Any) -> Any:
        if self._is_begun:
            return self._work.send(value)
        self._is_begun = True
        waits_for, self._waits_for = self._waits_for, None
        return waits_for

    def throw(  # type: ignore[override]
        self, kind: Any, value: BaseException | None = None, traceback: TracebackType | None = None
    ) -> Any:
        self._is_begun = True
        return self._work.throw(kind if value is None else value.with_traceback(traceback))

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, None]:
        raise TypeError("run by a task alone")

    def __getattr__(self, name: str) -> object:
        """Return attributes of the coroutine that show where it waits: `cr_frame`, `cr_await`, `cr_code`."""
        return getattr(self._work, name)
