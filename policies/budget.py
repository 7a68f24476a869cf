"""How many tokens may be used for what: the usable input B of docs/design.md, section 2, and its shares."""

from __future__ import annotations

from dataclasses import dataclass

MAX_RESERVE = 32_000
DEFAULT_RESERVE = 8_000
MAX_RECORD = 8_000
# What a record may have even where a tenth of the window is less: rules and identifiers do not shrink with it.
SMALL_RECORD = 1_400


@dataclass(frozen=True, slots=True)
class Budget:
    """Tokens, in units of our own estimate (a calibration is already divided out).

    usable: B, the input that fits. record: the most the injected text may take.
    """

    window: int
    usable: int
    record: int

    @property
    def summary(self) -> int:
        """The part a model writes: clamp(0.04 B, 400, 4,000), and never more than a third of the record."""
        return min(max(400, min(int(0.04 * self.usable), 4_000)), self.record // 3)

    @property
    def worthwhile_gain(self) -> int:
        """The least a proactive compaction must free on a small window, where 2,000 tokens are out of reach."""
        return int(0.15 * self.usable)


def budget_of(window: int, usable: int) -> Budget:
    """The record gets a tenth of the usable input; on small windows more, up to 30 %."""
    usable = max(1, usable)
    return Budget(window, usable, min(max(usable // 10, min(3 * usable // 10, SMALL_RECORD)), MAX_RECORD))


def limited(budget: Budget | None, tokens: int) -> Budget:
    """The budget with at most `tokens` of usable input; that alone where the window is unknown."""
    if budget is None:
        return budget_of(tokens, tokens)
    return budget if tokens >= budget.usable else budget_of(budget.window, tokens)


def usable_input(
    window: int, max_output: int | None, *, exact: bool, calibration: float = 1.0, of_prompt: bool = False
) -> Budget:
    """Budget for a model of `window` tokens.

    max_output:  what the request asks for; half of the window at most is reserved for it.
    exact:       the model's own tokenizer counted (margin 3 %), else an estimate (10 %).
    calibration: real tokens per estimated token, learned from the upstream; >= 1.
    of_prompt:   the window is for the prompt alone, so nothing is reserved for the output.
    """
    wanted = min(window // 10, DEFAULT_RESERVE) if max_output is None else min(max_output, MAX_RESERVE)
    reserve = 0 if of_prompt else min(wanted, window // 2)
    margin = int(window * (0.03 if exact else 0.10))
    return budget_of(window, int((window - reserve - margin) / calibration))
