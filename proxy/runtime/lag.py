"""How late the event loop is: what holds it up delays every request."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_EVERY = 0.5


@contextmanager
def lag_told(tell: Callable[[float], None]) -> Iterator[None]:
    """Tell by how many seconds a timer of the loop was late, twice a second while the block lasts."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def fire(due: float) -> None:
        nonlocal timer
        now = loop.time()
        tell(max(0.0, now - due))
        timer = loop.call_at(now + _EVERY, fire, now + _EVERY)

    due = loop.time() + _EVERY
    timer = loop.call_at(due, fire, due)
    try:
        yield
    finally:
        timer.cancel()
