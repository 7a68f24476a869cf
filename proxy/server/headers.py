"""Headers that are relayed in each direction (RFC 9110, section 7.6.1), and the proxy's own."""

import re
from collections.abc import Iterable
from functools import lru_cache

Headers = list[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    }
)
# The number of proxies like this one that a request has passed, to detect one that is its own upstream.
HOP = b"x-concertina-hop"
MAX_HOPS = 4
# A header of responses: the proxy's id of the request, also in the log.
REQUEST_ID = b"x-concertina-request-id"
# Headers that are set anew for the upstream, or are meant for the proxy.
NOT_UPSTREAM = _HOP_BY_HOP | {
    *(HOP, b"host", b"content-length", b"expect", b"forwarded", b"x-real-ip"),
    *(b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-port"),
}
CONTROL_PREFIX = b"x-compaction"
_NONE: frozenset[bytes] = frozenset()
# The number of header names to cache. Clients and upstreams send the same ones repeatedly.
REMEMBERED = 1_024
# Characters in names and values that no server would relay (RFC 9110, section 5.5).
_UNFIT = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


def first(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """Return the first value of a header; None without one. Names are in lower case, as in ASGI."""
    for key, value in headers:  # a generator would take twice as long
        if key == name:
            return value
    return None


def bearer_key(value: bytes) -> bytes:
    """Return the key in a header (RFC 6750, section 2.1). With another scheme than Bearer it is the whole value."""
    scheme, *key = value.split(None, 1) or [b""]
    return b"".join(key).strip() if scheme.lower() == b"bearer" else value.strip()


def our_cookie(port: int) -> str:
    """Return the name of the cookie of a proxy that listens on this port."""
    return f"concertina-{port}"


def without(headers: Headers, name: bytes) -> Headers:
    """Return the headers except those with this name."""
    return [(key, value) for key, value in headers if key != name]


def hops(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Return the number of proxies of this kind that the request has passed."""
    value = first(headers, HOP) or b"0"
    return int(value[:4]) if value.isdigit() else 0


def to_client(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the upstream's headers for the client, without hop-by-hop headers and the proxy's own, in order.

    Names are in lower case.
    """
    headers = [*headers]
    connection_names = named_by_connection(headers)
    return [
        (key, value)
        for key, value in headers
        if _passes_to_client(key)
        and not (connection_names and hyphenated(key) in connection_names)
        and not _UNFIT.search(value)
    ]


@lru_cache(REMEMBERED)
def _passes_to_client(name: bytes) -> bool:
    name = hyphenated(name)
    return name not in _HOP_BY_HOP and name != REQUEST_ID and not is_control(name)


def hyphenated(name: bytes) -> bytes:
    """Return a header's name with - for _, as servers with CGI or WSGI read it."""
    return name.replace(b"_", b"-")


def is_control(name: bytes) -> bool:
    """Return True if a header is a control header of the proxy, read as by `hyphenated`."""
    return hyphenated(name).startswith(CONTROL_PREFIX)


def named_by_connection(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """Return the names that Connection lists, read as by `hyphenated`."""
    values = [value for key, value in headers if key == b"connection"]
    names = (hyphenated(name.strip().lower()) for value in values for name in value.split(b","))
    return frozenset(names) if values else _NONE
