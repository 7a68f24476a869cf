"""Search for several texts in another one."""

from collections.abc import Iterable


def has_any(text: str, parts: Iterable[str]) -> bool:
    """Return True if the text contains one of the parts. Takes half the time of `any` with a generator."""
    for part in parts:  # noqa: SIM110
        if part in text:
            return True
    return False
