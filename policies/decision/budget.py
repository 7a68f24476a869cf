"""Token budgets: the usable input B and its shares (docs/design.md, "Budget")."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

from policies import numbers


@dataclass(frozen=True, slots=True)
class Budget:
    """Token budgets in units of the proxy's estimate. A calibration is already divided out.

    usable: B, the input that fits.
    record: maximum tokens of the injected text.
    fixed: tokens of tools and head, which no cut reduces.
    names: additional tokens for the working set, apart from the remainder of the record.
    rules: maximum tokens of files of rules; None for a share of the usable input.
    pins: tokens for pinned texts next to the record.
    """

    window: int
    usable: int
    record: int
    fixed: int = 0
    names: int = 0
    rules: int | None = None
    pins: int = 0

    @property
    def injected(self) -> int:
        """Return the maximum tokens that replace covered messages."""
        return self.record + self.names

    @property
    def replacing(self) -> int:
        """Return the maximum tokens of a record and of the pinned texts next to it."""
        return self.injected + self.pins

    @property
    def movable(self) -> int:
        """Return M, the tokens available to the conversation itself. Every share counts from it."""
        return max(1, self.usable - self.fixed)

    def at(self, share: float) -> int:
        """Return the tokens of the whole request at this share of M."""
        return self.fixed + int(share * self.movable)

    def share(self, tokens: int) -> float:
        """Return the share of M that a request of this size takes."""
        return (tokens - self.fixed) / self.movable

    def with_fixed(self, fixed: int) -> Budget:
        """Return this budget for a request with `fixed` tokens of tools and head."""
        return replace(budget_of(self.window, self.usable, fixed), names=self.names, pins=self.pins)

    @property
    def summary(self) -> int:
        """Return the tokens for a model's summary: clamp(0.04 M, 400, 4,000), and at most a third of the record."""
        return min(max(400, min(int(0.04 * self.movable), 4_000)), self.record // 3)

    @property
    def worthwhile_gain(self) -> int:
        """Return the minimum gain of a proactive compaction in a small window, where 2,000 tokens are out of reach."""
        return int(0.15 * self.movable)


def budget_of(window: int, usable: int, fixed: int = 0) -> Budget:
    """Return the budget of a window. The record gets a tenth of M.

    In a small window it gets up to 30 %, because rules and names do not shrink with the window.
    """
    usable = max(1, usable)
    movable = max(usable - fixed, usable // 4)
    record = min(max(movable // 10, min(3 * movable // 10, numbers.SMALL_RECORD)), numbers.MOST_RECORD)
    return Budget(window, usable, record, fixed)


def usual_names(room: int) -> int:
    """Return the maximum tokens that a working set needs in a room of this size."""
    return min(int(numbers.NAMES_ROOT * sqrt(room)), numbers.MOST_NAMES)


def with_pins(budget: Budget, tokens: int, ratio: float) -> Budget:
    """Return the budget with room for pinned texts of `tokens`, at most `ratio` of M."""
    return replace(budget, pins=min(tokens, int(ratio * budget.movable)))


def with_limit(budget: Budget | None, tokens: int) -> Budget:
    """Return the budget with at most `tokens` of usable input. For an unknown window the limit alone counts."""
    if budget is None:
        return budget_of(tokens, tokens)
    return budget if tokens >= budget.usable else budget_of(budget.window, tokens, budget.fixed)


def planned_output(window: int, max_output: int, floor: int) -> int:
    """Return the output to plan with, if a limit that does not fit is lowered to `floor` before the prompt is cut.

    A client with a limit above half of the window asks for the remaining room, not for exactly that many tokens.
    """
    return min(max_output, max(window - max_output, window // 10, floor))


def reserved_output(window: int, max_output: int | None, longest_answer: int | None) -> int:
    """Return the tokens of a window to reserve for the response.

    That is the requested maximum, or a tenth of the window without one, but no more than recent responses needed.
    """
    wanted = (
        min(window // 10, numbers.DEFAULT_RESERVED) if max_output is None else min(max_output, numbers.MOST_RESERVED)
    )
    if longest_answer is not None:
        wanted = min(wanted, max(numbers.LEAST_RESERVED, int(numbers.ANSWER_MARGIN * longest_answer)))
    return min(wanted, window // 2)


def usable_input(
    window: int,
    max_output: int | None,
    *,
    exact: bool,
    calibration: float = 1.0,
    of_prompt: bool = False,
    longest_answer: int | None = None,
) -> Budget:
    """Return the budget for a model of `window` tokens.

    max_output:  the maximum that the request states; at most half of the window is reserved for it.
    exact:       True if the model's own tokenizer counted (margin 3 %); otherwise an estimate (10 %).
    calibration: real tokens per estimated token, learned from the upstream; >= 1.
    of_prompt:   True if the window is for the prompt alone, so that no output is reserved.
    longest_answer: tokens of the longest recent response; None if there were too few.
    """
    usable = usable_tokens(window, max_output, exact=exact, of_prompt=of_prompt, longest_answer=longest_answer)
    return budget_of(window, int(usable / calibration))


def usable_tokens(
    window: int, max_output: int | None, *, exact: bool, of_prompt: bool = False, longest_answer: int | None = None
) -> int:
    """Return the tokens of a window available to a prompt, in the model's own tokens."""
    reserve = 0 if of_prompt else reserved_output(window, max_output, longest_answer)
    return window - reserve - int(window * (0.03 if exact else 0.10))
