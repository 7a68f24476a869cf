"""A lock for expensive work that is done for one visitor at a time."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from proxy.errors import OverloadedError


class Turn:
    """A lock for one holder at a time. Others are refused instead of waiting. It works for any thread."""

    def __init__(self, busy: str) -> None:
        """Create a lock. `busy` is the error text for the others."""
        self._busy = busy
        self._lock = threading.Lock()

    @contextmanager
    def take(self) -> Iterator[None]:
        """Hold the lock. Raises OverloadedError."""
        if not self._lock.acquire(blocking=False):
            raise OverloadedError(self._busy)
        try:
            yield
        finally:
            self._lock.release()
