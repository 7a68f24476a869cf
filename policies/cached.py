"""A property that is computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class cached_property(Generic[T]):  # noqa: N801 - reads as functools' does
    """A property like `functools.cached_property`, which takes a lock on each access in CPython 3.11."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        """Create a property. compute: returns the value for an instance."""
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        """Store the name of the attribute, which is the key in the instance's `__dict__`."""
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> cached_property[T] | T:
        """Compute the value and store it in the instance, where later accesses find it."""
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._compute(instance)
        return value
