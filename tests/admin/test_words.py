"""Numbers, times and names as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from policies.price import payoff_of
from proxy.admin import words

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("write", "value", "written"),
    [
        (words.exact, 161_234, "161,234"),
        (words.exact, -5, "−5"),
        (words.exact, None, "–"),
        (words.short, 0, "0"),
        (words.short, 9_120, "9,120"),
        (words.short, 161_234, "161 k"),
        (words.short, 999_960, "1.00 M"),
        (words.short, 2_123_456, "2.12 M"),
        (words.short, -12_345, "−12.3 k"),
        (words.short, 4.2e12, "4200 G"),
        (words.round_number, 0.0, "0"),
        (words.round_number, 2.5, "2.5"),
        (words.round_number, 15_000, "15 k"),
        (words.round_number, 2_500_000, "2.5 M"),
        (words.share, 0.0, "0 %"),
        (words.share, 0.004, "0.4 %"),
        (words.share, 0.724, "72 %"),
        (words.share, 1.3, "130 %"),
        (words.usd, 1234.5, "$1,234.50"),
        (words.usd, 0.0031, "$0.0031"),
        (words.usd, 0.0, "$0.00"),
        (words.usd, -0.5, "−$0.50"),
        (words.span, 0.012, "12 ms"),
        (words.span, 0.25, "250 ms"),
        (words.span, 1.44, "1.4 s"),
        (words.span, 3, "3 s"),
        (words.span, 43.4, "43 s"),
        (words.span, 60, "1 min"),
        (words.span, 4_320, "1 h 12 min"),
        (words.span, 200_000, "2 d 7 h"),
        (words.setting, None, "unset"),
        (words.setting, True, "true"),
        (words.setting, 10.0, "10"),
        (words.setting, ["text", "tool"], "text, tool"),
        (words.setting, [], "none"),
        (words.size, 512, "512 bytes"),
        (words.size, 4_200_000, "4.20 MB"),
        (words.name, "x" * 200, "x" * 127 + "…"),
        (words.moment, 1_800_000_000.5, "2027-01-15T08:00:00Z"),
        (words.clock, 1_800_000_000.5, "08:00:00"),
    ],
)
def test_a_value_is_written_so(write: Callable[[object], str], value: object, written: str) -> None:
    assert write(value) == written


@pytest.mark.parametrize("write", [words.exact, words.short, words.share, words.usd, words.span, words.size])
def test_what_is_not_known_is_a_dash_and_no_zero(write: Callable[[object], str]) -> None:
    assert write(None) == words.UNKNOWN


def test_a_moment_is_told_from_now() -> None:
    assert [words.ago(at, 100.0) for at in (100.0, 101.0, 98.6, 40.0)] == [
        "just now",
        "just now",
        "1 s ago",
        "1 min ago",
    ]


@pytest.mark.parametrize(
    ("removed", "said"),
    [(0, "no later request is smaller, and 23 later tokens"), (230, "is 230 tokens smaller, and 23 later tokens")],
)
def test_what_a_shorter_prompt_saves_and_breaks_is_called_an_estimate(removed: int, said: str) -> None:
    told = words.payoff(payoff_of(removed, 23))
    assert told.startswith("By estimate ")
    assert said in told
    assert told.endswith(": it pays after 2 requests.") == bool(removed)


def test_a_noun_follows_its_number() -> None:
    said = [words.plural(1, "request"), words.plural(2, "request"), words.plural(3, "summary", "summaries")]
    assert said == ["1 request", "2 requests", "3 summaries"]
