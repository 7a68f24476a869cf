"""Threads for work that would block the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Workers:
    """Runs functions on an executor, which its owner shuts down."""

    def __init__(self, executor: Executor) -> None:
        """Create a runner on this executor."""
        self._executor = executor

    async def run(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run `work` in a thread. Returns its result, or raises its error."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: work(*args, **kwargs))
