"""The header block of a request to an upstream, as bytes."""

import re
from collections.abc import AsyncIterator, Iterable
from functools import lru_cache

from proxy.errors import InvalidRequestError
from proxy.server.headers import Headers

Body = bytes | AsyncIterator[bytes] | None

# Without a body, these methods need no Content-Length (RFC 9110, section 8.6).
_BODILESS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TARGET = re.compile(rb"/[\x21-\x7e\x80-\xff]*")
_REMEMBERED = 1_024


def is_chunked(headers: Iterable[tuple[bytes, bytes]], body: Body) -> bool:
    """Return True if a body is sent in chunks: it comes in pieces, and its length is not stated."""
    return body is not None and not isinstance(body, bytes) and not _states_length(headers)


def request_head(
    method: str, target: str, host: bytes, headers: Iterable[tuple[bytes, bytes]], body: Body, origin: bytes = b""
) -> bytes:
    """Return a header block with the client's headers unchanged and in order, and with the body's framing.

    origin: written before the target for a proxy (RFC 9112, section 3.2.2); empty without one.
    Raises InvalidRequestError for a header with a line break.
    """
    return head_begun(method, target, host, [*headers, *_framing(method, headers, body)], origin) + b"\r\n"


def head_begun(method: str, target: str, host: bytes, headers: Headers, origin: bytes = b"") -> bytes:
    """Return the header block without its last line. Raises the errors of `request_head`."""
    encoded_target = target.encode("latin-1", "replace")
    if not _TARGET.fullmatch(encoded_target):
        raise InvalidRequestError("The request's target must be a path.")
    lines = b"".join([_header_begin(name) + value + b"\r\n" for name, value in headers])
    if lines.count(b"\n") != len(headers) or lines.count(b"\r") != len(headers) or b"\0" in lines:
        raise InvalidRequestError("A header of the request has a line break.")
    return b"%b %b%b HTTP/1.1\r\nHost: %b\r\n%b" % (method.encode(), origin, encoded_target, host, lines)


def _framing(method: str, headers: Iterable[tuple[bytes, bytes]], body: Body) -> list[tuple[bytes, bytes]]:
    if _states_length(headers):
        return []
    if is_chunked(headers, body):
        return [(b"Transfer-Encoding", b"chunked")]
    if not body and method in _BODILESS:
        return []
    return [(b"Content-Length", b"%d" % len(body if isinstance(body, bytes) else b""))]


def _states_length(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name == b"content-length" for name, _ in headers)


@lru_cache(_REMEMBERED)
def _header_begin(name: bytes) -> bytes:
    """Return the beginning of a header's line."""
    if not _TOKEN.fullmatch(name):
        raise InvalidRequestError("Invalid header name.")
    return name + b": "
