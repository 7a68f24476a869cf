"""Requests that somebody has asked to see: the next one of a session, in this process's memory, for a while."""

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from proxy.lru import remember
from proxy.observing.session_trails import Key

_CAPTURES = 4
_MOST_BYTES = 4_000_000
_SECONDS = 900.0


class Capture(NamedTuple):
    """until: when it is forgotten; at: when it came, None while it is waited for. Both are in Unix seconds.

    wire: its dialect. body: as the client wrote it, unpacked; None of one that is too large to be held. size: in bytes.
    """

    until: float
    at: float | None = None
    wire: str = ""
    body: bytes | None = None
    size: int = 0


class Captures:
    """The last few of them; one per process."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` tells Unix seconds."""
        self._clock = clock
        self._known: OrderedDict[Key, Capture] = OrderedDict()
        self._awaited: set[Key] = set()

    def ask(self, key: Key) -> None:
        """Have the next request of a session held; what was held of it is forgotten."""
        remember(self._known, key, Capture(self._clock() + _SECONDS), _CAPTURES)
        self._awaited = {each for each in self._known if self._known[each].at is None}

    def of(self, key: Key) -> Capture | None:
        self.forget_old()
        return self._known.get(key)

    def is_awaited(self, tenant: str, session: str, label: str) -> bool:
        """Whether the next request of this session is; told at once where none is, as nearly always."""
        return bool(self._awaited) and (tenant, session, label) in self._awaited

    def take(self, key: Key, wire: str, body: bytes) -> None:
        """A request has come; it is held if it is awaited."""
        self.forget_old()
        if key in self._awaited:
            self._awaited.discard(key)
            now, held = self._clock(), body if len(body) <= _MOST_BYTES else None
            self._known[key] = Capture(now + _SECONDS, now, wire, held, len(body))

    def forget(self, tenant: str, name: str, is_meant: Callable[[str], bool]) -> None:
        """Keep nothing of the sessions of a conversation whose label is meant."""
        self._drop([key for key in self._known if key[:2] == (tenant, name) and is_meant(key.label)])

    def forget_old(self) -> None:
        now = self._clock()
        self._drop([key for key, capture in self._known.items() if capture.until <= now])

    def _drop(self, keys: list[Key]) -> None:
        for key in keys:
            del self._known[key]
            self._awaited.discard(key)
