"""How much was used in the last minute, and when there is room again: two counted minutes stand for a sliding one."""

from __future__ import annotations

_MINUTE = 60


def used_lately(current: float, previous: float, second: float) -> float:
    """What was used in the last 60 s: all of this minute, and of the one before the share that is not yet that old."""
    return current + previous * max(0.0, 1 - second / _MINUTE)


def seconds_until_room(limit: float, current: float, previous: float, second: float) -> int | None:
    """Whole seconds until less than `limit` was used in the last minute, if nothing is used until then; 0 if there is
    room now, None if there never is (a limit of 0 or less)."""
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
