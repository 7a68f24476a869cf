"""What a session saved: tokens, money, and requests that would have been refused."""

from __future__ import annotations

from proxy.admin.sessions.savings import savings_of
from proxy.telemetry.tally import Tally

BILLION = 1_000_000_000


def test_a_session_in_which_nothing_was_changed_saved_nothing() -> None:
    found = savings_of(Tally(requests=3, answered=3, received=900, sent=900, cost=BILLION, cost_received=BILLION))
    assert (found.net, found.saved, found.kept_alive) == (0, 0.0, 0)
    assert found.sentences == [
        "Its prompts were not changed, so nothing was saved or lost.",
        "It cost $1.00 at list price. Without the proxy it would have cost the same.",
    ]


def test_what_would_have_been_refused_is_said_beside_the_money() -> None:
    tally = Tally(
        requests=9, answered=9, received=90_000, sent=40_000, summary_in=4_000, summary_out=1_000, kept_alive=2,
        cost=2 * BILLION, cost_received=5 * BILLION, cost_summaries=BILLION // 2,
    )  # fmt: skip
    found = savings_of(tally)
    assert (found.not_sent, found.summaries, found.net) == (50_000, 5_000, 45_000)
    assert (found.cost, found.cost_of_summaries, found.cost_as_received, found.saved) == (2.5, 0.5, 5.0, 2.5)
    assert found.sentences == [
        "Of 90,000 tokens of prompts, 50,000 were not sent. Summaries took 5,000: 45,000 fewer in all.",
        "It cost $2.50 at list price, $0.50 of it for summaries. Without the proxy it would have cost an estimated"
        " $5.00: $2.50 less.",
        "Without the proxy, 2 requests would have been refused as too long for the model. Their cost counts as if"
        " they had been accepted.",
    ]


def test_money_is_not_known_without_a_price_and_a_dearer_session_says_so() -> None:
    unpriced = savings_of(Tally(requests=1, answered=1, received=90, sent=80))
    assert (unpriced.cost, unpriced.saved, unpriced.net) == (None, None, 10)
    assert unpriced.sentences[-1] == "The price of its model is unknown, so the cost is too."
    dearer = savings_of(Tally(received=90, sent=80, summary_in=30, cost=3 * BILLION, cost_received=BILLION))
    assert dearer.saved == -2.0
    assert "20 more in all" in dearer.sentences[0]
    assert "$2.00 more." in dearer.sentences[1]
