"""A client's request to a provider's API without its body."""

from dataclasses import dataclass
from functools import lru_cache

from proxy.callers.api_paths import Mount, PathReading, is_ours, reading
from proxy.dialects.base import Dialect
from proxy.dialects.table import DEFAULT_DIALECT, dialect_of_headers
from proxy.dialects.texts import printable
from proxy.server.head import RequestHead
from proxy.server.headers import Headers
from proxy.telemetry.trace import Trace

_LONGEST_SHOWN = 256
# Clients repeat a handful of request lines.
_REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class RequestLine:
    """The meaning of a method and a target.

    path:         from the client. shown_path: the loggable part of it.
    reading:      the meaning of the path, in any spelling.
    is_ours:      True if the proxy answers it and never relays it.
    spoken:       the dialect of the path; None if it has none.
    conversation: the dialect of a conversation's request; None for any other request.
    is_compact:   True for a request of a compaction only. is_count: True for a request to count a conversation's
    tokens.
    mount:        of the client's API.
    """

    path: str
    shown_path: str
    reading: PathReading
    is_ours: bool
    spoken: Dialect | None
    conversation: Dialect | None
    is_compact: bool
    is_count: bool
    mount: Mount


@lru_cache(_REMEMBERED)
def request_line(method: str, target: str) -> RequestLine:
    """Return the meaning of a request line."""
    path, _, query = target.partition("?")
    read = reading(path.encode("latin-1"))
    below, matched = read.below, read.found
    does = matched.path.does if matched is not None and method == "POST" else None
    spoken = None
    if below is not None and below.dialect is not None:
        spoken = below.dialect.with_path(read.model, matched.path.stream if matched else None)
    return RequestLine(
        path=path,
        shown_path=printable(path, _LONGEST_SHOWN),
        reading=read,
        is_ours=is_ours(read),
        spoken=spoken,
        conversation=matched.dialect if matched is not None and does not in (None, "count") else None,
        is_compact=does == "compact",
        is_count=does == "count",
        mount=read.mount.for_query(query),
    )


class ApiHead(RequestHead):
    """A request to a provider's API without its body, with the meaning of its request line (`RequestLine`).

    spoken:  the dialect of its path, or of its client; None if both are unknown.
    dialect: the dialect to read and answer it; chat's if it is unknown.
    """

    def __init__(
        self, method: str, target: str, headers: Headers, trace: Trace | None = None, written_in: Dialect | None = None
    ) -> None:
        """Create a head. `written_in` is the dialect, whatever the path."""
        line = request_line(method, target)
        super().__init__(method, target, line.path, headers, trace)
        self.reading = line.reading
        self.is_ours = line.is_ours
        self.conversation = line.conversation
        self.is_compact = line.is_compact
        self.is_count = line.is_count
        self.mount = line.mount
        self.shown_path = line.shown_path
        self.spoken = written_in or line.spoken or dialect_of_headers(self.header)
        self.dialect = self.spoken or DEFAULT_DIALECT

    @property
    def model(self) -> str:
        """Return the model in its path; empty without one."""
        return self.reading.model

    def model_of(self, body: bytes) -> str:
        """Return the model of its request, as far as possible without parsing the body."""
        return self.model or self.dialect.model_of(body)

    def asking(self, dialect: Dialect) -> "ApiHead":
        """Return the head of a proxy's own request in this dialect."""
        dialect = dialect.with_path(self.reading.mount.model)
        target = "/".join((self.reading.mount.prefix or "/v1", *dialect.question_path(dialect.model)))
        return ApiHead("POST", target, self.headers, self.trace, dialect)


def api_head(head: RequestHead) -> ApiHead:
    """Return a head as one of a request to a provider's API."""
    return head if isinstance(head, ApiHead) else ApiHead(head.method, head.target, head.headers, head.trace)
