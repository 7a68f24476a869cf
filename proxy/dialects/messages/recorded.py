"""Bodies and messages of the Messages API as stored in files."""

from collections.abc import Collection, Mapping, Sequence

FIELDS: Sequence[str] = ("system", "tools", "thinking", "output_format", "max_tokens")
# Parts of content that are unique to this dialect.
_PARTS = ("tool_use", "tool_result")


def is_body(keys: Collection[str]) -> bool:
    """Return True if a body has both messages and system instructions."""
    return "messages" in keys and "system" in keys


def is_item(item: object) -> bool:
    """Return True if a message has a block of a call or a result."""
    content = item.get("content") if isinstance(item, dict) else None
    return isinstance(content, list) and any(isinstance(p, dict) and p.get("type") in _PARTS for p in content)


def as_sent(item: Mapping[str, object]) -> Mapping[str, object]:
    """Return the message unchanged."""
    return item
