"""Whether a request comes from a program of this machine, and no front end passed it on."""

import ipaddress
from urllib.parse import urlsplit

from starlette.requests import Request

# What curl, wget, Prometheus, browsers and HTTP libraries send by themselves. A front end that passes on a stranger's
# request gives itself away by any header beside these, such as Forwarded, Via, X-Forwarded-For, X-Request-Id or CF-Ray.
_ORDINARY = frozenset(
    {
        *("host", "user-agent", "accept", "accept-encoding", "accept-language", "connection", "cache-control"),
        *("pragma", "cookie", "dnt", "if-modified-since", "if-none-match", "priority", "referer"),
        *("sec-ch-ua", "sec-ch-ua-mobile", "sec-ch-ua-platform"),
        *("sec-fetch-dest", "sec-fetch-mode", "sec-fetch-site", "sec-fetch-user", "sec-gpc"),
        *("upgrade-insecure-requests", "x-prometheus-scrape-timeout-seconds"),
    }
)


def is_this_machine(request: Request) -> bool:
    """Whether a request shows that a program of this machine sent it, and no front end passed it on.

    The Host must be a loopback name with our port: a page in a browser may resolve any other name to this machine.
    """
    scope = request.scope
    _, port = scope["server"]
    return (
        scope["http_version"] == "1.1"
        and _ORDINARY.issuperset(request.headers.keys())
        and request.client is not None
        and _is_loopback(request.client.host)
        and _is_ours(request.headers.get("host", ""), port)
    )


def _is_ours(host: str, port: int) -> bool:
    try:
        parts = urlsplit(f"//{host}")
        named = parts.port or 80
    except ValueError:
        return False
    name = parts.hostname or ""
    return named == port and (name == "localhost" or _is_loopback(name))


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
