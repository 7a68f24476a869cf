"""The arguments of a tool call: JSON inside a string, which is read only where little is made of it."""

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
