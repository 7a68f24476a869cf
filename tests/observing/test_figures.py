"""The figures that are shown, each by its definition."""

from __future__ import annotations

import pytest

from policies.price import Price
from proxy.observing import figures
from proxy.observing.tally import Tally
from tests.support.events import answered

PRICE = Price(prompt=2.0, completion=8.0, cached=0.5, written=2.5, written_long=4.0)


def test_what_summaries_took_is_subtracted_and_the_net_may_be_negative() -> None:
    tally = Tally(received=10_000, sent=9_000, summary_in=4_000, summary_out=300)
    assert (figures.not_sent(tally), figures.summaries(tally), figures.net(tally)) == (1_000, 4_300, -3_300)


@pytest.mark.parametrize(
    ("tally", "share"),
    [(Tally(), None), (Tally(billed=500), None), (Tally(billed=900, cached_of=400, cached=100), 0.25)],
)
def test_the_cache_share_is_of_those_whose_upstream_tells_it(tally: Tally, share: float | None) -> None:
    assert figures.cache_share(tally) == share


def test_cost_is_at_list_price_and_unknown_where_no_price_is() -> None:
    tally = Tally(billed=100, cached=60, output=10, summary_in=20, summary_out=5)
    assert figures.cost_of_answers(tally, PRICE) == 40 * 2 + 60 * 0.5 + 10 * 8
    assert figures.cost_of_summaries(tally, PRICE) == 20 * 2 + 5 * 8
    assert (figures.cost_of_answers(tally, None), figures.cost_of_summaries(tally, None)) == (None, None)


@pytest.mark.parametrize(
    ("changed", "fill", "is_near"),
    [
        ({"tokens_sent": 700, "usable": 1_000}, 0.7, False),
        ({"tokens_sent": 900, "usable": 1_000}, 0.9, True),
        ({"tokens_sent": 600, "usable": 1_000, "calibration": 1.5}, 0.9, True),
        ({"usable": None}, None, False),
        ({"tokens_sent": None}, None, False),
    ],
)
def test_near_the_window_is_by_what_a_prompt_may_take(
    changed: dict[str, object], fill: float | None, is_near: bool
) -> None:
    assert figures.fill(answered(**changed)) == fill
    assert figures.is_near(answered(**changed)) is is_near
