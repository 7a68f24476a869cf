"""Looks for several texts in another one."""

from collections.abc import Iterable


def has_any(text: str, parts: Iterable[str]) -> bool:
    """Return True if one of the parts is in the text. Takes half of the time of `any` with a generator."""
    for part in parts:  # noqa: SIM110
        if part in text:
            return True
    return False
