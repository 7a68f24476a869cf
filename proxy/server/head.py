"""What a client said before the body of its request."""

from collections.abc import Iterable
from typing import Self

from httptools import parse_url

from proxy.observing.trace import Trace
from proxy.server.headers import Headers


def target_of(url: bytes) -> str:
    """Path and query as the client wrote them; of a whole URL these alone."""
    path, _, query = url.partition(b"?")
    if not path.startswith(b"/"):
        parsed = parse_url(url)
        path, query = parsed.path or b"/", parsed.query or b""
    return (path + b"?" + query if query else path).decode("ascii")


class RequestHead:
    """Method, target and headers of a request; `target` is path and query as the client wrote them.

    path:    as the client wrote it.
    trace:   that it belongs to; None where it is not traced.
    """

    def __init__(self, method: str, target: str, headers: Headers, trace: Trace | None = None) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.trace = trace
        self.path = target.partition("?")[0]
        self._first = dict(reversed(headers))

    @property
    def query(self) -> bytes:
        return self.target.partition("?")[2].encode("latin-1")

    def with_length(self, length: bytes) -> Self:
        """The same of a request whose body, of a stated length, has another one."""
        named = (b"content-length", self._first[b"content-length"])
        other = object.__new__(type(self))
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
