"""The cost of requests and summaries, and of the unchanged requests, set in their events."""

from collections import OrderedDict
from collections.abc import Callable

import msgspec
from msgspec.structs import force_setattr

from policies.price import CACHE_TTL, LONG_CACHE_TTL, Price, Tokens, continued_prompt
from proxy.lru import remember
from proxy.telemetry.events import Event, Hook, RequestEnded, SummarizerCalled
from proxy.telemetry.history_entries import RequestEntry
from proxy.telemetry.hooks import RequestListener, get_event_callback, get_request_callback

# The maximum number of sessions whose newest prompt is remembered.
_SESSIONS = 10_000


class _Prompts(msgspec.Struct, gc=False):
    """The prompts of a session and model.

    received: tokens of the newest as received, by the upstream's count. at: when it ended, in Unix seconds. ttl: the
    lifetime in the upstream's cache; 0 if nothing was cached. is_changed: True if any prompt was changed. sent,
    checkpoint: tokens and record of the newest as sent. seen_cached, seen_cacheable: tokens of growing prompts from the
    cache, and those that it could have served.
    """

    received: int = 0
    at: float = float("-inf")
    ttl: float = 0.0
    is_changed: bool = False
    sent: int = 0
    checkpoint: str | None = None
    seen_cached: int = 0
    seen_cacheable: int = 0

    def note_sent(self, event: RequestEnded, billed: int, *, is_warm: bool) -> None:
        """Note a sent prompt. It shows how the cache works only if it repeats the whole previous one."""
        has_grown = billed >= self.sent and event.checkpoint == self.checkpoint and event.removed is None
        if is_warm and has_grown and event.cached is not None:
            self.seen_cached += min(self.sent, event.cached)
            self.seen_cacheable += min(self.sent, billed)
        self.sent, self.checkpoint = billed, event.checkpoint

    @property
    def seen_share(self) -> float:
        """Return the observed cached share of a repeated prompt; 1 without an observation."""
        return min(1.0, self.seen_cached / self.seen_cacheable) if self.seen_cacheable else 1.0


class Pricing(RequestListener):
    """A hook before all others that sets the prices of an event. One instance per process."""

    def __init__(self, price: Callable[[str], Price | None], then: Hook) -> None:
        """Create a hook that passes priced events to `then`."""
        self._price = price
        self._then_on_request, self._then_on_event = get_request_callback(then), get_event_callback(then)
        self._prompts: OrderedDict[tuple[str | None, str, str], _Prompts] = OrderedDict()

    def on_request(self, event: RequestEnded, entry: RequestEntry) -> None:
        """Set the prices of a request, and pass it on."""
        if event.billed is not None and entry.is_answered and event.session is not None and event.model is not None:
            prices = self._prices(event, entry, event.session, event.model, event.billed)
            if prices is not None:
                usd, usd_received = prices
                for priced in (event, entry):
                    force_setattr(priced, "usd", usd)
                    force_setattr(priced, "usd_received", usd_received)
        self._then_on_request(event, entry)

    def on_event(self, event: Event) -> None:
        """Set the price of a summarizer's call, and pass any event on."""
        if isinstance(event, SummarizerCalled) and (price := self._price(event.model)) is not None:
            call = Tokens(event.tokens_in, event.tokens_out, event.cached, event.cache_written)
            force_setattr(event, "usd", _rounded(price.of(call)))
        self._then_on_event(event)

    def _prices(
        self, event: RequestEnded, entry: RequestEntry, session: str, model: str, billed: int
    ) -> tuple[float, float] | None:
        """Return the cost of a request, and of the unchanged request; None if the model has no known price."""
        received = entry.received
        if received is None:
            return None
        key = event.tenant, session, model
        prompts = self._prompts.get(key)
        if prompts is None:
            prompts = remember(self._prompts, key, _Prompts(), _SESSIONS)
        else:
            self._prompts.move_to_end(key)
        cached_tokens, ttl = prompts.received, _ttl(event) or prompts.ttl
        is_warm = event.at - prompts.at < ttl
        # The bill of an unchanged request is more exact than an estimate.
        is_unchanged = event.tokens_received == event.tokens_sent
        if is_unchanged:
            received = billed
        else:
            prompts.is_changed = True
        prompts.note_sent(event, billed, is_warm=is_warm)
        prompts.received, prompts.at, prompts.ttl = received, event.at, ttl
        price = self._price(model)
        if price is None:
            return None
        output, long = event.output or 0, event.cache_written_long or 0
        written = max(0, (event.cache_written or 0) - long)
        call = Tokens(billed, output, event.cached or 0, written, long)
        usd = _rounded(price.of(call))
        if is_unchanged or not prompts.is_changed:  # no estimate is needed
            return usd, usd
        cached_tokens = round(prompts.seen_share * cached_tokens)
        would = continued_prompt(cached_tokens, received, price=price, caches=ttl > 0, is_warm=is_warm).with_answer(
            output
        )
        return usd, usd if would == call else _rounded(price.of(would))


def _rounded(usd: float) -> float:
    """Round to billionths, as in tallies. `round` to digits takes four times as long."""
    return round(1e9 * usd) / 1e9


def _ttl(event: RequestEnded) -> float:
    """Return the seconds that the upstream's cache keeps a prompt; 0 if it cached nothing."""
    if event.cache_written_long:
        return LONG_CACHE_TTL
    return CACHE_TTL if event.cached or event.cache_written else 0.0
