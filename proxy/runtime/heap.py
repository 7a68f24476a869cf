"""The heap of the C library."""

import ctypes

# mallopt(3), of glibc.
_M_ARENA_MAX = -8


def share() -> None:
    """Let all threads except the first share one arena. By default glibc makes one for each.

    A thread can then reuse memory that another thread has freed. After 200 sessions of 400 kB: 146 MB instead of 150.
    """
    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)
    except (OSError, AttributeError):  # another C library
        return
