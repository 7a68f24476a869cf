"""Bodies and items of responses as they lie in files."""

from collections.abc import Collection, Mapping, Sequence

FIELDS: Sequence[str] = ("instructions", "tools", "text", "max_output_tokens")


def is_body(keys: Collection[str]) -> bool:
    return "input" in keys and "messages" not in keys


def is_item(_: object) -> bool:
    """A list of its items alone is taken for messages of chat."""
    return False


def as_sent(item: Mapping[str, object]) -> Mapping[str, object]:
    return item
