"""Limits of requests in flight, for the process and for each tenant, and of the bytes of their bodies."""

from collections import Counter

from proxy.callers.key_usage import Reservation
from proxy.errors import OverloadedError, TooManyRequestsError


class Admission:
    """Counts of requests in flight. They survive a reload of the config."""

    def __init__(self) -> None:
        """Create the counts."""
        self.in_flight: Counter[str] = Counter()
        self.held = 0

    def admit(self, tenant: str, most: int, most_of_tenant: int | None, most_bytes: int) -> "Admitted":
        """Admit a request of this tenant until the result is closed.

        Raises OverloadedError or TooManyRequestsError. `most_bytes`: limit of all bodies together.
        """
        if self.in_flight.total() >= most:
            raise OverloadedError
        if most_of_tenant is not None and self.in_flight[tenant] >= most_of_tenant:
            raise TooManyRequestsError
        self.in_flight[tenant] += 1
        return Admitted(self, tenant, most_bytes)


class Admitted:
    """A request in flight, the bytes of its bodies, and its reservation from the limits of its key."""

    __slots__ = ("_admission", "_held", "_most", "_tenant", "reservation")

    def __init__(self, admission: Admission, tenant: str, most_bytes: int) -> None:
        """Create an admitted request without bytes."""
        self._admission = admission
        self._tenant = tenant
        self._most = most_bytes
        self._held = 0
        self.reservation: Reservation | None = None

    def hold(self, size: int) -> None:
        """Reserve the size of a further part before it is kept. Raises OverloadedError above the limit."""
        if self._admission.held + size > self._most:
            raise OverloadedError
        self._held += size
        self._admission.held += size

    def close(self) -> None:
        """Release the request, its bytes and its reservation."""
        self._admission.in_flight[self._tenant] -= 1
        self._admission.held -= self._held
        if self.reservation is not None:
            self.reservation.close()
