"""What one call may do to one file, before it is known what the conversation shows of it."""

from typing import Literal, NamedTuple

# written: created or overwritten. touched: created, where it was not there.
Deed = Literal["written", "created", "overwritten", "modified", "appended", "renamed", "copied", "deleted", "touched"]


class Effect(NamedTuple):
    """other: of what is renamed its new path, of a copy where it is from. line: the first one that changes."""

    deed: Deed
    path: str
    other: str = ""
    line: str = ""
