"""The only place that catches all errors, so that an internal error never breaks a request that needs no compaction."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from proxy.errors import ProxyError
from proxy.runtime.deadlines import within

_T = TypeVar("_T")


class FailOpen:
    """Protects a request from internal errors, which are logged. Errors for the client pass through."""

    def __init__(self, fault: Callable[[str, BaseException], None], event: str = "failed_open") -> None:
        """Create a guard. fault: logs an internal error under the name `event`."""
        self._fault = fault
        self._event = event

    def for_event(self, event: str) -> "FailOpen":
        """Return the same guard with another event name."""
        return FailOpen(self._fault, event)

    def call(self, work: Callable[[], _T], otherwise: _T) -> _T:
        """Return the result of `work`; `otherwise` if it fails."""
        try:
            return work()
        except ProxyError:
            raise
        except Exception as error:  # noqa: BLE001 - the only place
            return self._failed_open(error, otherwise)

    async def run(self, work: Awaitable[_T], otherwise: _T, seconds: float | None = None) -> _T:
        """Return the result of the work; `otherwise` if it fails or takes too many seconds."""
        try:
            if seconds is None:
                return await work
            async with within(seconds):
                return await work
        except ProxyError:
            raise
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            return self._failed_open(error, otherwise)  # raised by a library: nothing cancelled this request
        except Exception as error:  # noqa: BLE001 - the only place
            return self._failed_open(error, otherwise)

    def _failed_open(self, error: BaseException, otherwise: _T) -> _T:
        self._fault(self._event, error)
        return otherwise
