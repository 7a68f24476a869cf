"""The trace of a request, as in W3C Trace Context."""

import random
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_PARENT = b"traceparent"
_BAGGAGE = b"baggage"
# version, trace-id, parent-id, flags. A later version may have more after a hyphen.
_FORM = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
Header = tuple[bytes, bytes]


@dataclass(slots=True, eq=False, weakref_slot=True)
class Trace:
    """A traced request. Ids are lower-case hex digits.

    id:     of the trace. parent: the caller's span; None if the trace begins here. state: the caller's tracestate.
    server: the span of the request. client: the span of the request to the upstream.
    url:    of the upstream. sent: the time of each attempt, in Unix nanoseconds.
    """

    id: str
    parent: str | None
    state: str
    server: str
    client: str
    url: str = ""
    sent: list[int] = field(default_factory=list)

    def asks(self, url: str) -> None:
        """Note that a request to the upstream is sent now."""
        self.url = url
        self.sent.append(time.time_ns())


@dataclass(frozen=True, slots=True)
class Tracing:
    """The sampling of traces.

    sample: share of the requests whose caller has not decided. chance: returns a number from 0 to 1. new_id: returns so
    many bytes as hex digits.
    """

    sample: float
    chance: Callable[[], float] = random.random
    new_id: Callable[[int], str] = secrets.token_hex

    def begin(self, headers: Sequence[Header]) -> Trace | None:
        """Return the trace of a request with these headers; None if it is not traced."""
        headers_by_name = {name: value for name, value in reversed(headers) if name in (_PARENT, b"tracestate")}
        match = _FORM.fullmatch(headers_by_name.get(_PARENT, b""))
        if match is None or not _is_valid(match):
            return self._trace(None, None, "") if self.chance() < self.sample else None
        if not int(match[4], 16) & _SAMPLED:
            return None
        return self._trace(
            match[2].decode(), match[3].decode(), headers_by_name.get(b"tracestate", b"").decode("latin-1")
        )

    def onward(self, headers: Sequence[Header], trace: Trace | None) -> list[Header]:
        """Return these headers for an upstream. Baggage is never passed on."""
        dropped = (_BAGGAGE,) if trace is None else (_BAGGAGE, _PARENT)
        passed = [header for header in headers if header[0] not in dropped]
        return passed if trace is None else [*passed, (_PARENT, f"00-{trace.id}-{trace.client}-01".encode())]

    def _trace(self, name: str | None, parent: str | None, state: str) -> Trace:
        return Trace(name or self.new_id(16), parent, state, server=self.new_id(8), client=self.new_id(8))


def _is_valid(match: re.Match[bytes]) -> bool:
    """Return True for a valid traceparent: not version ff, nothing after the flags in version 00, no zero ids.

    See Trace Context, 3.2.
    """
    is_of_its_version = match[1] != b"ff" and not (match[1] == b"00" and match[5])
    return is_of_its_version and match[2].strip(b"0") != b"" and match[3].strip(b"0") != b""
