"""A client's request without its body."""

from collections.abc import Iterable

from proxy.server.headers import Headers
from proxy.server.served import Scope
from proxy.telemetry.trace import Trace


def target_of(scope: Scope) -> str:
    """Return path and query as the client wrote them, below the application's mount (`root_path`)."""
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    root = scope.get("root_path", "")
    if root and (path + b"/").startswith(root.rstrip("/").encode() + b"/"):
        path = path[len(root.rstrip("/").encode()) :] or b"/"
    query = scope.get("query_string")
    return (path + b"?" + query if query else path).decode("latin-1")


def has_body(scope: Scope, head: "RequestHead") -> bool:
    """Return False if the request is known to have no body (RFC 9112, section 6.3)."""
    if not scope.get("http_version", "1.1").startswith("1"):
        return True
    return head.header(b"content-length") not in (None, b"0") or head.header(b"transfer-encoding") is not None


class RequestHead:
    """Method, target and headers of a request. `target` is path and query as the client wrote them.

    path:  as the client wrote it.
    trace: that of the request; None if it is not traced.
    """

    def __init__(self, method: str, target: str, path: str, headers: Headers, trace: Trace | None = None) -> None:
        """Create a header block. headers: names in lower case."""
        self.method = method
        self.target = target
        self.path = path
        self.headers = headers
        self.trace = trace
        self._first_values = dict(reversed(headers))

    @property
    def query(self) -> bytes:
        """Return the query of the target."""
        return self.target.partition("?")[2].encode("latin-1")

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a header, by its name in lower case."""
        return self._first_values.get(name)

    def repeats(self, names: Iterable[bytes]) -> bytes | None:
        """Return the first of these headers that was sent more than once; None without one."""
        if len(self._first_values) == len(self.headers):
            return None
        sent = [name for name, _ in self.headers]
        return next((name for name in names if sent.count(name) > 1), None)
