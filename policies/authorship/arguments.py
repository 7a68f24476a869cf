"""The arguments of a tool call: JSON inside a string, which is read only where little is made of it."""

from collections.abc import Iterator
from functools import lru_cache

import msgspec

from policies.vocabulary import arguments_of_sort

# As Python's, objects and lists take a hundred times their text, and nothing else runs while they are made.
MOST_BRACKETS = 10_000
MOST_COMMAS = 200_000


class UnreadError(ValueError):
    """These arguments are no JSON, or too much of it."""


def read(arguments: str) -> object:
    """The value that the text of the arguments stands for; raises UnreadError."""
    if len(arguments) > MOST_BRACKETS and (
        arguments.count("{") + arguments.count("[") > MOST_BRACKETS or arguments.count(",") > MOST_COMMAS
    ):
        raise UnreadError
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        raise UnreadError from None


def strings_in(value: object) -> Iterator[str]:
    """Every string of a JSON value, at any depth, in order; not the names of members."""
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


# As clients spell it, in lower case and without underscores.
_PATH_KEYS = frozenset(arguments_of_sort("path"))
_LISTS_OF_FILES = arguments_of_sort("files")
_MOST_FILES = 50


@lru_cache(512)
def is_path_key(name: str) -> bool:
    """Whether an argument of this name is a file."""
    return name.replace("_", "").lower() in _PATH_KEYS


def path_of(arguments: object) -> str | None:
    """The file that the arguments of a call name."""
    if isinstance(arguments, dict):
        for key, value in arguments.items():
            if isinstance(value, str) and value and is_path_key(key):
                return value
    return None


def paths_in(arguments: object) -> list[str]:
    """The files that a call names: one, or one in each part of a list of files or edits."""
    if not isinstance(arguments, dict):
        return []
    parts = [part for key in _LISTS_OF_FILES for part in _parts(arguments.get(key))]
    found = [path_of(arguments), *map(path_of, parts[:_MOST_FILES])]
    return [*dict.fromkeys(path for path in found if path)]


def _parts(value: object) -> Iterator[object]:
    if isinstance(value, list):
        yield from value
    elif isinstance(value, dict):
        yield value
        yield from (part for key in _LISTS_OF_FILES for part in _parts(value.get(key)))
