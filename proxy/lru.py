"""Memory that is bounded by forgetting what was used least recently."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")


def remember(memory: OrderedDict[_K, _V], key: _K, value: _V, bound: int) -> _V:
    """Keep the value as the newest of at most `bound`; returns it."""
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > bound:
        memory.popitem(last=False)
    return value
