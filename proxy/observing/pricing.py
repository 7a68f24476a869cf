"""What requests and summaries cost, and what requests would have cost as they came: told with their events."""

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import force_setattr

from policies.price import CACHE_TTL, LONG_CACHE_TTL, Price, Tokens, prompt_behind
from proxy.lru import remember
from proxy.observing.events import Event, Hook, RequestEnded, SummarizerCalled

# Sessions whose newest prompt is remembered.
_SESSIONS = 10_000


class _Before(NamedTuple):
    """The newest prompt of a session as it came, in the upstream's tokens. at: Unix seconds. ttl: for which its cache
    holds it; 0 where none took anything. is_changed: whether this prompt or one before it went out otherwise."""

    received: int
    at: float
    ttl: float
    is_changed: bool


class Pricing:
    """A hook before the others, which sets the prices of an event that nobody else has seen yet; one per process."""

    def __init__(self, price: Callable[[str], Price | None], then: Hook) -> None:
        self._price = price
        self._then = then
        self._before: OrderedDict[tuple[str | None, str, str | None], _Before] = OrderedDict()

    def __call__(self, event: Event) -> None:
        if isinstance(event, RequestEnded):
            self._set_prices(event)
        elif isinstance(event, SummarizerCalled) and (price := self._price(event.model)) is not None:
            call = Tokens(event.tokens_in, event.tokens_out, event.cached, event.cache_written)
            force_setattr(event, "usd", _rounded(price.of(call)))
        self._then(event)

    def _set_prices(self, event: RequestEnded) -> None:
        received, billed = event.received, event.billed
        if not event.is_answered or event.session is None or event.model is None or received is None or billed is None:
            return
        price, output = self._price(event.model), event.output or 0
        key = event.tenant, event.session, event.model
        before = self._before.get(key)
        # What went out as it came tells better than an estimate how large it was.
        is_unchanged = event.tokens_received == event.tokens_sent
        received = billed if is_unchanged else received
        ttl = _ttl(event) or (before.ttl if before else 0.0)
        is_changed = not is_unchanged or (before is not None and before.is_changed)
        remember(self._before, key, _Before(received, event.at, ttl, is_changed), _SESSIONS)
        if price is None:
            return
        long = event.cache_written_long or 0
        written = max(0, (event.cache_written or 0) - long)
        call = Tokens(billed, output, event.cached or 0, written, long)
        if not is_changed:  # nothing to estimate: it cost what it would have cost
            usd = _rounded(price.of(call))
            force_setattr(event, "usd", usd)
            force_setattr(event, "usd_received", usd)
            return
        is_warm = before is not None and event.at - before.at < ttl
        would = prompt_behind(before.received if before else 0, received, price=price, caches=ttl > 0, is_warm=is_warm)
        would, usd = would.with_answer(output), _rounded(price.of(call))
        force_setattr(event, "usd", usd)
        force_setattr(event, "usd_received", usd if would == call else _rounded(price.of(would)))


def _rounded(usd: float) -> float:
    """To billionths, as tallies count; `round` to digits takes four times as long."""
    return round(1e9 * usd) / 1e9


def _ttl(event: RequestEnded) -> float:
    """Seconds for which the upstream's cache holds what it was seen to serve or take; 0 where it did neither."""
    if event.cache_written_long:
        return LONG_CACHE_TTL
    return CACHE_TTL if event.cached or event.cache_written else 0.0
