"""Which upstreams answer the providers' compaction protocols themselves (docs/upstreams.md, "Client compaction")."""

from urllib.parse import urlsplit

from policies.experience import Protocol
from proxy.dialects.base import Dialect
from proxy.dialects.compaction import How
from proxy.models.windows import Windows
from proxy.upstream.routes import Route

_PROTOCOLS: dict[How | None, Protocol] = {
    None: "item",
    "endpoint": "endpoint",
    "trigger": "trigger",
    "threshold": "field",
    "edit": "field",
    "demand": "demand",
}


class Natives:
    """What is known of upstreams, by config, address and trial; one per process."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows

    def answers(self, route: Route, dialect: Dialect, how: How | None) -> bool | None:
        """Whether the model at this upstream answers it; None if that has to be tried. `how` is None for what was made
        before."""
        upstream = route.upstream
        if upstream.native_compaction != "auto":
            return upstream.native_compaction == "yes"
        if upstream.provider == "litellm":
            return False
        if self.is_native(route, dialect):
            return True
        return self._windows.answers_natively(route.place, _PROTOCOLS[how])

    def is_native(self, route: Route, dialect: Dialect) -> bool:
        """Whether it is known to answer whatever is asked."""
        native = route.upstream.native_compaction
        return native == "yes" or (native == "auto" and self.is_maker(route, dialect))

    def is_untried(self, route: Route, dialect: Dialect) -> bool:
        """Whether nothing is known of what it answers."""
        return all(self.answers(route, dialect, how) is None for how in _PROTOCOLS)

    @staticmethod
    def is_maker(route: Route, dialect: Dialect) -> bool:
        """Whether the upstream's host belongs to the protocol's vendor, or serves its models under the same API."""
        host = urlsplit(route.upstream.base_url).hostname or ""
        return any(host == maker or (maker[0] == "." and host.endswith(maker)) for maker in dialect.compacts_at)

    def saw(self, route: Route, how: How | None, *, answers: bool) -> None:
        """Learn from a trial."""
        self._windows.saw_native(route.place, _PROTOCOLS[how], answers=answers)
