"""The store as the proxy sees it: never raises, and costs next to nothing while the real one is down."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from proxy.sessions.stores.base import Facts, OpenedStore, RefusedError, StoreError
from proxy.sessions.stores.delegating import DelegatingStore
from proxy.telemetry.histograms import Histograms

T = TypeVar("T")

# Falling over again within STEADY seconds of recovering doubles the pause, up to LONGEST_PAUSE: half a store that works
# would fill the log. With LONGEST_PAUSE the shared summaries are back within 5 s of the end of any trouble.
STEADY = 10.0
LONGEST_PAUSE = 4.0
# A store that is well again answers sooner. Of one that is frozen nobody's request waits for the timeout.
_PROBE_WAIT = 0.025
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_OPERATIONS = 20


class _Page:
    """A page that is being made. has_failed: an operation for it was not carried out."""

    has_failed = False


_PAGE: ContextVar[_Page | None] = ContextVar("page", default=None)


@contextmanager
def for_page() -> Iterator[None]:
    """Let the operations in this block be for a page: if one fails the store is unavailable for this page alone."""
    token = _PAGE.set(_Page())
    try:
        yield
    finally:
        _PAGE.reset(token)


class CircuitBreaker(DelegatingStore):
    """A circuit breaker around a store.

    After a failure every operation is answered at once for `retry_after` seconds, as if the store were empty and all
    locks were free; then one operation is let through, and its outcome decides: its caller waits a moment, and
    is answered without the store while it goes on. What the store refuses while it is well
    (`RefusedError`: full, read-only) pauses for itself, and the rest goes on; it is over when any of what was refused
    is carried out. `on_change(available, reason)` is called once per change. `errors` counts failed operations by name;
    `seconds` is how long they took. What fails within `for_page` changes nothing for others, and does not probe.
    """

    def __init__(self, store: OpenedStore, clock: Callable[[], float], retry_after: float = 1.0) -> None:
        super().__init__(store)
        self._opened = store
        self._clock = clock
        self._retry_after = retry_after
        self.on_change: Callable[[bool, str], None] = lambda _available, _reason: None
        self._up = True
        self._changed = clock()
        self._changes = 0
        self._pause = retry_after
        self._steady_at = 0.0
        self._retry_at = 0.0
        self._probe: asyncio.Task[object] | None = None
        self._refused: dict[str, float] = {}
        """When what the store refuses is tried again, by the operation's name."""

        self.reason = ""
        """Why it was last not available."""

        self.errors: Counter[str] = Counter()
        self.seconds = Histograms(_SECONDS, _OPERATIONS)

    @property
    def available(self) -> bool:
        """Return True if the store does all it is asked to, and has done so for the page that is being made."""
        return self._up and not self._refused and not _has_failed_page()

    @property
    def seconds_so(self) -> float:
        """Return for how many seconds it is, or is not, available."""
        return 0.0 if _has_failed_page() else self._clock() - self._changed

    async def facts(self) -> Facts:
        return await self._delegate("facts", self._opened.facts, Facts())

    async def close(self) -> None:
        if self._probe is not None:
            self._probe.cancel()
        try:
            await self._opened.close()
        except StoreError:
            self.errors["close"] += 1

    async def _delegate(self, name: str, operation: Callable[[], Awaitable[T]], otherwise: T) -> T:
        probe = not self._up
        would_probe = probe or name in self._refused
        if (would_probe and _PAGE.get() is not None) or not self._let_through(name):
            return otherwise
        work = self._carried_out(name, operation, otherwise, probe=probe)
        return await (self._shortly(work, otherwise) if probe else work)

    async def _shortly(self, work: Coroutine[None, None, T], otherwise: T) -> T:
        """What the probe says, if it says so soon."""
        probe = asyncio.create_task(work)
        self._probe = probe
        try:
            done, _ = await asyncio.wait({probe}, timeout=_PROBE_WAIT)
        except asyncio.CancelledError:  # the next operation probes instead
            probe.cancel()
            self._probe = None
            raise
        return probe.result() if done else otherwise

    async def _carried_out(self, name: str, operation: Callable[[], Awaitable[T]], otherwise: T, *, probe: bool) -> T:
        changes = self._changes  # what began before the last change says nothing about now
        began = time.perf_counter()
        try:
            result = await operation()
        except StoreError as error:
            self.errors[name] += 1
            if (page := _PAGE.get()) is not None:
                page.has_failed |= error.outage or isinstance(error, RefusedError)
            elif probe or changes == self._changes:
                self._note_failure(name, error, probe=probe)
            return otherwise
        else:
            if probe or changes == self._changes:
                self._note_success(name, probe=probe)
            return result
        finally:
            self.seconds.observe((name,), time.perf_counter() - began)

    def _let_through(self, name: str) -> bool:
        """All while the store is well, one at a time when a pause is over, none during it."""
        now = self._clock()
        probing = self._probe is not None and not self._probe.done()
        if not self._up and (probing or now < self._retry_at):
            return False
        if (retry_at := self._refused.get(name)) is not None:
            if now < retry_at:
                return False
            self._refused[name] = now + self._retry_after
        return True

    def _note_failure(self, name: str, error: StoreError, *, probe: bool) -> None:
        if isinstance(error, RefusedError):
            if probe:
                self._note_recovery()
            self._refuses(name, str(error))
        elif error.outage:
            self._fell_over(str(error))

    def _note_success(self, name: str, *, probe: bool) -> None:
        if probe:
            self._note_recovery()
        if name in self._refused:
            self._refused.clear()
            self._note_change()
            self.on_change(True, "the store takes everything again")

    def _refuses(self, name: str, reason: str) -> None:
        told = bool(self._refused)
        self._refused[name] = self._clock() + self._retry_after
        if not told:
            self._note_change()
            self.reason = reason
            self.on_change(False, reason)

    def _fell_over(self, reason: str) -> None:
        now = self._clock()
        if self._up:
            self._up = False
            self._note_change()
            self._pause = min(self._pause * 2, LONGEST_PAUSE) if now < self._steady_at else self._retry_after
            self.reason = reason
            self.on_change(False, reason)
        self._retry_at = now + self._pause

    def _note_change(self) -> None:
        self._changes += 1
        self._changed = self._clock()

    def _note_recovery(self) -> None:
        self._up = True
        self._note_change()
        self._steady_at = self._clock() + STEADY
        self.on_change(True, "the store answers again")


def _has_failed_page() -> bool:
    page = _PAGE.get()
    return page is not None and page.has_failed
