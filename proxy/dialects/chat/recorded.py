"""Chat bodies and messages as stored in files."""

from collections.abc import Collection, Mapping, Sequence

FIELDS: Sequence[str] = ("tools", "functions", "response_format", "max_tokens", "max_completion_tokens")
_MESSAGE = (
    *("role", "content", "name", "tool_calls", "tool_call_id", "refusal"),
    *("reasoning_content", "reasoning", "reasoning_details"),
)
_ROLES = ("system", "developer", "user", "assistant", "tool")


def is_body(_: Collection[str]) -> bool:
    """Return False: requests of Messages have the same fields."""
    return False


def is_item(_: object) -> bool:
    """Return False: no item is unique to chat."""
    return False


def as_sent(item: Mapping[str, object]) -> Mapping[str, object] | None:
    """Return a message without notes of other tools; None for a trajectory's entry that is not a message."""
    return {key: item[key] for key in _MESSAGE if key in item} if item.get("role") in _ROLES else None
