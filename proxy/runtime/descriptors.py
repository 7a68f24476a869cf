"""Open files of this process: the system's limit, and the number of requests that it suffices for."""

import errno
import os

# A request uses its client's connection, the upstream's, and a summarizer's while it is compacted.
_PER_REQUEST = 3
# For the store, logs, listeners, idle clients, and files of loaded libraries.
_OTHER_FILES = 100
_MOST_REQUESTS = 1_000
_USED_UP = (errno.EMFILE, errno.ENFILE)


def raise_limit() -> None:
    """Raise this process's limit of open files to the maximum. The usual limit of 1,024 is for users of `select`."""
    if (limits := _limits()) is not None:
        import resource

        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
        except (OSError, ValueError):  # some systems report a hard limit that they do not grant
            return


def requests_that_fit() -> int | None:
    """Return how many requests may be in flight with all files this process may open; None for any number."""
    limits = _limits()
    if limits is None or limits[1] < 0:  # RLIM_INFINITY
        return None
    return max(1, (limits[1] - _OTHER_FILES) // _PER_REQUEST)


def most_requests(wanted: int | None) -> int:
    """Return the effective `server.max_requests`: the setting, else 1,000 or as many as fit."""
    if wanted is not None:
        return wanted
    fit = requests_that_fit()
    return _MOST_REQUESTS if fit is None else min(_MOST_REQUESTS, fit)


def are_used_up(error: OSError) -> bool:
    """Return True if no more files can be opened. A failed name lookup does not report that itself."""
    if error.errno in _USED_UP:
        return True
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as another:
        return another.errno in _USED_UP
    return False


def _limits() -> tuple[int, int] | None:
    """Return the soft and the hard limit; None if the system has none."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrlimit(resource.RLIMIT_NOFILE)
