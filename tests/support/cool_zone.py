"""Tool loops with large results, and where they stand."""

from __future__ import annotations

from policies.decision.large_results import Zone
from policies.settings import PolicySettings
from tests.support.conversations import Json, assistant, tool, user

WINDOW = 40_000
LARGE = 3_000


def policy(**large: object) -> PolicySettings:
    """A policy of which a compaction leaves so much that a batch is worth more than the next one."""
    return PolicySettings.model_validate({"target_root": 200, "large_messages": large})


def loop(*sizes: int, name: str = "bash") -> list[Json]:
    """A task and one round for every size, in tokens of the result."""
    found = [user("the task")]
    for i, size in enumerate(sizes):
        found += [assistant(None, f"c{i}", name=name), tool(f"c{i}", "x" * (4 * size - 16))]
    return found


def replaced(zone: Zone) -> list[int]:
    return [member for batch in zone.batches for member in batch.members]


def result(number: int) -> int:
    """Where the result of round `number` stands in a loop's body."""
    return 2 + 2 * number
