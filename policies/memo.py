"""Caches of results for texts, bounded by characters: a long text takes the room of many short ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class Memo(Generic[V]):
    """A function of a text with a cache of its newest results. All cached texts together have at most `characters`.

    It needs no lock: concurrent calls may lose entries but always return correct results.
    """

    def __init__(self, function: Callable[[str], V], characters: int) -> None:
        """Create a cache for the results of `function`."""
        self.function = function
        self._half = characters // 2
        self._cached_characters = 0
        self._new: dict[str, V] = {}
        self._old: dict[str, V] = {}

    def __call__(self, text: str) -> V:
        """Return the result for a text."""
        new, old = self._new, self._old
        if text in new:
            return new[text]
        result = old[text] if text in old else self.function(text)
        if self._cached_characters + len(text) > self._half:
            self._old, self._new, self._cached_characters = self._new, {}, 0
        if len(text) <= self._half:
            self._new[text] = result
            self._cached_characters += len(text)
        return result

    def forget(self) -> None:
        """Drop all cached results."""
        self._old, self._new, self._cached_characters = {}, {}, 0


def memoize(characters: int) -> Callable[[Callable[[str], V]], Memo[V]]:
    """Return a decorator that replaces a function with its `Memo`."""
    return lambda function: Memo(function, characters)
