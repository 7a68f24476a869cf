"""What a call costs at list price."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.price import Payoff, Price, Tokens, continued_prompt, is_gone, payoff_of, price_in_seconds

ANTHROPIC = Price(prompt=4.0, completion=20.0, cached=0.4, written=5.0, written_long=8.0)
OPENAI = Price(prompt=4.0, completion=20.0, cached=0.4, written=4.0, written_long=4.0)
STEPPED = Price(4.0, 20.0, 0.4, 5.0, 8.0, above=1_000, dear=Price(8.0, 30.0, 0.8, 10.0, 16.0))


@pytest.mark.parametrize(
    ("price", "call", "usd"),
    [
        (ANTHROPIC, Tokens(100), 400),
        (ANTHROPIC, Tokens(100, output=10), 600),
        (ANTHROPIC, Tokens(100, cached=60), 40 * 4 + 60 * 0.4),
        (ANTHROPIC, Tokens(100, cached=60, written=30), 10 * 4 + 60 * 0.4 + 30 * 5),
        (ANTHROPIC, Tokens(100, cached=60, written=30, written_long=10), 60 * 0.4 + 30 * 5 + 10 * 8),
        # A provider that counts what its caches hold apart from the prompt gives no money back.
        (ANTHROPIC, Tokens(50, cached=60), 60 * 0.4),
        (STEPPED, Tokens(1_000, output=1), 4_020),
        (STEPPED, Tokens(1_001, output=1, cached=1_000), 8 + 800 + 30),
    ],
)
def test_what_a_call_costs(price: Price, call: Tokens, usd: float) -> None:
    assert price.of(call) == pytest.approx(usd)


@pytest.mark.parametrize(
    ("removed", "rewritten", "after"),
    [
        # Each request saves a tenth of what is gone; the rest is paid once at 1.15 more.
        (10_000, 0, 0),
        (11_500, 1_000, 1),
        (11_500, 1_001, 2),
        (80_000, 30_000, 5),
        (0, 30_000, None),
        (-50, 30_000, None),
    ],
)
def test_after_how_many_requests_a_shorter_prompt_pays(removed: int, rewritten: int, after: int | None) -> None:
    assert payoff_of(removed, rewritten) == Payoff(max(0, removed), rewritten, after)


@pytest.mark.parametrize(
    ("price", "tokens"),
    [
        # Read once more; 1.15 or 0.9 of the price for what stays, 5 times for the summary, at a tenth of it.
        (ANTHROPIC, 60_000 + 11.5 * 10_000 + 50 * 2_000),
        (OPENAI, 60_000 + 9 * 10_000 + 50 * 2_000),
        (Price(4.0, 20.0, 4.0, 4.0, 4.0), 60_000 + 5 * 2_000),
        (Price(4.0, 20.0, 0.0, 4.0, 4.0), None),
        (Price(0.0, 0.0, 0.0, 0.0, 0.0), None),
    ],
)
def test_what_a_compaction_costs_in_tokens_that_the_cache_serves(price: Price, tokens: float | None) -> None:
    found = price.of_compaction(60_000, kept=10_000, summary=2_000)
    assert found == (None if tokens is None else pytest.approx(tokens))


def test_seconds_of_a_server_are_a_price() -> None:
    seconds = price_in_seconds(prefill=400, decode=20_000, cached=100)
    assert seconds.of(Tokens(10_000, output=500, cached=8_000)) == pytest.approx(0.8 + 10 + 0.8)
    assert seconds.of_compaction(10_000, kept=2_000, summary=500) == pytest.approx(10_000 + 6_000 + 100_000)
    assert price_in_seconds(400, 20_000, 0).of_compaction(10_000, kept=2_000, summary=500) is None


@pytest.mark.parametrize(
    ("idle", "is_long", "gone"),
    [(0, False, False), (299, False, False), (300, False, True), (300, True, False), (3_600, True, True)],
)
def test_a_cache_lets_go_of_what_nobody_asks_for(idle: float, is_long: bool, gone: bool) -> None:
    assert is_gone(idle, is_long=is_long) is gone


@pytest.mark.parametrize(
    ("price", "caches", "is_warm", "call"),
    [
        (OPENAI, True, True, Tokens(100, cached=80)),
        (OPENAI, True, False, Tokens(100)),
        (ANTHROPIC, True, True, Tokens(100, cached=80, written=20)),
        (ANTHROPIC, True, False, Tokens(100, written=100)),
        (ANTHROPIC, False, True, Tokens(100)),
    ],
)
def test_a_prompt_that_goes_on_from_another(price: Price, caches: bool, is_warm: bool, call: Tokens) -> None:
    assert continued_prompt(80, 100, price=price, caches=caches, is_warm=is_warm) == call


@given(st.integers(0, 5_000), st.integers(0, 5_000))
def test_a_warm_cache_is_never_dearer_than_none(before: int, prompt: int) -> None:
    warm = continued_prompt(before, prompt, price=OPENAI, caches=True, is_warm=True)
    assert OPENAI.of(warm) <= OPENAI.of(Tokens(prompt))
