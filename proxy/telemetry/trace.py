"""The trace that a request belongs to, as W3C Trace Context carries it between programs."""

import random
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_PARENT = b"traceparent"
_BAGGAGE = b"baggage"
# version, trace-id, parent-id, flags; a later version may go on behind a hyphen.
_FORM = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
Header = tuple[bytes, bytes]


@dataclass(slots=True, eq=False, weakref_slot=True)
class Trace:
    """A request that spans are made of, once it has ended. Ids are lower-case hex digits.

    id:     of the trace. parent: the caller's span; None where the trace begins here. state: the caller's tracestate.
    server: the span of the request. client: that of what is asked of the upstream for it.
    url:    where it was asked. sent: when, each time, in Unix nanoseconds.
    """

    id: str
    parent: str | None
    state: str
    server: str
    client: str
    url: str = ""
    sent: list[int] = field(default_factory=list)

    def asks(self, url: str) -> None:
        """A request to the upstream leaves now."""
        self.url = url
        self.sent.append(time.time_ns())


@dataclass(frozen=True, slots=True)
class Tracing:
    """Which requests are traced.

    sample:    share of those whose caller has not decided.
    chance:    from 0 to 1. new_id: so many bytes, as hex digits.
    """

    sample: float
    chance: Callable[[], float] = random.random
    new_id: Callable[[int], str] = secrets.token_hex

    def begin(self, headers: Sequence[Header]) -> Trace | None:
        """The trace of a request with these headers; None where it is not traced."""
        given = {name: value for name, value in reversed(headers) if name in (_PARENT, b"tracestate")}
        found = _FORM.fullmatch(given.get(_PARENT, b""))
        if found is None or not _is_valid(found):
            return self._trace(None, None, "") if self.chance() < self.sample else None
        if not int(found[4], 16) & _SAMPLED:
            return None
        return self._trace(found[2].decode(), found[3].decode(), given.get(b"tracestate", b"").decode("latin-1"))

    def onward(self, headers: Sequence[Header], trace: Trace | None) -> list[Header]:
        """These headers as an upstream gets them: baggage is for us at most."""
        dropped = (_BAGGAGE,) if trace is None else (_BAGGAGE, _PARENT)
        kept = [header for header in headers if header[0] not in dropped]
        return kept if trace is None else [*kept, (_PARENT, f"00-{trace.id}-{trace.client}-01".encode())]

    def _trace(self, name: str | None, parent: str | None, state: str) -> Trace:
        return Trace(name or self.new_id(16), parent, state, server=self.new_id(8), client=self.new_id(8))


def _is_valid(found: re.Match[bytes]) -> bool:
    """Version ff is none, the first has nothing behind its flags, and ids of zeros are none (Trace Context, 3.2)."""
    is_of_its_version = found[1] != b"ff" and not (found[1] == b"00" and found[5])
    return is_of_its_version and found[2].strip(b"0") != b"" and found[3].strip(b"0") != b""
