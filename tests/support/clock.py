"""Time as a value that a test sets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Clock:
    """Seconds; tells `now` until the test says otherwise."""

    now: float = 1_000.0

    def __call__(self) -> float:
        return self.now
