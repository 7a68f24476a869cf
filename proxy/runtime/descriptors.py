"""Open files of this process: as many as the system lets it have, and how many requests that is enough for."""

import errno
import os

# A request has its client's connection, the upstream's, and a summarizer's while it is compacted.
_OF_A_REQUEST = 3
# For the store, logs, listeners, clients that are idle between requests, and what a loaded library opens.
_FOR_THE_REST = 100
_MOST_REQUESTS = 1_000
_USED_UP = (errno.EMFILE, errno.ENFILE)


def raise_limit() -> None:
    """Let this process open as many files as it may; the usual limit of 1,024 is for programs that use `select`."""
    if (limits := _limits()) is not None:
        import resource

        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
        except (OSError, ValueError):  # some systems name a hard limit that they do not grant
            return


def requests_that_fit() -> int | None:
    """Return how many requests may be in flight with all files this process may open, None for any number."""
    limits = _limits()
    if limits is None or limits[1] < 0:  # RLIM_INFINITY
        return None
    return max(1, (limits[1] - _FOR_THE_REST) // _OF_A_REQUEST)


def most_requests(wanted: int | None) -> int:
    """Return `server.max_requests` in effect: as it was set, else 1,000 or as many as fit."""
    if wanted is not None:
        return wanted
    fit = requests_that_fit()
    return _MOST_REQUESTS if fit is None else min(_MOST_REQUESTS, fit)


def are_used_up(error: OSError) -> bool:
    """Return True if there is no file left to open. A failed lookup of a name does not say so."""
    if error.errno in _USED_UP:
        return True
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as another:
        return another.errno in _USED_UP
    return False


def _limits() -> tuple[int, int] | None:
    """Return the soft and the hard limit, None if a system has none."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrlimit(resource.RLIMIT_NOFILE)
