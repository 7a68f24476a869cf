"""How many tokens may be used for what: the usable input B of docs/design.md, "Budget", and its shares."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

from policies import numbers


@dataclass(frozen=True, slots=True)
class Budget:
    """Tokens, in units of our own estimate (a calibration is already divided out).

    usable: B, the input that fits. record: the most the injected text may take. fixed: what of B every request takes
    whatever is cut, its tools and its head. names: what the working set may take beside the rest of the record, and of
    what that leaves. rules: what files of rules may take; None for a share of what is usable. pins: what pinned texts
    may need beside the record.
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
        """The most that stands in the place of covered messages."""
        return self.record + self.names

    @property
    def replacing(self) -> int:
        """The most that a record and the pinned texts beside it take, in place of covered messages."""
        return self.injected + self.pins

    @property
    def movable(self) -> int:
        """M, what the conversation itself may take; every share counts from it."""
        return max(1, self.usable - self.fixed)

    def at(self, share: float) -> int:
        """Tokens of the whole request at this share of M."""
        return self.fixed + int(share * self.movable)

    def share(self, tokens: int) -> float:
        """The share of M that a request of so many tokens takes."""
        return (tokens - self.fixed) / self.movable

    def behind(self, fixed: int) -> Budget:
        """The same for a request with so many tokens of tools and head."""
        return replace(budget_of(self.window, self.usable, fixed), names=self.names, pins=self.pins)

    @property
    def summary(self) -> int:
        """The part a model writes: clamp(0.04 M, 400, 4,000), and never more than a third of the record."""
        return min(max(400, min(int(0.04 * self.movable), 4_000)), self.record // 3)

    @property
    def worthwhile_gain(self) -> int:
        """The least a proactive compaction must free on a small window, where 2,000 tokens are out of reach."""
        return int(0.15 * self.movable)


def budget_of(window: int, usable: int, fixed: int = 0) -> Budget:
    """The record gets a tenth of M; where that is little, up to 30 %: rules and names do not shrink with a window."""
    usable = max(1, usable)
    movable = max(usable - fixed, usable // 4)
    record = min(max(movable // 10, min(3 * movable // 10, numbers.SMALL_RECORD)), numbers.MOST_RECORD)
    return Budget(window, usable, record, fixed)


def usual_names(room: int) -> int:
    """Tokens that a working set needs at most in a room of so many."""
    return min(int(numbers.NAMES_ROOT * sqrt(room)), numbers.MOST_NAMES)


def with_pins(budget: Budget, tokens: int, ratio: float) -> Budget:
    """Return the budget with room for pinned texts of so many tokens, at most this share of M."""
    return replace(budget, pins=min(tokens, int(ratio * budget.movable)))


def with_limit(budget: Budget | None, tokens: int) -> Budget:
    """The budget with at most `tokens` of usable input; that alone where the window is unknown."""
    if budget is None:
        return budget_of(tokens, tokens)
    return budget if tokens >= budget.usable else budget_of(budget.window, tokens, budget.fixed)


def planned_output(window: int, max_output: int, floor: int) -> int:
    """Return the output to plan with, if a limit that does not fit is lowered to `floor` before the prompt is cut.

    A limit of more than half of the window leaves the prompt less than itself. It asks for what is left, not for that.
    """
    return min(max_output, max(window - max_output, window // 10, floor))


def reserved_output(window: int, max_output: int | None, longest_answer: int | None) -> int:
    """What of a window is kept for the answer.

    What is asked for (a tenth of the window where nothing is), but not more than answers have been seen to take.
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
    """Budget for a model of `window` tokens.

    max_output:  what the request asks for; half of the window at most is reserved for it.
    exact:       the model's own tokenizer counted (margin 3 %), else an estimate (10 %).
    calibration: real tokens per estimated token, learned from the upstream; >= 1.
    of_prompt:   the window is for the prompt alone, so nothing is reserved for the output.
    longest_answer: that was seen lately, in tokens; None where too few were.
    """
    usable = usable_tokens(window, max_output, exact=exact, of_prompt=of_prompt, longest_answer=longest_answer)
    return budget_of(window, int(usable / calibration))


def usable_tokens(
    window: int, max_output: int | None, *, exact: bool, of_prompt: bool = False, longest_answer: int | None = None
) -> int:
    """What a prompt may take of a window, in the model's own tokens."""
    reserve = 0 if of_prompt else reserved_output(window, max_output, longest_answer)
    return window - reserve - int(window * (0.03 if exact else 0.10))
