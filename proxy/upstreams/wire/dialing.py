"""Connecting to an upstream: its name resolved, the first of its addresses that answers, TLS."""

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

# Before the next address is tried beside the one that has not answered (RFC 8305, section 8).
_HEAD_START = 0.25
_UNRESOLVED = "The name of the upstream cannot be resolved; is its base_url right, and does DNS work?"
_UNTRUSTED = "The upstream's TLS certificate is not valid for it; is its base_url right, and its issuer trusted?"
_NO_TLS = "The upstream does not speak TLS as we do; should its base_url begin with http://?"
_REFUSED = "The upstream refuses connections; is its server running, and the port in its base_url right?"
_UNREACHABLE = "The upstream cannot be reached; is its base_url right and the server running?"

_P = TypeVar("_P", bound=asyncio.Protocol)
_Where = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]
_Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, _Where]


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The host and port of an upstream, and whether it uses TLS."""

    host: str
    port: int
    is_secure: bool


def trusting_context() -> ssl.SSLContext:
    """Trusts whom the system trusts, or SSL_CERT_FILE names."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


async def dial(
    origin: ServerAddress, context: ssl.SSLContext | None, protocol: Callable[[], _P], proxy: Proxy | None = None
) -> _P:
    """Connect with this protocol, through a proxy if there is one. Raises ProxyError with the reason in our words."""
    loop = asyncio.get_running_loop()
    try:
        connected = await (_connect_host(origin) if proxy is None else _connect_tunnel(origin, proxy))
        try:
            name = origin.host if context is not None else None
            _, made = await loop.create_connection(protocol, sock=connected, ssl=context, server_hostname=name)
        except BaseException:
            # Its transport closes it. Where that has not begun to read yet, only what it reads then can make it.
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
            raise
    except (OSError, UnicodeError) as error:
        raise _connection_error(error) from None
    return made


async def _connect_host(origin: ServerAddress) -> socket.socket:
    """Connected to a host; raises OSError and UnicodeError."""
    loop = asyncio.get_running_loop()
    found = _named_itself(origin) or await loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
    return await _connect_first(_alternating(found))


async def _connect_tunnel(origin: ServerAddress, proxy: Proxy) -> socket.socket:
    """Connected to a proxy, and through it to a host that speaks TLS; raises ProxyError."""
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


def _named_itself(origin: ServerAddress) -> list[_Address]:
    """Return the address that a host is by itself, which needs no lookup in a thread. Empty for a name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):
            socket.inet_pton(family, origin.host)
            return [(family, socket.SOCK_STREAM, 0, "", (origin.host, origin.port))]
    return []


async def _connect_first(addresses: Sequence[_Address]) -> socket.socket:
    """Connected to the first address that answers; each has a head start before the next."""
    if len(addresses) == 1:
        return await _connect_address(addresses[0])
    left, trying = [*reversed(addresses)], set[asyncio.Task[socket.socket]]()
    error: BaseException | None = None
    try:
        while left or trying:
            if left:
                trying.add(asyncio.create_task(_connect_address(left.pop())))
            first = asyncio.FIRST_COMPLETED
            done, _ = await asyncio.wait(trying, timeout=_HEAD_START if left else None, return_when=first)
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
    family, kind, protocol, _, where = address
    made = socket.socket(family, kind, protocol)
    try:
        made.setblocking(False)
        # asyncio does it on sockets that it made itself.
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(made, where)
    except BaseException:
        made.close()
        raise
    return made


def _alternating(found: Sequence[_Address]) -> list[_Address]:
    """Return one address of each family in turn, the resolver's first one first (RFC 8305, section 4)."""
    first = [address for address in found if address[0] == found[0][0]]
    others = [address for address in found if address[0] != found[0][0]]
    return [address for address in chain.from_iterable(zip_longest(first, others)) if address is not None]


def _connection_error(error: OSError | UnicodeError) -> ProxyError:
    """Why there is no connection, and what to look at: the system's own words may hold addresses."""
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
