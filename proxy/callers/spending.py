"""Tokens for summaries by tenant and day. They count in this process only, so a limit is per replica."""

from collections.abc import Callable

_DAY = 86_400


class Spending:
    """Counts by tenant and day. Days change at midnight UTC."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Create the counts. `clock` returns Unix seconds."""
        self._clock = clock
        self._day = 0
        self._spent: dict[str, int] = {}
        self._limits: dict[str, int] = {}

    def used_shares(self) -> dict[str, float]:
        """Return today's share of its limit for each tenant with one. Threads may call this."""
        spent = self._spent.copy() if int(self._clock()) // _DAY == self._day else {}
        return {tenant: spent.get(tenant, 0) / limit for tenant, limit in self._limits.copy().items()}

    def allows(self, tenant: str, limit: int | None) -> bool:
        """Return True if the tenant may have another summary today. None is no limit."""
        self._begin_day()
        if limit:
            self._limits[tenant] = limit
        return limit is None or self._spent.get(tenant, 0) < limit

    def add(self, tenant: str, tokens: int) -> None:
        """Add tokens of a tenant."""
        self._begin_day()
        self._spent[tenant] = self._spent.get(tenant, 0) + tokens

    def _begin_day(self) -> None:
        today = int(self._clock()) // _DAY
        if today != self._day:
            self._day = today
            self._spent.clear()
