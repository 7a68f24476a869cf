"""The lag of the event loop. Whatever blocks the loop delays every request."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_EVERY = 0.5


@contextmanager
def monitor_loop_lag(report: Callable[[float], None]) -> Iterator[None]:
    """Report the seconds by which a timer of the loop was late, twice a second while the block lasts."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def fire(due: float) -> None:
        nonlocal timer
        now = loop.time()
        report(max(0.0, now - due))
        timer = loop.call_at(now + _EVERY, fire, now + _EVERY)

    due = loop.time() + _EVERY
    timer = loop.call_at(due, fire, due)
    try:
        yield
    finally:
        timer.cancel()
