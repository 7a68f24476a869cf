"""The one place that catches everything: a fault of ours never breaks a request that would have worked without us."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from proxy.errors import ProxyError
from proxy.log import Log

_T = TypeVar("_T")


class Rim:
    """Shields a request from faults of ours; they are logged as `failed_open`."""

    def __init__(self, log: Log) -> None:
        self._log = log

    async def shield(self, work: Awaitable[_T], otherwise: _T) -> _T:
        """What the work gives, else `otherwise`; errors that are the client's to see pass."""
        try:
            return await work
        except ProxyError:
            raise
        except Exception as error:  # noqa: BLE001 - the one place
            self._log.fault("failed_open", error)
            return otherwise
