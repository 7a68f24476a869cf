"""Failures of requests: the upstream's address and its error text, in memory until they are stored."""

from collections import OrderedDict
from collections.abc import Callable

import msgspec

from policies.secrets.mask import mask_secrets
from proxy.lru import remember
from proxy.telemetry.events import RequestEnded

MOST_TEXT = 600
"""The maximum characters of an error text."""
_MOST = 1_000


class UpstreamFailure(msgspec.Struct, frozen=True, omit_defaults=True):
    """The failure of a request.

    address: the upstream's URL without its query, which may contain a key. text: the upstream's error text, masked and
    shortened; empty if it sent none, or if the tenant's content is hidden.
    """

    address: str
    text: str = ""


class UpstreamFailures:
    """The newest failures by their request. One instance per process.

    shows_content: returns True if the content of a tenant may be read. Until it is set, no text is stored.
    """

    def __init__(self) -> None:
        """Create an empty store of failures."""
        self._held: OrderedDict[str, tuple[RequestEnded, UpstreamFailure]] = OrderedDict()
        self.shows_content: Callable[[str], bool] = lambda _: False

    def hold(self, event: RequestEnded, address: str, text: str) -> None:
        """Store the failure of a request."""
        is_shown = event.tenant is not None and self.shows_content(event.tenant)
        failure = UpstreamFailure(address, text[:MOST_TEXT] if is_shown else "")
        remember(self._held, event.id, (event, failure), _MOST)

    def of(self, request: str) -> UpstreamFailure | None:
        """Return the failure of the request with this id; None if there is none, or if it is unknown.

        The text is masked here, since that takes some tenths of a millisecond. Threads may call this.
        """
        if (stored := self._held.get(request)) is None:
            return None
        _, failure = stored
        return UpstreamFailure(failure.address, mask_secrets(failure.text)[:MOST_TEXT])

    def forget(self, tenant: str, session: str, is_meant: Callable[[str], bool]) -> None:
        """Forget the failures of the sessions of a conversation whose label matches."""
        for name, (event, _) in [*self._held.items()]:
            if (event.tenant, event.session) == (tenant, session) and is_meant(event.label or ""):
                del self._held[name]
