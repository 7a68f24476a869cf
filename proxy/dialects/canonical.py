"""Canonical forms for all dialects. Items with the same meaning get the same digest."""

from collections.abc import Collection

from policies.authorship.arguments import UnreadError, read


def without_fields(value: object, names: Collection[str]) -> object:
    """Return a JSON value without members of these names, and without nulls, at any depth."""
    if isinstance(value, dict):
        return {key: without_fields(v, names) for key, v in value.items() if v is not None and key not in names}
    return [without_fields(v, names) for v in value] if isinstance(value, list) else value


def form_of_arguments(arguments: str) -> object:
    """Return the arguments of a call without formatting and key order: the value, or the text if it is not JSON."""
    try:
        return [read(arguments)]
    except UnreadError:
        return arguments
