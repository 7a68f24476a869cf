"""A sliding window of one minute from two counted minutes: the use in it, and when there is room again."""

from __future__ import annotations

_MINUTE = 60


def used_lately(current: float, previous: float, second: float) -> float:
    """Return the use in the last 60 s: this minute, and the share of the previous one that is recent enough."""
    return current + previous * max(0.0, 1 - second / _MINUTE)


def seconds_until_room(limit: float, current: float, previous: float, second: float) -> int | None:
    """Return the whole seconds until the use in the last minute is below `limit`, if nothing is used until then.

    Return 0 if there is room now, and None if there never is (a limit of 0 or less).
    """
    if limit <= 0:
        return None
    for wait in range(2 * _MINUTE + 1):
        at = second + wait
        if at < _MINUTE:
            used = used_lately(current, previous, at)
        elif at < 2 * _MINUTE:
            used = used_lately(0, current, at - _MINUTE)
        else:
            used = 0.0
        if used < limit:
            return wait
    return 2 * _MINUTE
