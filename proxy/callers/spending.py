"""What summaries cost each tenant today, in tokens; in this process only, so a limit holds per replica."""

from collections.abc import Callable

_DAY = 86_400


class Spending:
    """Counts by tenant and day; days change at midnight UTC."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._day = 0
        self._spent: dict[str, int] = {}
        self._limits: dict[str, int] = {}

    def used_shares(self) -> dict[str, float]:
        """The share of its limit that each tenant with one has used today; may be asked for in any thread."""
        spent = self._spent.copy() if int(self._clock()) // _DAY == self._day else {}
        return {tenant: spent.get(tenant, 0) / limit for tenant, limit in self._limits.copy().items()}

    def allows(self, tenant: str, limit: int | None) -> bool:
        """Whether the tenant may have another summary today; None is no limit."""
        self._turn_page()
        if limit:
            self._limits[tenant] = limit
        return limit is None or self._spent.get(tenant, 0) < limit

    def add(self, tenant: str, tokens: int) -> None:
        self._turn_page()
        self._spent[tenant] = self._spent.get(tenant, 0) + tokens

    def _turn_page(self) -> None:
        today = int(self._clock()) // _DAY
        if today != self._day:
            self._day = today
            self._spent.clear()
