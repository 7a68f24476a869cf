"""The heap of the C library."""

import ctypes

# mallopt(3), of glibc.
_M_ARENA_MAX = -8


def share() -> None:
    """Give all threads but the first one arena. glibc makes one for each.

    Then a thread can use the memory that another one has freed. After 200 sessions of 400 kB: 146 MB instead of 150.
    """
    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)
    except (OSError, AttributeError):  # another C library
        return
