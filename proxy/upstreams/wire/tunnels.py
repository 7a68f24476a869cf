"""Tunnels through an HTTP proxy (RFC 9110, section 9.3.6), and their errors."""

import asyncio
import re
import socket

from proxy.config.proxies import NONE, SETTING, Proxy
from proxy.errors import UpstreamConnectionError

UNAUTHORIZED = 407
_MAX_HEAD = 64 * 1024
_READ = 4096
_END = b"\r\n\r\n"
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])[ \r]")
_AROUND = f"{SETTING}: {min(NONE)} bypasses it"


async def tunnel(connected: socket.socket, host: str, port: int, proxy: Proxy) -> None:
    """Open a tunnel to a host through the proxy at the other end of a socket.

    Raises UpstreamConnectionError and OSError.
    """
    loop, name = asyncio.get_running_loop(), f"[{host}]" if ":" in host else host
    target = f"{name}:{port}".encode("ascii" if name.isascii() else "idna")
    authorization = b"Proxy-Authorization: " + proxy.authorization + b"\r\n" if proxy.authorization else b""
    await loop.sock_sendall(connected, b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (target, target, authorization))
    answer = b""
    while _END not in answer:
        read = await loop.sock_recv(connected, _READ)
        answer += read
        if not read or len(answer) > _MAX_HEAD:
            raise unreached_error(proxy)
    status = _STATUS.match(answer)
    if status is None or (status[1].startswith(b"2") and not answer.endswith(_END)):
        raise unreached_error(proxy)
    if int(status[1]) == UNAUTHORIZED:
        raise unauthorized_error(proxy)
    if not status[1].startswith(b"2"):
        raise UpstreamConnectionError(
            f"The proxy before the upstream rejects a tunnel to it ({status[1].decode()});"
            f" does it allow the host and port of base_url? {_AROUND}.",
            "proxy_refused",
        )


def unreached_error(proxy: Proxy) -> UpstreamConnectionError:
    """Return the error for a proxy that cannot be reached or is not a proxy."""
    return UpstreamConnectionError(
        f"The proxy before the upstream cannot be reached; does it run, and is {proxy.source} right? {_AROUND}.",
        "proxy",
    )


def unauthorized_error(proxy: Proxy) -> UpstreamConnectionError:
    """Return the error for a proxy that requires credentials."""
    return UpstreamConnectionError(
        f"The proxy before the upstream requires valid credentials ({UNAUTHORIZED});"
        f" put them into {proxy.source}, as http://USER:PASSWORD@HOST:PORT.",
        "proxy_credentials",
    )
