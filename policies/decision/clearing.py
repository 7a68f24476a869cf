"""Tool results that a client's context edit leaves out (Anthropic's `clear_tool_uses_20250919`)."""

from collections.abc import Sequence
from typing import NamedTuple

# The minimum step, as a share of M, if the client states no amount. Every step invalidates the cache.
STEP = 0.05


class ToolUse(NamedTuple):
    """A call with its result.

    frees: tokens that leaving it out frees.
    is_excluded: True if it must stay.
    """

    frees: int
    is_excluded: bool = False


def cleared_uses(uses: Sequence[ToolUse], keep: int, step: int) -> list[int]:
    """Return the indexes of the uses to leave out, the oldest first. The newest `keep` always stay.

    The choice depends only on the history and grows in steps of `step` tokens. Between two steps every request leaves
    out the same uses, so the prefix stays unchanged.
    """
    clearable = [at for at, use in enumerate(uses[: max(0, len(uses) - keep)]) if not use.is_excluded and use.frees > 0]
    tokens_to_free = sum(uses[at].frees for at in clearable) // max(1, step) * max(1, step)
    cleared: list[int] = []
    freed = 0
    for at in clearable:
        if freed >= tokens_to_free:
            break
        cleared.append(at)
        freed += uses[at].frees
    return cleared if tokens_to_free else []
