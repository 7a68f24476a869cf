"""How much of a window is reserved for the response, and how it is lowered."""

from __future__ import annotations

import pytest

from policies.decision.budget import reserved_output, usable_input
from policies.decision.overflow_retries import StatedLimit, lowered_output


@pytest.mark.parametrize(
    ("window", "max_output", "longest", "reserved"),
    [
        (200_000, 64_000, None, 32_000),
        (200_000, None, None, 8_000),
        (20_000, None, None, 2_000),
        (20_000, 16_000, None, 10_000),
        (8_192, 30_000, None, 4_096),
        (200_000, 32_000, 1_000, 1_500),
        (200_000, 32_000, 10, 1_024),
    ],
)
def test_the_output_reserves_what_is_asked_for_and_half_of_the_window_at_most(
    window: int, max_output: int | None, longest: int | None, reserved: int
) -> None:
    assert reserved_output(window, max_output, longest) == reserved
    assert usable_input(window, max_output, exact=True, longest_answer=longest).usable == (
        window - reserved - int(window * 0.03)
    )


@pytest.mark.parametrize(("floor", "output"), [(512, 1_968), (1_968, 1_968), (1_969, None), (None, None)])
def test_the_output_is_lowered_to_what_fits_and_never_below_its_floor(floor: int | None, output: int | None) -> None:
    stated = StatedLimit(limit=10_000, input_tokens=8_000)
    lowered = lowered_output(stated, sent_tokens=7_900, window=None, max_output=4_000, floor=floor)
    assert lowered == output
