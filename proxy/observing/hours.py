"""Sums of every hour of today and yesterday, by tenant and model: what the store keeps of figures."""

from collections.abc import Callable

from proxy.observing.histograms import OTHER
from proxy.observing.tally import Tally

HOUR = 3600
DAY_HOURS = 24
MOST_ROWS = 200
_DAYS = 2

Row = tuple[int, str, str]
"""Hours since 1970, tenant, model."""


class Hours:
    """One per process. days: rows by days since 1970. changed: days with sums that the store does not have yet."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` tells Unix seconds."""
        self._clock = clock
        self._open: dict[tuple[str, str], Tally] = {}
        self._hour = 0
        self.days: dict[int, dict[Row, Tally]] = {}
        self.changed: set[int] = set()

    def row(self, tenant: str, model: str) -> Tally:
        """Of this hour, to be added to; of more than `MOST_ROWS` the last is of all others."""
        hour = int(self._clock()) // HOUR
        if hour != self._hour:
            self._begin(hour)
        day = hour // DAY_HOURS
        self.changed.add(day)
        rows = self._open
        if (tenant, model) not in rows and len(rows) >= MOST_ROWS - 1:
            tenant = model = OTHER
        found = rows.get((tenant, model))
        if found is None:
            found = rows[tenant, model] = self.days[day][hour, tenant, model] = Tally()
        return found

    def _begin(self, hour: int) -> None:
        """A clock that is set back begins an hour again, where it was left."""
        day = hour // DAY_HOURS
        rows = self.days.setdefault(day, {})
        self._hour = hour
        self._open = {(tenant, model): tally for (at, tenant, model), tally in rows.items() if at == hour}
        for old in [known for known in self.days if known <= day - _DAYS]:
            del self.days[old]
            self.changed.discard(old)
