"""What a client said before the body of its request."""

from collections.abc import Iterable

from httptools import parse_url

from policies.cached import cached_property
from proxy.dialects.base import Dialect
from proxy.dialects.table import DEFAULT_DIALECT, introduced_by
from proxy.dialects.texts import printable
from proxy.observing.trace import Trace
from proxy.server.headers import Headers
from proxy.server.paths import Mount, Reading, reading

_LONGEST_SHOWN = 256


def target_of(url: bytes) -> str:
    """Path and query as the client wrote them; of a whole URL these alone."""
    path, _, query = url.partition(b"?")
    if not path.startswith(b"/"):
        parsed = parse_url(url)
        path, query = parsed.path or b"/", parsed.query or b""
    return (path + b"?" + query if query else path).decode("ascii")


class RequestHead:
    """Method, target and headers of a request; `target` is path and query as the client wrote them.

    path:    as the client wrote it. reading: what it means, however it is spelled.
    origin:  shared by heads that differ in the length of their bodies alone.
    trace:   that it belongs to; None where it is not traced.
    """

    def __init__(
        self, method: str, target: str, headers: Headers, trace: Trace | None = None, written_in: Dialect | None = None
    ) -> None:
        """`written_in`: the dialect, whatever its path says."""
        self.method = method
        self.target = target
        self.headers = headers
        self.trace = trace
        self.path = target.partition("?")[0]
        self.reading: Reading = reading(self.path.encode("latin-1"))
        self.origin = object()
        self._written_in = written_in
        self._first = dict(reversed(headers))

    @property
    def query(self) -> bytes:
        return self.target.partition("?")[2].encode("latin-1")

    @cached_property
    def dialect(self) -> Dialect:
        """In which it is read and answered: chat's where nothing tells."""
        return self.spoken or DEFAULT_DIALECT

    @cached_property
    def spoken(self) -> Dialect | None:
        """That of its path, or what its client is known by; None where nothing tells."""
        if self._written_in is not None:
            return self._written_in
        below, found = self.reading.below, self.reading.found
        dialect = introduced_by(self.header) if below is None else below.dialect
        return dialect and dialect.of_path(self.reading.model, found.path.stream if found else None)

    @property
    def model(self) -> str:
        """That which its path names; empty where it names none."""
        return self.reading.model

    def model_of(self, body: bytes) -> str:
        """The model of its request, as far as that can be told without understanding the body."""
        return self.model or self.dialect.model_of(body)

    @cached_property
    def mount(self) -> Mount:
        """Where its client has its API."""
        return self.reading.mount.versioned(self.target.partition("?")[2])

    @cached_property
    def conversation(self) -> Dialect | None:
        """That of a request of a conversation; None for any other request."""
        found = self.reading.found
        if self.method != "POST" or found is None or found.path.does != "converse":
            return None
        return found.dialect

    @property
    def is_count(self) -> bool:
        """Whether it asks for the tokens of a conversation."""
        found = self.reading.found
        return self.method == "POST" and found is not None and found.path.does == "count"

    @cached_property
    def shown_path(self) -> str:
        """As much of the path as may stand in a log."""
        return printable(self.path, _LONGEST_SHOWN)

    def asking(self, dialect: Dialect) -> "RequestHead":
        """The same of a request in this dialect."""
        dialect = dialect.of_path(self.reading.mount.model)
        target = "/".join((self.reading.mount.prefix or "/v1", *dialect.question_path(dialect.model)))
        return RequestHead("POST", target, self.headers, self.trace, dialect)

    def with_length(self, length: bytes) -> "RequestHead":
        """The same of a request whose body, of a stated length, has another one."""
        named = (b"content-length", self._first[b"content-length"])
        other = object.__new__(RequestHead)
        other.__dict__.update(self.__dict__)
        other.headers = [*self.headers]
        other.headers[self.headers.index(named)] = (b"content-length", length)
        other._first = {**self._first, b"content-length": length}
        return other

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header, by its name in lower case."""
        return self._first.get(name)

    def repeats(self, names: Iterable[bytes]) -> bytes | None:
        """The first of these headers that was sent more than once."""
        if len(self._first) == len(self.headers):
            return None
        sent = [name for name, _ in self.headers]
        return next((name for name in names if sent.count(name) > 1), None)
