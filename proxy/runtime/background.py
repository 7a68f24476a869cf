"""Work that continues after its request has ended, whether or not the client is still connected."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine

from proxy.runtime.deadlines import end_tasks

_AT_ONCE = 16
# Lower limits of some kinds: summaries take minutes, and short work must not wait for them.
_OF_KIND = {"summary": 8}


class Background:
    """Runs such work within bounds. One per process. `skipped` counts rejected work by name."""

    def __init__(self, fault: Callable[[str, BaseException], None]) -> None:
        """Create an empty runner. fault: logs an internal error under a name."""
        self._fault = fault
        self.skipped: Counter[str] = Counter()
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._draining = False

    def start(self, name: str, work: Coroutine[None, None, object]) -> bool:
        """Start work in the background. Returns False if too much is in flight or the process is about to end.

        A failure is logged as `{name}_failed`.
        """
        if self._draining or self._is_full(name):
            self.skipped[name] += 1
            work.close()
            return False
        task = asyncio.create_task(self._run(name, work))
        self._tasks[task] = name
        task.add_done_callback(self._tasks.pop)
        return True

    def _is_full(self, name: str) -> bool:
        alike = sum(kind == name for kind in self._tasks.values())
        return len(self._tasks) >= _AT_ONCE or alike >= _OF_KIND.get(name, _AT_ONCE)

    async def drain(self, seconds: float) -> None:
        """Let work in flight finish for `seconds`, then cancel it. No new work is started."""
        self._draining = True
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=seconds)
            await end_tasks(late)

    async def _run(self, name: str, work: Coroutine[None, None, object]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - no caller waits for this work
            self._fault(f"{name}_failed", error)
