"""The one place that catches everything: a fault of ours never breaks a request that would have worked without us."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from proxy.errors import ProxyError
from proxy.observing.log import Log
from proxy.runtime.deadlines import within

_T = TypeVar("_T")


class Rim:
    """Shields a request from faults of ours; they are logged as `failed_open`."""

    def __init__(self, log: Log) -> None:
        self._log = log

    async def shield(self, work: Awaitable[_T], otherwise: _T, seconds: float | None = None) -> _T:
        """What the work gives, `otherwise` where it fails or takes too many seconds; errors for the client pass."""
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
            return self._failed_open(error, otherwise)  # raised by somebody's code: nobody wants this request to end
        except Exception as error:  # noqa: BLE001 - the one place
            return self._failed_open(error, otherwise)

    def _failed_open(self, error: BaseException, otherwise: _T) -> _T:
        self._log.fault("failed_open", error)
        return otherwise
