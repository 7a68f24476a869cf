"""What a config names by `module:function`."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def import_function(name: str) -> Callable[..., Any]:
    """The function of this name. Raises ValueError: it is none, or its module cannot be imported."""
    module, _, attribute = name.partition(":")
    if not (module and attribute):
        raise ValueError("must be written module:function")
    try:
        found: object = getattr(import_module(module), attribute, None)
    except Exception as error:
        raise ValueError(f"{module} cannot be imported: {type(error).__name__}: {error}") from error
    if callable(found):
        return found
    raise ValueError(f"{module} has no function {attribute}")
