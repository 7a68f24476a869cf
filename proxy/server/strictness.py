"""Strict checks of a request's header block. Anything that two parsers could read differently is rejected."""

import re
from collections.abc import Sequence

from proxy.errors import HeadersTooLargeError, InvalidRequestError, URITooLongError

# nginx accepts header blocks of 32 KB and lines of 8 KB. Here a line may have 16 KB.
MAX_HEAD = 32 * 1024
MAX_LINE = 16 * 1024
MAX_HEADERS = 128
# A name or address and a port (RFC 9112, section 3.2), without characters that would change a URL.
_HOST = re.compile(rb"(?:[A-Za-z0-9._~%!$&'()*+,;=-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")
Header = tuple[bytes, bytes]


def check_target(method: bytes, url: bytes) -> None:
    """Raise InvalidRequestError or URITooLongError for a target that is not a path or a URL with a path.

    The host of a URL is not used. A fragment or a user is not allowed.
    """
    if len(url) > MAX_LINE:
        raise URITooLongError
    is_path = url.startswith(b"/")
    is_url = not is_path and url.startswith((b"http://", b"https://"))
    is_whole = is_url and url.count(b"/") > 2 and _HOST.fullmatch(url.split(b"/")[2])
    if b"#" in url or not (is_path or is_whole):
        raise InvalidRequestError("The request's target must be a path.")
    if method == b"CONNECT":
        raise InvalidRequestError("The method CONNECT is not supported.")


def check_size(headers: Sequence[Header], number: int) -> None:
    """Raise HeadersTooLargeError for too many or too large headers. number: that of all headers."""
    if number > MAX_HEADERS or sum(len(name) + len(value) + 4 for name, value in headers) > MAX_HEAD:
        raise HeadersTooLargeError


def check_fields(headers: Sequence[Header], version: str, known_hosts: list[bytes] | None) -> list[bytes]:
    """Return the values of Host, after checking them unless they are known to be valid. Names are in lower case."""
    if version not in ("1.1", "1.0"):
        raise InvalidRequestError("The request is not HTTP/1.1.")
    hosts, codings = [], []
    for name, value in headers:
        if name == b"host":
            hosts.append(value)
        elif name == b"transfer-encoding":
            codings.append(value.lower())
    if codings and (codings != [b"chunked"] or version == "1.0"):
        raise InvalidRequestError("The Transfer-Encoding is not chunked, or not of HTTP/1.1.")
    if not hosts or hosts != known_hosts:
        _check_hosts(hosts, version)
    return hosts


def _check_hosts(hosts: Sequence[bytes], version: str) -> None:
    if len(hosts) > 1 or (not hosts and version != "1.0"):
        raise InvalidRequestError("The request must have one Host header.")
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise InvalidRequestError("The Host header is not a name or address with a port.")
