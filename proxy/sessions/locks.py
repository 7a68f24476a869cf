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
    """A lock in a store for one holder. It is taken for LOCK_SECONDS, so that a dead process's lock expires soon."""

    def __init__(self, store: Store, key: str) -> None:
        """Create a lock with a token of its own."""
        self._store = store
        self._key = key
        self._token = secrets.token_hex(8)

    async def take(self) -> bool:
        """Take the lock. Return True if it was free."""
        return await self._store.lock(self._key, self._token, LOCK_SECONDS)

    @asynccontextmanager
    async def renewing(self) -> AsyncIterator[None]:
        """Keep the taken lock while the block lasts."""
        async with repeat_every(lambda: self._store.touch([self._key], LOCK_SECONDS), LOCK_SECONDS / 3):
            yield

    async def give_back(self) -> None:
        """Release the lock if it is held, even if the caller is cancelled."""
        await asyncio.shield(self._store.lock(self._key, self._token, 0))


@asynccontextmanager
async def claim(
    store: Store, key: str, look: Callable[[], Awaitable[_T | None]], seconds: float
) -> AsyncIterator[_T | Literal[True] | None]:
    """Claim the making of something while the block lasts.

    Yield True if the caller makes it, and the result of `look` if another holder has made it. Yield None if another
    holder still makes it after so many seconds. A claim saves work and guarantees nothing: its holder may die or be
    late.
    """
    lock = Lock(store, key)

    async def take() -> _T | Literal[True] | None:
        if await lock.take():
            return True
        return await look()

    try:
        outcome: _T | Literal[True] | None = await poll(take, seconds)
        if outcome is not True:
            yield outcome
            return
        async with lock.renewing():
            # The previous holder may have made it since the caller looked.
            if (result := await look()) is not None:
                yield result
            else:
                yield True
    finally:
        await lock.give_back()


async def poll(look: Callable[[], Awaitable[_T | None]], wait: float, interval: float = 0.1) -> _T | None:
    """Call `look` until it returns something or `wait` seconds are over.

    The clock is read between calls, and no call is interrupted: a deadline inside of it could get lost.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + wait
    while (result := await look()) is None and (remaining := until - clock()) > 0:  # noqa: ASYNC110 - set by other processes
        await asyncio.sleep(min(interval, remaining))
    return result
