"""What requests and summaries cost, and what requests would have cost as they came."""

from __future__ import annotations

import pytest

from policies.price import CACHE_TTL, LONG_CACHE_TTL, Price
from proxy.telemetry.events import Event, RequestEnded, SummarizerCalled
from proxy.telemetry.pricing import Pricing
from tests.support.events import answered, called

PRICES = {
    "plain": Price(prompt=4.0, completion=20.0, cached=0.4, written=4.0, written_long=4.0),
    "writes": Price(prompt=4.0, completion=20.0, cached=0.4, written=5.0, written_long=8.0),
}


def priced(*events: RequestEnded) -> list[tuple[float | None, float | None]]:
    told: list[Event] = []
    pricing = Pricing(PRICES.get, told.append)
    for event in events:
        pricing(event)
    return [(event.usd, event.usd_received) for event in told if isinstance(event, RequestEnded)]


def asked(at: float, received: int, sent: int, **more: object) -> RequestEnded:
    return answered(
        **{"model": "plain", "at": at, "tokens_received": received, "tokens_sent": sent, "billed": sent, "output": 10}
        | more
    )


def test_what_went_out_as_it_came_costs_the_same() -> None:
    first, second = asked(0, 100, 100, cached=0), asked(10, 150, 150, cached=100)
    assert priced(first, second) == [(600, 600), (440, 440)]
    # Once its cache was seen at work, it would have held what came before.
    assert priced(first, second, asked(20, 180, 180, cached=150))[2] == (60 + 120 + 200, 60 + 120 + 200)


def test_a_session_that_was_never_changed_saves_nothing_and_costs_nothing_more() -> None:
    # Its provider's cache lost the prefix; without the proxy it would have lost it too.
    events = [asked(at, 1_000 + at, 1_000 + at, cached=cached) for at, cached in ((0, 0), (10, 900), (20, 0), (30, 50))]
    assert all(paid == would for paid, would in priced(*events))
    paid, would = priced(*events, asked(40, 1_100, 200, cached=0), asked(50, 1_150, 1_150, cached=0))[-1]
    assert (paid, would) == (1_150 * 4 + 200, 1_150 * 4 + 200), "it was not changed itself"


def test_the_cache_that_was_seen_is_assumed_and_not_a_perfect_one() -> None:
    # Of what a prompt repeats the cache serves half. A prompt with a new record says nothing of that.
    events = [asked(at, 1_000 + at, 1_000 + at, cached=cached) for at, cached in ((0, 0), (10, 500), (20, 505))]
    made = asked(30, 1_030, 200, cached=0, checkpoint="a" * 16)
    _, would = priced(*events, made)[-1]
    assert would == 510 * 0.4 + 520 * 4 + 200
    _, would = priced(*events, made, asked(40, 1_040, 210, cached=100, checkpoint="a" * 16))[-1]
    assert would == 515 * 0.4 + 525 * 4 + 200
    _, perfect = priced(asked(0, 1_000, 1_000, cached=0), asked(10, 1_010, 200, cached=5, checkpoint="a" * 16))[-1]
    assert perfect == 1_000 * 0.4 + 10 * 4 + 200, "none was seen"


def test_a_shorter_prompt_is_held_against_the_whole_with_the_cache_it_would_have_had() -> None:
    warm = asked(0, 1_000, 1_000, cached=900)
    short = asked(10, 1_100, 200, cached=0)
    paid, would = priced(warm, short)[1]
    assert (paid, would) == (200 * 4 + 200, 1_000 * 0.4 + 100 * 4 + 200)


@pytest.mark.parametrize(
    ("ttl", "more"),
    [(CACHE_TTL, {"cache_written": 50}), (LONG_CACHE_TTL, {"cache_written_long": 50, "cache_written": 50})],
)
def test_a_cache_forgets_and_writing_anew_is_paid(ttl: float, more: dict[str, object]) -> None:
    first = asked(0, 1_000, 1_000, model="writes", cached=900, **more)
    for seconds, held in ((ttl - 1, 1_000), (ttl + 1, 0)):
        _, would = priced(first, asked(seconds, 1_100, 200, model="writes", cached=0))[1]
        assert would == held * 0.4 + (1_100 - held) * 5 + 200


def test_without_a_cache_all_is_fresh_and_sessions_do_not_mix() -> None:
    first = asked(0, 1_000, 1_000, cached=900, session="a")
    assert priced(first, asked(1, 1_100, 200, session="b"))[1] == (1_000, 4_600)


@pytest.mark.parametrize("changed", [{"model": "unheard-of"}, {"billed": None}, {"status": 500}, {"session": None}])
def test_what_is_not_known_has_no_price(changed: dict[str, object]) -> None:
    assert priced(asked(0, 10, 10, **changed)) == [(None, None)]


def test_a_summary_costs_what_it_took_with_what_the_cache_served() -> None:
    told: list[Event] = []
    Pricing(PRICES.get, told.append)(called(model="writes", tokens_in=100, tokens_out=10, cached=60, cache_written=30))
    (call,) = told
    assert isinstance(call, SummarizerCalled)
    assert call.usd == 10 * 4 + 60 * 0.4 + 30 * 5 + 200
