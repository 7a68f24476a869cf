"""Arguments of a tool call: JSON inside a string, parsed only if the result is small enough."""

from collections.abc import Iterator
from functools import lru_cache

import msgspec

from policies.vocabulary import arguments_of_sort

# Parsed objects and lists take a hundred times the memory of their text, and parsing blocks all threads.
MOST_BRACKETS = 10_000
MOST_COMMAS = 200_000


class UnreadError(ValueError):
    """The arguments are not JSON, or too large."""


def read(arguments: str) -> object:
    """Return the value of the arguments' text. Raises UnreadError."""
    if len(arguments) > MOST_BRACKETS and (
        arguments.count("{") + arguments.count("[") > MOST_BRACKETS or arguments.count(",") > MOST_COMMAS
    ):
        raise UnreadError
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        raise UnreadError from None


def strings_in(value: object) -> Iterator[str]:
    """Yield every string of a JSON value, at any depth, in order. Names of members are not included."""
    match value:
        case str():
            yield value
        case list():
            for element in value:
                yield from strings_in(element)
        case dict():
            for element in value.values():
                yield from strings_in(element)
        case _:
            pass


# Names of arguments in lower case without underscores.
_PATH_KEYS = frozenset(arguments_of_sort("path"))
_LISTS_OF_FILES = arguments_of_sort("files")
_MOST_FILES = 50


@lru_cache(512)
def is_path_key(name: str) -> bool:
    """Return True if an argument of this name is a path."""
    return name.replace("_", "").lower() in _PATH_KEYS


def path_of(arguments: object) -> str | None:
    """Return the file that the arguments of a call name; None if they name none."""
    if isinstance(arguments, dict):
        for key, value in arguments.items():
            if isinstance(value, str) and value and is_path_key(key):
                return value
    return None


def paths_in(arguments: object) -> list[str]:
    """Return the files that a call names: a single one, or one in each part of a list of files or edits."""
    if not isinstance(arguments, dict):
        return []
    parts = [part for key in _LISTS_OF_FILES for part in _parts(arguments.get(key))]
    paths = [path_of(arguments), *map(path_of, parts[:_MOST_FILES])]
    return [*dict.fromkeys(path for path in paths if path)]


def _parts(value: object) -> Iterator[object]:
    if isinstance(value, list):
        yield from value
    elif isinstance(value, dict):
        yield value
        yield from (part for key in _LISTS_OF_FILES for part in _parts(value.get(key)))
