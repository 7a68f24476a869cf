"""The definitions of all figures. Pages, metrics and commands use only these."""

from typing import Protocol

from proxy.telemetry.tally import LATENCIES, LATENCY_BOUNDS, Tally

# The share of the room from which on a conversation is near its window.
NEAR = 0.9
_BILLION = 1e9


class PromptSize(Protocol):
    """A sent prompt: its tokens, and the room for a prompt in its window."""

    @property
    def sent(self) -> int | None:
        """Return the sent tokens."""

    @property
    def usable(self) -> int | None:
        """Return the room for a prompt, in tokens."""


def not_sent(tally: Tally) -> int:
    """Return the prompt tokens that were not sent."""
    return tally.received - tally.sent


def summaries(tally: Tally) -> int:
    """Return the tokens of summarizers, prompts and responses."""
    return tally.summary_in + tally.summary_out


def net(tally: Tally) -> int:
    """Return the tokens that were not sent, minus the tokens of summaries. It may be negative."""
    return not_sent(tally) - summaries(tally)


def cache_share(tally: Tally) -> float | None:
    """Return the share of billed tokens from the upstream's cache; None if no upstream reports it."""
    return tally.cached / tally.cached_of if tally.cached_of else None


def cost_of_answers(tally: Tally) -> float:
    """Return US dollars at list price for prompts and responses, with cached tokens at their own price."""
    return tally.cost / _BILLION


def cost_of_summaries(tally: Tally) -> float:
    """Return US dollars at list price for the calls of summarizers."""
    return tally.cost_summaries / _BILLION


def cost_as_received(tally: Tally) -> float:
    """Return the estimated cost of the unchanged requests, with the cache that they would have had."""
    return tally.cost_received / _BILLION


def usd_saved(tally: Tally) -> float:
    """Return the saved US dollars minus summaries. It is an estimate, and negative if the proxy cost more."""
    return (tally.cost_received - tally.cost - tally.cost_summaries) / _BILLION


def has_price(tally: Tally) -> bool:
    """Return True if anything in it has a known price."""
    return bool(tally.cost or tally.cost_received or tally.cost_summaries)


def latency(tally: Tally, share: float) -> float | None:
    """Return the estimated seconds in which this share of the answered requests ended; None without any.

    Requests between two bounds count as spread evenly, those beyond the last bound as equal to it.
    """
    counts: list[int] = [getattr(tally, name) for name in LATENCIES]
    wanted, lower = share * sum(counts), 0.0
    for bound, count in zip(LATENCY_BOUNDS, counts, strict=False):
        if count and wanted <= count:
            return (lower + (bound - lower) * wanted / count) / 1000
        wanted, lower = wanted - count, bound
    return lower / 1000 if counts[-1] else None


def fill(prompt: PromptSize) -> float | None:
    """Return the share of the room that a prompt took; None if the window is unknown."""
    sent = prompt.sent
    return None if sent is None or not prompt.usable else sent / prompt.usable


def is_near(prompt: PromptSize) -> bool:
    """Return True if the prompt's conversation is near its window."""
    return (fill(prompt) or 0.0) >= NEAR
