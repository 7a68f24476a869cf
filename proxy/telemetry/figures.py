"""What the figures mean that are shown, each defined once: pages, metrics and commands use these and nothing else."""

from typing import Protocol

from proxy.telemetry.tally import LATENCIES, LATENCY_BOUNDS, Tally

# From here on a conversation is near its window.
NEAR = 0.9
_BILLION = 1e9


class PromptSize(Protocol):
    """A prompt that went upstream: tokens of it, and of what a prompt may take of its window."""

    @property
    def sent(self) -> int | None: ...
    @property
    def usable(self) -> int | None: ...


def not_sent(tally: Tally) -> int:
    """Tokens of prompts that did not go upstream."""
    return tally.received - tally.sent


def summaries(tally: Tally) -> int:
    """Tokens that summarizers took, prompts and answers."""
    return tally.summary_in + tally.summary_out


def net(tally: Tally) -> int:
    """What was not sent, less what summaries took for it; may be negative."""
    return not_sent(tally) - summaries(tally)


def cache_share(tally: Tally) -> float | None:
    """The share of billed tokens that the upstream's cache served, where it tells; None where none does."""
    return tally.cached / tally.cached_of if tally.cached_of else None


def cost_of_answers(tally: Tally) -> float:
    """US dollars at list price, prompts and answers, what a cache served and took at its own price."""
    return tally.cost / _BILLION


def cost_of_summaries(tally: Tally) -> float:
    """The same for the calls of summarizers."""
    return tally.cost_summaries / _BILLION


def cost_as_received(tally: Tally) -> float:
    """What the same requests would have cost as they came, with the cache that they would have had: an estimate."""
    return tally.cost_received / _BILLION


def usd_saved(tally: Tally) -> float:
    """US dollars that were not paid, summaries deducted; an estimate, and negative where we were dearer."""
    return (tally.cost_received - tally.cost - tally.cost_summaries) / _BILLION


def has_price(tally: Tally) -> bool:
    """Return True if a price is known of anything in it."""
    return bool(tally.cost or tally.cost_received or tally.cost_summaries)


def latency(tally: Tally, share: float) -> float | None:
    """Seconds in which this share of the answered requests had ended, None without any: an estimate, as if those
    between two bounds were spread evenly. What is beyond the last bound counts as that."""
    counts: list[int] = [getattr(tally, name) for name in LATENCIES]
    wanted, lower = share * sum(counts), 0.0
    for bound, count in zip(LATENCY_BOUNDS, counts, strict=False):
        if count and wanted <= count:
            return (lower + (bound - lower) * wanted / count) / 1000
        wanted, lower = wanted - count, bound
    return lower / 1000 if counts[-1] else None


def fill(prompt: PromptSize) -> float | None:
    """The share of what a prompt may take that one took; None where the window is not known."""
    sent = prompt.sent
    return None if sent is None or not prompt.usable else sent / prompt.usable


def is_near(prompt: PromptSize) -> bool:
    """Whether its conversation is near its window."""
    return (fill(prompt) or 0.0) >= NEAR
