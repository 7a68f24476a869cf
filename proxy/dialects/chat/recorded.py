"""Chat's bodies and messages as they lie in files."""

from collections.abc import Collection, Mapping, Sequence

FIELDS: Sequence[str] = ("tools", "functions", "response_format", "max_tokens", "max_completion_tokens")
_MESSAGE = (
    *("role", "content", "name", "tool_calls", "tool_call_id", "refusal"),
    *("reasoning_content", "reasoning", "reasoning_details"),
)
_ROLES = ("system", "developer", "user", "assistant", "tool")


def is_body(_: Collection[str]) -> bool:
    """Messages have its fields too."""
    return False


def is_item(_: object) -> bool:
    return False


def as_sent(item: Mapping[str, object]) -> Mapping[str, object] | None:
    """Trajectories hold messages with what tools noted beside them, and what are no messages."""
    return {key: item[key] for key in _MESSAGE if key in item} if item.get("role") in _ROLES else None
