"""The head of an answer to a client, as bytes."""

from http import HTTPStatus

from proxy.errors import ProxyError
from proxy.server.error_shape import ErrorShape
from proxy.server.headers import Headers, without

_PHRASES = {status.value: status.phrase for status in HTTPStatus}
STATUS_LINE = {status: f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n".encode() for status in range(100, 600)}
_NO_CONTENT = 204
_WITHOUT_BODY = (_NO_CONTENT, 304)


def answer_head(status: int, headers: Headers, *, keep_alive: bool, is_of_head: bool) -> tuple[bytes, int | None, bool]:
    """The head, how many bytes of a body follow it (None: as many as chunks hold), and whether another answer may.

    is_of_head: it answers a HEAD. Raises RuntimeError for what would end a line before its time.
    """
    if status == _NO_CONTENT:  # it may not say a length (RFC 9110, 8.6); with 304 that is of what is not sent
        headers = without(headers, b"content-length")
    lines, length, says_last = [STATUS_LINE[status]], None, False
    for name, value in headers:
        lines += name, b": ", value, b"\r\n"
        if name == b"content-length":
            length = int(value)
        elif name == b"connection" and value == b"close":
            keep_alive, says_last = False, True
    if not keep_alive and not says_last:
        lines.append(b"connection: close\r\n")
    if is_of_head or status in _WITHOUT_BODY:
        length = 0
    elif length is None:
        lines.append(b"transfer-encoding: chunked\r\n")
    lines.append(b"\r\n")
    head = b"".join(lines)
    # Such headers were left out on the way here. Of its four parts each header ends one line.
    if head.count(b"\n") != len(lines) - 3 * len(headers) or head.count(b"\r") != head.count(b"\n"):
        raise RuntimeError("a header of the answer holds a line break")
    return head, length, keep_alive


def refusal(error: ProxyError, shape: ErrorShape) -> bytes:
    """The answer to what never becomes a request, and the last one of its connection."""
    body = shape.error_body(error.fields(), error.status)
    headers = [*error.headers(), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    lines = [b"%b: %b\r\n" % header for header in headers]
    return b"".join([STATUS_LINE[error.status], *lines, b"\r\n", body])
