"""Bodies and items of the Responses API as stored in files."""

from collections.abc import Collection, Mapping, Sequence

FIELDS: Sequence[str] = ("instructions", "tools", "text", "max_output_tokens")


def is_body(keys: Collection[str]) -> bool:
    """Return True if a body has `input` and no messages."""
    return "input" in keys and "messages" not in keys


def is_item(_: object) -> bool:
    """Return False: a list of items without a body counts as chat messages."""
    return False


def as_sent(item: Mapping[str, object]) -> Mapping[str, object]:
    """Return the item unchanged."""
    return item
