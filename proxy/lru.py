"""A dict bounded by dropping the least recently used entries."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")


def remember(memory: OrderedDict[_K, _V], key: _K, value: _V, bound: int) -> _V:
    """Store the value as the newest of at most `bound`, and return it."""
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > bound:
        memory.popitem(last=False)
    return value
