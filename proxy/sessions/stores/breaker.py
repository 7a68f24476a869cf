"""The store for the proxy: it never raises, and costs almost nothing while the real store is down."""

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

# Another failure within STEADY seconds of recovering doubles the pause, up to LONGEST_PAUSE: a half-working store would
# fill the log. With LONGEST_PAUSE the shared summaries are back within 5 s of the end of an outage.
STEADY = 10.0
LONGEST_PAUSE = 4.0
# A recovered store responds faster. With a frozen store, no request waits for the timeout.
_PROBE_WAIT = 0.025
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_OPERATIONS = 20


class _Page:
    """A page that is being rendered.

    has_failed: True if one of its operations was not executed.
    """

    has_failed = False


_PAGE: ContextVar[_Page | None] = ContextVar("page", default=None)


@contextmanager
def for_page() -> Iterator[None]:
    """Mark the operations in this block as a page's. If one fails, the store is unavailable only for this page."""
    token = _PAGE.set(_Page())
    try:
        yield
    finally:
        _PAGE.reset(token)


class CircuitBreaker(DelegatingStore):
    """A circuit breaker around a store.

    After a failure every operation returns at once for `retry_after` seconds, as if the store were empty and all locks
    were free. Then one operation is executed, and its result decides. Its caller waits a moment, and continues without
    the store if the operation takes longer. An operation that a working store refuses (`RefusedError`: full, read-only)
    pauses by itself, and the others continue. The pause ends when any refused operation succeeds.

    `on_change(available, reason)` is called once per change. `errors` counts failed operations by name. `seconds` has
    their durations. A failure within `for_page` changes nothing for others, and does not probe.
    """

    def __init__(self, store: OpenedStore, clock: Callable[[], float], retry_after: float = 1.0) -> None:
        """Create a breaker. `clock` returns seconds."""
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
        """The time of the next attempt of each refused operation, by its name."""

        self.reason = ""
        """The reason of the last outage."""

        self.errors: Counter[str] = Counter()
        self.seconds = Histograms(_SECONDS, _OPERATIONS)

    @property
    def available(self) -> bool:
        """Return True if the store works, and has worked for the page that is being rendered."""
        return self._up and not self._refused and not _has_failed_page()

    @property
    def seconds_so(self) -> float:
        """Return the seconds since it became available or unavailable."""
        return 0.0 if _has_failed_page() else self._clock() - self._changed

    async def facts(self) -> Facts:
        """Return the store's report; an empty one while it is down."""
        return await self._delegate("facts", self._opened.facts, Facts())

    async def close(self) -> None:
        """Close the store."""
        if self._probe is not None:
            self._probe.cancel()
        try:
            await self._opened.close()
        except StoreError:
            self.errors["close"] += 1

    async def _delegate(self, name: str, operation: Callable[[], Awaitable[T]], otherwise: T) -> T:
        probe = not self._up
        would_probe = probe or name in self._refused
        if (would_probe and _PAGE.get() is not None) or not self._may_run(name):
            return otherwise
        work = self._execute(name, operation, otherwise, probe=probe)
        return await (self._result_soon(work, otherwise) if probe else work)

    async def _result_soon(self, work: Coroutine[None, None, T], otherwise: T) -> T:
        """Return the result of the probe if it arrives soon."""
        probe = asyncio.create_task(work)
        self._probe = probe
        try:
            done, _ = await asyncio.wait({probe}, timeout=_PROBE_WAIT)
        except asyncio.CancelledError:  # the next operation probes instead
            probe.cancel()
            self._probe = None
            raise
        return probe.result() if done else otherwise

    async def _execute(self, name: str, operation: Callable[[], Awaitable[T]], otherwise: T, *, probe: bool) -> T:
        changes = self._changes  # an operation that began before the last change proves nothing about the current state
        started = time.perf_counter()
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
            self.seconds.observe((name,), time.perf_counter() - started)

    def _may_run(self, name: str) -> bool:
        """Return True if an operation may run: all while the store works, one after a pause, none during it."""
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
            self._note_refusal(name, str(error))
        elif error.outage:
            self._note_outage(str(error))

    def _note_success(self, name: str, *, probe: bool) -> None:
        if probe:
            self._note_recovery()
        if name in self._refused:
            self._refused.clear()
            self._note_change()
            self.on_change(True, "the store accepts all operations again")

    def _note_refusal(self, name: str, reason: str) -> None:
        was_refusing = bool(self._refused)
        self._refused[name] = self._clock() + self._retry_after
        if not was_refusing:
            self._note_change()
            self.reason = reason
            self.on_change(False, reason)

    def _note_outage(self, reason: str) -> None:
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
        self.on_change(True, "the store responds again")


def _has_failed_page() -> bool:
    page = _PAGE.get()
    return page is not None and page.has_failed
