"""Where requests failed: the upstream's address and its error text, in memory until the store has them."""

from collections import OrderedDict
from collections.abc import Callable

import msgspec

from policies.secrets.mask import mask_secrets
from proxy.lru import remember
from proxy.telemetry.events import RequestEnded

MOST_TEXT = 600
"""Characters of an error text that are kept."""
_MOST = 1_000


class UpstreamFailure(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request failed. address: the upstream's URL, without its query, which may hold a key.

    text: the upstream's error text, masked and cut; empty if it sent none, or if the tenant's content may not be read.
    """

    address: str
    text: str = ""


class UpstreamFailures:
    """Holds the newest failures by their request; one per process.

    shows_content: says if the content of a tenant may be read. Until it is set, no text is held.
    """

    def __init__(self) -> None:
        self._held: OrderedDict[str, tuple[RequestEnded, UpstreamFailure]] = OrderedDict()
        self.shows_content: Callable[[str], bool] = lambda _: False

    def hold(self, event: RequestEnded, address: str, text: str) -> None:
        """Hold where a request failed."""
        is_shown = event.tenant is not None and self.shows_content(event.tenant)
        failure = UpstreamFailure(address, text[:MOST_TEXT] if is_shown else "")
        remember(self._held, event.id, (event, failure), _MOST)

    def of(self, request: str) -> UpstreamFailure | None:
        """Return where the request with this id failed; None if it did not, or if that is not known.

        The text is masked here, since that takes some tenths of a millisecond. Threads may call this.
        """
        if (held := self._held.get(request)) is None:
            return None
        _, failure = held
        return UpstreamFailure(failure.address, mask_secrets(failure.text)[:MOST_TEXT])

    def forget(self, tenant: str, session: str, is_meant: Callable[[str], bool]) -> None:
        """Forget the failures of the sessions of a conversation whose label is meant."""
        for name, (event, _) in [*self._held.items()]:
            if (event.tenant, event.session) == (tenant, session) and is_meant(event.label or ""):
                del self._held[name]
