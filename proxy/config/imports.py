"""Import functions that a config names as `module:function`."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def import_function(name: str) -> Callable[..., Any]:
    """Return the function with this name. Raises ValueError if it is no function or cannot be imported."""
    module, _, attribute = name.partition(":")
    if not (module and attribute):
        raise ValueError("must be written module:function")
    try:
        function: object = getattr(import_module(module), attribute, None)
    except Exception as error:
        raise ValueError(f"{module} cannot be imported: {type(error).__name__}: {error}") from error
    if callable(function):
        return function
    raise ValueError(f"{module} has no function {attribute}")
