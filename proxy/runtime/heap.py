"""The heap of the C library."""

import ctypes

# mallopt(3), of glibc.
_M_ARENA_MAX = -8


def share() -> None:
    """Give all threads but the first one arena, where glibc makes one for each: what a thread freed is of use to others
    then. Measured after 200 sessions of 400 kB: 146 MB instead of 150."""
    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)
    except (OSError, AttributeError):  # another C library
        return
