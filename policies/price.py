"""The price of a call at a provider's list price, including its prompt cache (docs/costs.md)."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

# Seconds for which a prompt cache keeps an unused prompt: usually, and with Anthropic's paid extension.
CACHE_TTL = 300.0
LONG_CACHE_TTL = 3_600.0
# The price of cached and of newly cached tokens as a share of the prompt's price, where both are highest (Anthropic).
# They decide whether to invalidate a cache. Writing a prompt to the cache again costs the difference.
CACHED, _WRITTEN = 0.1, 1.25
REWRITTEN = _WRITTEN - CACHED


def is_gone(idle: float, *, is_long: bool = False) -> bool:
    """Return True if a provider's cache no longer holds a prompt unused for `idle` seconds.

    is_long: True if the longer life was paid for.
    """
    return idle >= (LONG_CACHE_TTL if is_long else CACHE_TTL)


@dataclass(frozen=True, slots=True)
class Payoff:
    """An estimate of what removing tokens from a prompt saves and costs.

    removed: tokens that no later request has.
    rewritten: later tokens of the prompt, which the provider's cache must write again.
    pays_after: requests after which the savings exceed the costs; None if nothing is saved.
    """

    removed: int
    rewritten: int
    pays_after: int | None


def payoff_of(removed: int, rewritten: int) -> Payoff:
    """Return the payoff if the cache holds the prompt. The removed tokens are not read again, the rest is paid once."""
    removed, rewritten = max(0, removed), max(0, rewritten)
    return Payoff(removed, rewritten, ceil(rewritten * REWRITTEN / (removed * CACHED)) if removed else None)


@dataclass(frozen=True, slots=True)
class ReadSoFar:
    """The tokens that requests have read of what a compaction would remove now, and the price of that compaction.

    requests: number of these requests.
    price: of the compaction, in cached tokens.
    """

    read: int
    requests: int
    price: int

    @property
    def times(self) -> float:
        """Return how many compactions the read tokens could have paid for."""
        return self.read / max(1, self.price)


class Tokens(NamedTuple):
    """The tokens of one call.

    prompt: all of it, including cached tokens and those written to the cache.
    cached: served by the provider's cache.
    written: written to the cache for its usual time. written_long: for an hour.
    """

    prompt: int
    output: int = 0
    cached: int = 0
    written: int = 0
    written_long: int = 0

    def with_answer(self, output: int) -> Tokens:
        """Return the tokens with a response of `output`."""
        return Tokens(self.prompt, output, self.cached, self.written, self.written_long)


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per token: of a prompt, of a response, and of cached tokens and those written to the cache.

    above: tokens of a prompt beyond which the whole call costs `dear`; None if the provider has no such step.
    """

    prompt: float
    completion: float
    cached: float
    written: float
    written_long: float
    above: int | None = None
    dear: Price | None = None

    def of(self, call: Tokens) -> float:
        """Return the price of one call in US dollars."""
        if self.dear is not None and self.above is not None and call.prompt > self.above:
            return self.dear.of_many(call)
        return self.of_many(call)

    def of_many(self, call: Tokens) -> float:
        """Return the price of many calls together in US dollars. None of them is beyond the step."""
        prompt, output, cached, written, written_long = call
        return (
            max(0, prompt - cached - written - written_long) * self.prompt
            + cached * self.cached
            + written * self.written
            + written_long * self.written_long
            + output * self.completion
        )

    def of_compaction(self, prompt: int, kept: int, summary: int) -> float | None:
        """Return the price of a compaction in cached tokens; None if these are free.

        Its model reads the `prompt` from the cache and writes the `summary`. The next request writes the `kept` tokens
        after tools and head to the cache again.
        """
        if not self.cached:
            return None
        return prompt + (kept * (self.written - self.cached) + summary * self.completion) / self.cached

    @property
    def bills_writes(self) -> bool:
        """Return True if writing to the cache costs more than an uncached prompt."""
        return self.written > self.prompt


def price_in_seconds(prefill: float, decode: float, cached: float) -> Price:
    """Return the price of a self-hosted server in seconds. All are for a million tokens."""
    prompt = prefill / 1e6
    return Price(prompt, decode / 1e6, cached=cached / 1e6, written=prompt, written_long=prompt)


def continued_prompt(before: int, prompt: int, *, price: Price, caches: bool, is_warm: bool) -> Tokens:
    """Return the tokens of a prompt that begins with an earlier one of `before` tokens.

    caches: True if the provider's cache stores it.
    is_warm: True if the cache still holds the earlier prompt.
    """
    if not caches:
        return Tokens(prompt)
    cached = min(before, prompt) if is_warm else 0
    return Tokens(prompt, cached=cached, written=prompt - cached if price.bills_writes else 0)
