"""Locks and claims among the processes over one store."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Literal, TypeVar

from proxy.runtime.deadlines import repeat_every
from proxy.sessions.stores.base import Store

_T = TypeVar("_T")

LOCK_SECONDS = 15.0


class Lock:
    """A lock in a store, for one holder: taken for LOCK_SECONDS, so that that of a process that died lapses soon."""

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key
        self._token = secrets.token_hex(8)

    async def take(self) -> bool:
        """Whether it was free."""
        return await self._store.lock(self._key, self._token, LOCK_SECONDS)

    @asynccontextmanager
    async def renewing(self) -> AsyncIterator[None]:
        """Keep the lock, which was taken, while the block lasts."""
        async with repeat_every(lambda: self._store.touch([self._key], LOCK_SECONDS), LOCK_SECONDS / 3):
            yield

    async def give_back(self) -> None:
        """Give the lock back if it is held, even as the caller is cancelled."""
        await asyncio.shield(self._store.lock(self._key, self._token, 0))


@asynccontextmanager
async def claim(
    store: Store, key: str, look: Callable[[], Awaitable[_T | None]], seconds: float
) -> AsyncIterator[_T | Literal[True] | None]:
    """Claim the making of something for as long as the block lasts.

    Yield True if the caller makes it, and what `look` finds if another holder has made it. Yield None if another holder
    still makes it after so many seconds. A claim saves work and decides nothing: its holder may die or be late.
    """
    lock = Lock(store, key)

    async def take() -> _T | Literal[True] | None:
        if await lock.take():
            return True
        return await look()

    try:
        taken: _T | Literal[True] | None = await poll(take, seconds)
        if taken is not True:
            yield taken
            return
        async with lock.renewing():
            # The holder before may have made it since the caller looked.
            if (made := await look()) is not None:
                yield made
            else:
                yield True
    finally:
        await lock.give_back()


async def poll(look: Callable[[], Awaitable[_T | None]], wait: float, interval: float = 0.1) -> _T | None:
    """Call `look` until it finds something or `wait` seconds are over.

    The clock is read between two looks, and no look is cut short: a deadline inside of it could get lost.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + wait
    while (found := await look()) is None and (left := until - clock()) > 0:  # noqa: ASYNC110 - set by other processes
        await asyncio.sleep(min(interval, left))
    return found
