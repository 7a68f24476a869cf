"""What a call costs at a provider's list price, its prompt cache taken into account (docs/costs.md)."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

# Seconds for which a prompt cache holds what nobody asks for: usually, and where Anthropic is paid for longer.
CACHE_TTL = 300.0
LONG_CACHE_TTL = 3_600.0
# Of a prompt's price, what a cache serves and what it takes, where that is dearest (at Anthropic): by these
# two is decided whether to break one. What is written anew costs the difference.
CACHED, _WRITTEN = 0.1, 1.25
REWRITTEN = _WRITTEN - CACHED


def is_gone(idle: float, *, is_long: bool = False) -> bool:
    """Return True if a provider's cache no longer holds a prompt that nobody has asked for in `idle` seconds.

    is_long: it was paid to hold it for longer.
    """
    return idle >= (LONG_CACHE_TTL if is_long else CACHE_TTL)


@dataclass(frozen=True, slots=True)
class Payoff:
    """What it saves, and what it breaks, to take tokens out of a prompt: an estimate, since nobody knows what follows.

    removed: tokens that no request carries from now on. rewritten: those behind them, which the provider's cache must
    take anew. pays_after: requests after which the first has made up for the second; None where nothing is saved.
    """

    removed: int
    rewritten: int
    pays_after: int | None


def payoff_of(removed: int, rewritten: int) -> Payoff:
    """Of so many tokens, where the cache holds the prompt: a request reads them no more, and pays once for the rest."""
    removed, rewritten = max(0, removed), max(0, rewritten)
    return Payoff(removed, rewritten, ceil(rewritten * REWRITTEN / (removed * CACHED)) if removed else None)


@dataclass(frozen=True, slots=True)
class ReadSoFar:
    """Tokens that requests have read of what a compaction would take out now, and what that compaction costs.

    requests: how many have read them. price: of the compaction, in tokens that the provider's cache serves.
    """

    read: int
    requests: int
    price: int

    @property
    def times(self) -> float:
        """How many compactions could have been paid from what was read."""
        return self.read / max(1, self.price)


class Tokens(NamedTuple):
    """Of one call. prompt: all of it, with those that the provider's cache served (cached), took for its usual time
    (written) and took for an hour (written_long)."""

    prompt: int
    output: int = 0
    cached: int = 0
    written: int = 0
    written_long: int = 0

    def with_answer(self, output: int) -> Tokens:
        """With an answer of so many tokens."""
        return Tokens(self.prompt, output, self.cached, self.written, self.written_long)


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars a token: of a prompt, of an answer, and of what of a prompt the cache serves or takes.

    above: tokens of a prompt beyond which the whole call costs `dear`, where a provider has such a step.
    """

    prompt: float
    completion: float
    cached: float
    written: float
    written_long: float
    above: int | None = None
    dear: Price | None = None

    def of(self, call: Tokens) -> float:
        """US dollars of one call."""
        if self.dear is not None and self.above is not None and call.prompt > self.above:
            return self.dear.of_many(call)
        return self.of_many(call)

    def of_many(self, call: Tokens) -> float:
        """US dollars of many calls together, none of them beyond the step."""
        prompt, output, cached, written, written_long = call
        return (
            max(0, prompt - cached - written - written_long) * self.prompt
            + cached * self.cached
            + written * self.written
            + written_long * self.written_long
            + output * self.completion
        )

    def of_compaction(self, prompt: int, kept: int, summary: int) -> float | None:
        """Return what a compaction costs, in tokens that the cache serves; None if those cost nothing.

        Its model reads the `prompt` from the cache and writes the `summary`. The next request writes anew what is
        `kept` behind tools and head.
        """
        if not self.cached:
            return None
        return prompt + (kept * (self.written - self.cached) + summary * self.completion) / self.cached

    @property
    def bills_writes(self) -> bool:
        """Whether what the cache takes costs more than what it does not."""
        return self.written > self.prompt


def price_in_seconds(prefill: float, decode: float, cached: float) -> Price:
    """Return the price of a server of one's own, in seconds. All are for a million tokens."""
    prompt = prefill / 1e6
    return Price(prompt, decode / 1e6, cached=cached / 1e6, written=prompt, written_long=prompt)


def prompt_behind(before: int, prompt: int, *, price: Price, caches: bool, is_warm: bool) -> Tokens:
    """A prompt of so many tokens that repeats one of `before` tokens from its start and goes on.

    caches: whether the provider's cache takes it. is_warm: whether it still holds what went before.
    """
    if not caches:
        return Tokens(prompt)
    cached = min(before, prompt) if is_warm else 0
    return Tokens(prompt, cached=cached, written=prompt - cached if price.bills_writes else 0)
