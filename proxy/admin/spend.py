"""Spend by model. Pages and API get all money figures here."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from policies.price import Price
from proxy.telemetry import figures
from proxy.telemetry.tally import Tally, total

Prices = Callable[[str], Price | None]


class Spend(NamedTuple):
    """US dollars at list price, of the models with a price; None if none has one.

    cost: of responses and summaries. saved: estimated difference to the cost of the unchanged requests. unpriced: names
    of the models without a price.
    """

    cost: float | None
    summaries: float | None
    saved: float | None
    unpriced: list[str]


def spend_of(sums: Iterable[tuple[str, Tally]], price: Prices) -> Spend:
    """Return the spend of sums, each with its model."""
    sums = [*sums]
    tally, unpriced = total(each for _, each in sums), {model for model, _ in sums if price(model) is None}
    unpriced_names = sorted(filter(None, unpriced))
    if all(model in unpriced for model, _ in sums):
        return Spend(None, None, None, unpriced_names)
    summary_cost = figures.cost_of_summaries(tally)
    return Spend(figures.cost_of_answers(tally) + summary_cost, summary_cost, figures.usd_saved(tally), unpriced_names)
