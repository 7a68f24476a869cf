"""The memory limit of this process's container."""

from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
# Version 2 and version 1 (Linux, cgroups(7)). Without a limit, the first says "max", the second a huge number.
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
_NO_LIMIT = 1 << 60
# Memory of a process besides bodies: measured 115 MB at rest, 180 MB with its caches full.
_RESTING = 256 * 1024 * 1024
# The most memory of a body in flight, for each of its bytes: measured 2.0 (`benchmarks.hostile`).
_FOR_A_BYTE = 2.5
MOST_BUFFERED = 512 * 1024 * 1024
"""Bytes for bodies if neither the config nor the container limits them."""


def memory_limit(cgroups: Path = _CGROUPS) -> int | None:
    """Return the memory limit of this container in bytes; None without a limit or a container."""
    for name in _LIMITS:
        try:
            text = (cgroups / name).read_text().strip()
        except (OSError, UnicodeDecodeError):
            continue
        return int(text) if text.isdecimal() and int(text) < _NO_LIMIT else None
    return None


def buffered_that_fit(limit: int | None, processes: int = 1) -> int | None:
    """Return the bytes for the bodies of requests in flight, over all processes; None for any number."""
    return None if limit is None else max(0, int((limit - processes * _RESTING) / _FOR_A_BYTE))


def most_buffered(wanted: int | None, processes: int = 1) -> int:
    """Return the effective `server.max_buffered_bytes` of all processes together."""
    wanted = MOST_BUFFERED if wanted is None else wanted
    fit = buffered_that_fit(memory_limit(), processes)
    return wanted if fit is None else min(wanted, fit)
