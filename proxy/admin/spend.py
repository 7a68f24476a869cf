"""What was spent, of sums by model: the one place where pages and API ask what money is known of."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from policies.price import Price
from proxy.telemetry import figures
from proxy.telemetry.tally import Tally, total

Prices = Callable[[str], Price | None]


class Spend(NamedTuple):
    """US dollars at list price, of the models that have a price; None where none has one.

    cost: of answers and summaries. saved: what the same requests would have cost more as they came, an estimate.
    unpriced: names of the models without a price.
    """

    cost: float | None
    summaries: float | None
    saved: float | None
    unpriced: list[str]


def spend_of(sums: Iterable[tuple[str, Tally]], price: Prices) -> Spend:
    """Of sums, each with its model."""
    sums = [*sums]
    tally, unpriced = total(each for _, each in sums), {model for model, _ in sums if price(model) is None}
    named = sorted(filter(None, unpriced))
    if all(model in unpriced for model, _ in sums):
        return Spend(None, None, None, named)
    made = figures.cost_of_summaries(tally)
    return Spend(figures.cost_of_answers(tally) + made, made, figures.usd_saved(tally), named)
