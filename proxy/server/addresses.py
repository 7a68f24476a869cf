"""Addresses of the proxy: where it listens, its URL, and upstreams that lead back to it."""

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

from proxy.config.loading import Config
from proxy.config.proxies import DEFAULT_PORTS

_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


def address(host: str, port: int) -> str:
    """Return host and port as in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable(host: str, port: int) -> str:
    """Return the address at which this machine reaches a server that listens there."""
    return address(_ANY.get(host, host), port)


def of_proxy(config: Config) -> str | None:
    """Return the URL of a proxy with this config; None if it takes any free port."""
    server = config.server
    return f"http://{reachable(server.host, server.port)}" if server.port else None


def named_url(url: str) -> str:
    """Return the URL of a proxy that a user has named, without a trailing /v1. Raises ValueError."""
    if not url.lower().startswith(("http://", "https://")):
        raise ValueError(f"{url!r} is not an address; write it with http:// or https://, as in http://127.0.0.1:8795")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def leading_back(config: Config, host: str, port: int) -> Iterator[str]:
    """Yield a problem for each upstream that is the proxy itself, if the proxy listens there."""
    names = _names(host)
    for name, upstream in config.upstreams.items():
        parts = urlsplit(upstream.base_url)
        if parts.hostname in names and (parts.port or DEFAULT_PORTS[parts.scheme]) == port:
            yield (
                f"upstreams.{name}.base_url: {upstream.base_url} is this proxy itself; name the model server instead,"
                " and set OPENAI_BASE_URL to the proxy in the shells of its clients only, not in its own"
            )


def _names(host: str) -> frozenset[str]:
    if host in _ANY:
        return _LOOPBACK | _ANY.keys() | {socket.gethostname().lower()}
    return _LOOPBACK if host in _LOOPBACK else frozenset({host.lower()})
