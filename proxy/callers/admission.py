"""How many requests may be under way at once, in the process and for each tenant, and how many bytes of theirs."""

from collections import Counter

from proxy.callers.key_usage import Reservation
from proxy.errors import OverloadedError, TooManyRequestsError


class Admission:
    """Counts what is under way; it stays the same when the config is taken again."""

    def __init__(self) -> None:
        self.in_flight: Counter[str] = Counter()
        self.held = 0

    def admit(self, tenant: str, most: int, most_of_tenant: int | None, most_bytes: int) -> "Admitted":
        """A request of this tenant is under way until what is returned is closed.

        Raises OverloadedError or TooManyRequestsError. `most_bytes`: that all bodies together may take.
        """
        if self.in_flight.total() >= most:
            raise OverloadedError
        if most_of_tenant is not None and self.in_flight[tenant] >= most_of_tenant:
            raise TooManyRequestsError
        self.in_flight[tenant] += 1
        return Admitted(self, tenant, most_bytes)


class Admitted:
    """A request under way, what its bodies take, and what it may use of the limits of its key."""

    __slots__ = ("_admission", "_held", "_most", "_tenant", "reservation")

    def __init__(self, admission: Admission, tenant: str, most_bytes: int) -> None:
        self._admission = admission
        self._tenant = tenant
        self._most = most_bytes
        self._held = 0
        self.reservation: Reservation | None = None

    def hold(self, size: int) -> None:
        """Called with the size of each further part before it is kept; raises OverloadedError where all bodies together
        would take too much."""
        if self._admission.held + size > self._most:
            raise OverloadedError
        self._held += size
        self._admission.held += size

    def close(self) -> None:
        self._admission.in_flight[self._tenant] -= 1
        self._admission.held -= self._held
        if self.reservation is not None:
            self.reservation.close()
