"""The arguments of a tool call: JSON inside a string, which is read only where little is made of it."""

from collections.abc import Iterator

import msgspec

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
