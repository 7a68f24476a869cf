"""Connecting to an upstream: name resolution, the first address that accepts, TLS."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TypeVar

from proxy.config.proxies import Proxy
from proxy.errors import OutOfFilesError, ProxyError, UpstreamConnectionError
from proxy.runtime.descriptors import are_used_up
from proxy.upstreams.wire.tunnels import tunnel, unreached_error

# Seconds before the next address is tried in parallel (RFC 8305, section 8).
_HEAD_START = 0.25
_UNRESOLVED = "The name of the upstream cannot be resolved; is its base_url right, and does DNS work?"
_UNTRUSTED = "The upstream's TLS certificate is not valid for it; is its base_url right, and its issuer trusted?"
_NO_TLS = "The upstream does not speak a common version of TLS; should its base_url begin with http://?"
_REFUSED = "The upstream refuses connections; is its server running, and the port in its base_url right?"
_UNREACHABLE = "The upstream cannot be reached; is its base_url right and the server running?"

_P = TypeVar("_P", bound=asyncio.Protocol)
_Where = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]
_Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, _Where]


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The host and port of an upstream. is_secure: True if it uses TLS."""

    host: str
    port: int
    is_secure: bool


def trusting_context() -> ssl.SSLContext:
    """Return a context that trusts the system's certificates, or those of SSL_CERT_FILE."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


async def dial(
    origin: ServerAddress, context: ssl.SSLContext | None, protocol: Callable[[], _P], proxy: Proxy | None = None
) -> _P:
    """Connect with this protocol, through a proxy if there is one. Raises ProxyError."""
    loop = asyncio.get_running_loop()
    try:
        connected = await (_connect_host(origin) if proxy is None else _connect_tunnel(origin, proxy))
        try:
            name = origin.host if context is not None else None
            _, connected_protocol = await loop.create_connection(
                protocol, sock=connected, ssl=context, server_hostname=name
            )
        except BaseException:
            # The transport closes the socket. If the transport has not begun to read, only the end of input makes it do
            # so.
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
            raise
    except (OSError, UnicodeError) as error:
        raise _connection_error(error) from None
    return connected_protocol


async def _connect_host(origin: ServerAddress) -> socket.socket:
    """Return a socket connected to a host. Raises OSError and UnicodeError."""
    loop = asyncio.get_running_loop()
    addresses = _literal_address(origin) or await loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
    return await _connect_first(_alternating(addresses))


async def _connect_tunnel(origin: ServerAddress, proxy: Proxy) -> socket.socket:
    """Return a socket connected to a proxy, and through it to a host with TLS. Raises ProxyError."""
    try:
        connected = await _connect_host(ServerAddress(proxy.host, proxy.port, is_secure=False))
        try:
            if origin.is_secure:
                await tunnel(connected, origin.host, origin.port, proxy)
        except BaseException:
            connected.close()
            raise
    except (OSError, UnicodeError) as error:
        raise (
            OutOfFilesError() if isinstance(error, OSError) and are_used_up(error) else unreached_error(proxy)
        ) from None
    return connected


def _literal_address(origin: ServerAddress) -> list[_Address]:
    """Return the address of a host that is an IP address, which needs no lookup in a thread; empty for a name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):
            socket.inet_pton(family, origin.host)
            return [(family, socket.SOCK_STREAM, 0, "", (origin.host, origin.port))]
    return []


async def _connect_first(addresses: Sequence[_Address]) -> socket.socket:
    """Return a socket connected to the first address that accepts. Each has a head start before the next."""
    if len(addresses) == 1:
        return await _connect_address(addresses[0])
    remaining, trying = [*reversed(addresses)], set[asyncio.Task[socket.socket]]()
    error: BaseException | None = None
    try:
        while remaining or trying:
            if remaining:
                trying.add(asyncio.create_task(_connect_address(remaining.pop())))
            first_completed = asyncio.FIRST_COMPLETED
            done, _ = await asyncio.wait(
                trying, timeout=_HEAD_START if remaining else None, return_when=first_completed
            )
            for task in done:
                trying.remove(task)
                error = task.exception()
                if error is None:
                    return task.result()
    finally:
        for task in trying:
            task.cancel()
            task.add_done_callback(_close_late)
    raise error or OSError


def _close_late(task: asyncio.Task[socket.socket]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()


async def _connect_address(address: _Address) -> socket.socket:
    family, kind, protocol, _, peer = address
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        # asyncio sets it only on sockets that it makes itself.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(sock, peer)
    except BaseException:
        sock.close()
        raise
    return sock


def _alternating(addresses: Sequence[_Address]) -> list[_Address]:
    """Return the addresses with alternating families, the resolver's first one first (RFC 8305, section 4)."""
    same_family = [address for address in addresses if address[0] == addresses[0][0]]
    other_family = [address for address in addresses if address[0] != addresses[0][0]]
    return [address for address in chain.from_iterable(zip_longest(same_family, other_family)) if address is not None]


def _connection_error(error: OSError | UnicodeError) -> ProxyError:
    """Return the error for a failed connection, with advice. The system's own text may hold addresses."""
    match error:
        case OSError() if are_used_up(error):
            return OutOfFilesError()
        case socket.gaierror() | UnicodeError():
            return UpstreamConnectionError(_UNRESOLVED, "dns")
        case ssl.SSLCertVerificationError():
            return UpstreamConnectionError(_UNTRUSTED, "tls")
        case ssl.SSLError():
            return UpstreamConnectionError(_NO_TLS, "tls")
        case ConnectionRefusedError():
            return UpstreamConnectionError(_REFUSED, "refused")
        case _:
            return UpstreamConnectionError(_UNREACHABLE, "unreachable")
