"""CPU time of a piece of work, measured so that a busy machine does not count."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_RUNS = 5


def cpu_seconds(work: Callable[[], object], *, enough: float = 0.0) -> float:
    """Return the least CPU time of several runs; one run is sufficient if it takes at most `enough` seconds.

    Beside other work the same instructions take longer: caches and cores are shared, and garbage is collected.
    """
    least = float("inf")
    for _ in range(_RUNS):
        began = time.process_time()
        work()
        least = min(least, time.process_time() - began)
        if least <= enough:
            break
    return least
