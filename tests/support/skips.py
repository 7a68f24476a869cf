"""What a run of tests skipped, and what would bring it."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_NOTHING = "nothing: they do not apply here"
_PREFIX = "Skipped: "


def skip_lines(reasons: Iterable[str]) -> Iterator[str]:
    """Return a line for each remedy: the number of tests that it brings, the remedy, and the reasons.

    A reason reads "what is missing: what brings it"; without the second part nothing brings the test.
    """
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for reason in reasons:
        missing, colon, remedy = reason.removeprefix(_PREFIX).partition(": ")
        found[remedy if colon else _NOTHING][missing] += 1
    for remedy, counted in sorted(found.items(), key=lambda item: (item[0] == _NOTHING, -item[1].total())):
        yield f"{counted.total():6}  {remedy} ({'; '.join(counted)})"
