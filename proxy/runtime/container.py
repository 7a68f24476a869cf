"""The memory that this process may take, where its container says so."""

from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
# Version 2 and version 1 (Linux, cgroups(7)); without a limit the one says "max", the other a number beyond any memory.
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
_NO_LIMIT = 1 << 60
# What a process takes beside bodies: measured 115 MB at rest, 180 with its memory in use.
_RESTING = 256 * 1024 * 1024
# What a body takes at most while it is under way, for each of its bytes: measured 2.0 (`benchmarks.hostile`).
_FOR_A_BYTE = 2.5
MOST_BUFFERED = 512 * 1024 * 1024
"""Bytes that bodies may have if neither the config nor the container limits them."""


def memory_limit(cgroups: Path = _CGROUPS) -> int | None:
    """Bytes that all processes of this container may take together; None if it has no limit, or is none."""
    for name in _LIMITS:
        try:
            text = (cgroups / name).read_text().strip()
        except (OSError, UnicodeDecodeError):
            continue
        return int(text) if text.isdecimal() and int(text) < _NO_LIMIT else None
    return None


def buffered_that_fit(limit: int | None, processes: int = 1) -> int | None:
    """Bytes that the bodies of requests under way may have together, for all processes; None for any number."""
    return None if limit is None else max(0, int((limit - processes * _RESTING) / _FOR_A_BYTE))


def most_buffered(wanted: int | None, processes: int = 1) -> int:
    """Return what holds for `server.max_buffered_bytes` in all processes together."""
    wanted = MOST_BUFFERED if wanted is None else wanted
    fit = buffered_that_fit(memory_limit(), processes)
    return wanted if fit is None else min(wanted, fit)
