"""What was read of texts and is remembered, bounded by their characters: a long text takes the room of many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class Memo(Generic[V]):
    """A function of a text that remembers its newest results, of texts with so many characters together.

    It needs no lock: whatever threads do to each other's entries, a result is right, and at worst found anew.
    """

    def __init__(self, function: Callable[[str], V], characters: int) -> None:
        self.function = function
        self._half = characters // 2
        self._held = 0
        self._new: dict[str, V] = {}
        self._old: dict[str, V] = {}

    def __call__(self, text: str) -> V:
        new, old = self._new, self._old
        if text in new:
            return new[text]
        result = old[text] if text in old else self.function(text)
        if self._held + len(text) > self._half:
            self._old, self._new, self._held = self._new, {}, 0
        if len(text) <= self._half:
            self._new[text] = result
            self._held += len(text)
        return result

    def forget(self) -> None:
        """Read everything anew."""
        self._old, self._new, self._held = {}, {}, 0


def memoize(characters: int) -> Callable[[Callable[[str], V]], Memo[V]]:
    """Decorates a function with a `Memo` of it."""
    return lambda function: Memo(function, characters)
