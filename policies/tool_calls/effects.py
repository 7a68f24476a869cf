"""The possible effects of one call on one file, before the conversation's knowledge of files is applied."""

from typing import Literal, NamedTuple

# written: created or overwritten. touched: created if it did not exist.
Deed = Literal["written", "created", "overwritten", "modified", "appended", "renamed", "copied", "deleted", "touched"]


class Effect(NamedTuple):
    """An effect on a file.

    other: the new path of a renamed file; the source of a copy.
    line: the first line that changes.
    """

    deed: Deed
    path: str
    other: str = ""
    line: str = ""
