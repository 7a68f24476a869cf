"""The store as the proxy sees it: never raises, and costs next to nothing while the real one is down."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeVar

from proxy.stores.base import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from proxy.stores.base import Store

T = TypeVar("T")


def _tell_nobody(_available: bool, _reason: str) -> None:
    """The default `on_change`."""


class GuardedStore:
    """A circuit breaker around a store, itself a `Store`.

    After a failure every operation is answered at once for `retry_after` seconds, as if the store were empty and all
    locks were free; then one operation is let through, and its outcome decides. `on_change(available, reason)` is
    called once per change, for one line in the log. `errors` counts failed operations by name.
    """

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float],
        retry_after: float = 1.0,
        on_change: Callable[[bool, str], None] = _tell_nobody,
    ) -> None:
        self._store = store
        self._clock = clock
        self._retry_after = retry_after
        self._on_change = on_change
        self._available = True
        self._retry_at = 0.0
        self._probing = False
        self.errors: Counter[str] = Counter()

    @property
    def available(self) -> bool:
        return self._available

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        missed: list[bytes | None] = [None] * len(keys)
        if not keys:  # asks the store nothing, so says nothing about it
            return missed
        return await self._attempt("get_many", lambda: self._store.get_many(keys), missed)

    async def put_new(self, key: str, value: bytes, ttl: float) -> bytes | None:
        return await self._attempt("put_new", lambda: self._store.put_new(key, value, ttl), None)

    async def put(self, key: str, value: bytes, ttl: float) -> None:
        await self._attempt("put", lambda: self._store.put(key, value, ttl), None)

    async def touch(self, keys: Sequence[str], ttl: float) -> None:
        if keys:
            await self._attempt("touch", lambda: self._store.touch(keys, ttl), None)

    async def acquire(self, key: str, token: str, ttl: float) -> bool:
        return await self._attempt("acquire", lambda: self._store.acquire(key, token, ttl), True)

    async def release(self, key: str, token: str) -> None:
        await self._attempt("release", lambda: self._store.release(key, token), None)

    async def close(self) -> None:
        try:
            await self._store.close()
        except StoreError:
            self.errors["close"] += 1

    async def _attempt(self, name: str, operation: Callable[[], Awaitable[T]], otherwise: T) -> T:
        """Carry the operation out if it is let through; `otherwise` when it is not, or fails."""
        probe = not self._available
        if probe and (self._probing or self._clock() < self._retry_at):
            return otherwise
        self._probing = probe
        try:
            result = await operation()
        except StoreError as error:
            self.errors[name] += 1
            if error.outage:
                self._fell_over(str(error))
            return otherwise
        else:
            if probe:
                self._recovered()
            return result
        finally:
            if probe:  # also when the caller was cancelled: the next operation probes instead
                self._probing = False

    def _fell_over(self, reason: str) -> None:
        self._retry_at = self._clock() + self._retry_after
        if self._available:
            self._available = False
            self._on_change(False, reason)

    def _recovered(self) -> None:
        self._available = True
        self._on_change(True, "the store answers again")
