"""Which headers pass, in which direction (RFC 9110, section 7.6.1), and which are ours."""

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
# Counts how often a request passed a proxy like this one, so that one configured as its own upstream is noticed.
HOP = b"x-concertina-hop"
MAX_HOPS = 4
# Of an answer: what we call the request, in the log too.
REQUEST_ID = b"x-concertina-request-id"
# Set anew for the upstream, or meant for us.
NOT_UPSTREAM = _HOP_BY_HOP | {
    *(HOP, b"host", b"content-length", b"expect", b"forwarded", b"x-real-ip"),
    *(b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-port"),
}
CONTROL_PREFIX = b"x-compaction"
_NONE: frozenset[bytes] = frozenset()
# Names of headers that clients and upstreams send again and again.
REMEMBERED = 1_024
# Names and values that no server would send on (RFC 9110, section 5.5).
_UNFIT = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


def first(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """Return the first value of a header. Names are lower case, as ASGI has them."""
    for key, value in headers:  # a generator would take twice as long
        if key == name:
            return value
    return None


def bearer_key(value: bytes) -> bytes:
    """Return the key in a header (RFC 6750, section 2.1). Of another scheme than Bearer the whole value is the key."""
    scheme, *key = value.split(None, 1) or [b""]
    return b"".join(key).strip() if scheme.lower() == b"bearer" else value.strip()


def our_cookie(port: int) -> str:
    """Return the name of the cookie of a proxy that listens on this port."""
    return f"concertina-{port}"


def without(headers: Headers, name: bytes) -> Headers:
    return [(key, value) for key, value in headers if key != name]


def hops(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Return how many proxies of this kind the request has passed."""
    value = first(headers, HOP) or b"0"
    return int(value[:4]) if value.isdigit() else 0


def to_client(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the upstream's headers for the client: all but the hop-by-hop ones and ours, in their order.

    Names are in lower case.
    """
    headers = [*headers]
    named = named_by_connection(headers)
    return [
        (key, value)
        for key, value in headers
        if _passes_to_client(key) and not (named and hyphenated(key) in named) and not _UNFIT.search(value)
    ]


@lru_cache(REMEMBERED)
def _passes_to_client(name: bytes) -> bool:
    name = hyphenated(name)
    return name not in _HOP_BY_HOP and name != REQUEST_ID and not is_control(name)


def hyphenated(name: bytes) -> bytes:
    """Return the name of a header as servers read it that take _ for -, for example with CGI and WSGI."""
    return name.replace(b"_", b"-")


def is_control(name: bytes) -> bool:
    """Return True if a header is a control header of the proxy, as `hyphenated` reads it."""
    return hyphenated(name).startswith(CONTROL_PREFIX)


def named_by_connection(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """Return the names that Connection lists, as `hyphenated` reads them."""
    values = [value for key, value in headers if key == b"connection"]
    names = (hyphenated(name.strip().lower()) for value in values for name in value.split(b","))
    return frozenset(names) if values else _NONE
