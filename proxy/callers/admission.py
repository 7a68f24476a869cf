"""How many requests may be under way at once, in the process and for each tenant, and how many bytes of theirs."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from proxy.errors import OverloadedError, TooManyRequestsError


class Admission:
    """Counts what is under way; it stays the same when the config is taken again."""

    def __init__(self) -> None:
        self.in_flight: Counter[str] = Counter()
        self.held = 0

    @contextmanager
    def slot(self, tenant: str, most: int, most_of_tenant: int | None) -> Iterator[None]:
        """A request of this tenant is under way inside; raises OverloadedError or TooManyRequestsError."""
        if self.in_flight.total() >= most:
            raise OverloadedError
        if most_of_tenant is not None and self.in_flight[tenant] >= most_of_tenant:
            raise TooManyRequestsError
        self.in_flight[tenant] += 1
        try:
            yield
        finally:
            self.in_flight[tenant] -= 1

    @contextmanager
    def bytes(self, most: int) -> Iterator[Callable[[int], None]]:
        """What bodies take inside; what is given is called with the size of each further part before it is kept, and
        raises OverloadedError where all bodies together would take more than `most` bytes."""
        mine = 0

        def hold(size: int) -> None:
            nonlocal mine
            if self.held + size > most:
                raise OverloadedError
            mine += size
            self.held += size

        try:
            yield hold
        finally:
            self.held -= mine
