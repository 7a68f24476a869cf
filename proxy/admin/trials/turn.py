"""Work that is so much that it is done for one visitor after the other."""

from collections.abc import Iterator
from contextlib import contextmanager

from proxy.errors import OverloadedError


class Turn:
    """Held by one at a time; whoever else wants it is sent away rather than kept waiting."""

    def __init__(self, busy: str) -> None:
        """`busy` is what is said to those."""
        self._busy = busy
        self._is_taken = False

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Raises OverloadedError."""
        if self._is_taken:
            raise OverloadedError(self._busy)
        self._is_taken = True
        try:
            yield
        finally:
            self._is_taken = False
