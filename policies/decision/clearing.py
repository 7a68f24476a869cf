"""Which results of tools a client's own edit leaves out (Anthropic's `clear_tool_uses_20250919`)."""

from collections.abc import Sequence
from typing import NamedTuple

# Share of M by which what is left out grows at least where the client names no amount: every step breaks the cache.
STEP = 0.05


class ToolUse(NamedTuple):
    """A call with its result. frees: tokens that leaving it out frees; is_excluded: whether it stays whatever it is."""

    frees: int
    is_excluded: bool = False


def cleared_uses(uses: Sequence[ToolUse], keep: int, step: int) -> list[int]:
    """Which of the uses of a history are left out, the oldest first; all but the newest `keep` may be.

    It follows from the history alone, and grows by whole steps of so many tokens: between two of them every request
    leaves out the same, and what is sent begins as before.
    """
    able = [at for at, use in enumerate(uses[: max(0, len(uses) - keep)]) if not use.is_excluded and use.frees > 0]
    wanted = sum(uses[at].frees for at in able) // max(1, step) * max(1, step)
    found: list[int] = []
    freed = 0
    for at in able:
        if freed >= wanted:
            break
        found.append(at)
        freed += uses[at].frees
    return found if wanted else []
