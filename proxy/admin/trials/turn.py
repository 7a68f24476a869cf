"""Work that is so much that it is done for one visitor after the other."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from proxy.errors import OverloadedError


class Turn:
    """Held by one at a time; whoever else wants it is sent away rather than kept waiting. For any thread."""

    def __init__(self, busy: str) -> None:
        """`busy` is what is said to those."""
        self._busy = busy
        self._lock = threading.Lock()

    @contextmanager
    def take(self) -> Iterator[None]:
        """Raises OverloadedError."""
        if not self._lock.acquire(blocking=False):
            raise OverloadedError(self._busy)
        try:
            yield
        finally:
            self._lock.release()
