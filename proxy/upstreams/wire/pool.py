"""The connections to one upstream: bounded, reused, and given to waiting requests in order."""

import asyncio
import ssl
from collections import deque
from urllib.parse import urlsplit

from proxy.config.proxies import DEFAULT_PORTS, Proxy
from proxy.config.settings import Upstream
from proxy.errors import UpstreamConnectionError, UpstreamTimeoutError
from proxy.runtime.deadlines import within
from proxy.server.headers import Headers
from proxy.upstreams.wire.connection import Connection
from proxy.upstreams.wire.dialing import ServerAddress, dial, trusting_context

# Seconds for which an idle connection is kept: less than servers keep theirs.
_KEEP_IDLE_S = 4.0
# Turns of the loop for closing. A TLS transport needs several.
_TURNS = 10


class Pool:
    """The connections to one upstream. It is closed at shutdown.

    base:            the beginning of this upstream's URLs.
    host:            the host of its requests.
    origin, headers: the prefix of targets and the additional headers for a proxy that reads the requests.
    """

    def __init__(self, upstream: Upstream, proxy: Proxy | None = None) -> None:
        """Create an empty pool."""
        parts = urlsplit(upstream.base_url)
        self.base = f"{parts.scheme}://{parts.netloc}"
        self._upstream = upstream
        port = parts.port or DEFAULT_PORTS[parts.scheme]
        self._origin = ServerAddress(parts.hostname or "", port, parts.scheme == "https")
        name = f"[{self._origin.host}]" if ":" in self._origin.host else self._origin.host
        shown = name if port == DEFAULT_PORTS[parts.scheme] else f"{name}:{port}"
        self.host = shown.encode("idna" if not shown.isascii() else "ascii")
        self._proxy = proxy
        # A proxy reads nothing of a tunnel's content.
        self._reader = None if self._origin.is_secure else proxy
        self.origin = b"http://" + self.host if self._reader else b""
        authorization = self._reader.authorization if self._reader else b""
        self.headers: Headers = [(b"proxy-authorization", authorization)] if authorization else []
        self._context: ssl.SSLContext | None = None
        self._all: set[Connection] = set()
        # Connections that are being made count too.
        self._slots = 0
        # The last one used is reused first.
        self._idle: list[Connection] = []
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()
        self._sweeping: asyncio.TimerHandle | None = None

    @property
    def in_use(self) -> int:
        """Return the number of connections in use, including those that are being made."""
        return self._slots - len(self._idle)

    def idle(self) -> Connection | None:
        """Return a connection that can be used immediately; None without one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:  # else it has ended, and its callback is about to run
                return connection
        return None

    async def connect(self) -> Connection:
        """Return a connection: a new one, or one that was given back in the meantime.

        Raises UpstreamConnectionError, UpstreamTimeoutError or OutOfFilesError.
        """
        upstream = self._upstream
        total = upstream.total_timeout
        is_short = total is not None and total < upstream.connect_timeout
        try:
            async with within(total if is_short else upstream.connect_timeout):
                return await self._next()
        except TimeoutError:
            if is_short:
                raise UpstreamTimeoutError(
                    f"The upstream did not respond within {total:g} s.", "total_timeout"
                ) from None
            server = "upstream" if self._proxy is None else "upstream, or the proxy before it,"
            raise UpstreamConnectionError(
                f"The {server} did not accept a connection in {upstream.connect_timeout:g} s.", "connect_timeout"
            ) from None

    async def close(self) -> None:
        """Close all connections, in use or not."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in [*self._all]:
            connection.close()
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    # called by connections

    def give_back(self, connection: Connection) -> None:
        """Give the connection to the first waiting request, else keep it."""
        if waiter := self._first_waiting():
            waiter.set_result(connection)
            return
        self._idle.append(connection)
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(_KEEP_IDLE_S, self._sweep)

    def on_lost(self, connection: Connection) -> None:
        """Free the slot of a closed connection."""
        if connection not in self._all:  # it ends while it is made, and its maker frees the slot
            return
        self._all.remove(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._vacate()

    async def _next(self) -> Connection:
        while self._slots >= self._upstream.max_connections:
            if self._idle:  # a new one is needed
                self._idle[0].close()
                continue
            connection_back = await self._wait_for_turn()
            if connection_back is None:
                break
            if connection_back.is_usable:
                return connection_back
        else:
            self._slots += 1
        try:
            connection = await self._dial()
        except BaseException:
            self._vacate()
            raise
        self._all.add(connection)
        return connection

    async def _dial(self) -> Connection:
        if self._origin.is_secure and self._context is None:
            self._context = await asyncio.to_thread(trusting_context)  # it reads a few hundred certificates
        connection = await dial(
            self._origin, self._context, lambda: Connection(self, self._upstream, self._reader), self._proxy
        )
        if not connection.is_open:
            raise UpstreamConnectionError("The upstream closed the connection before it responded.", "closed")
        return connection

    async def _wait_for_turn(self) -> Connection | None:
        """Return a connection that was given back; None for the slot of one that has ended."""
        waiter: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():
                self._pass_on(waiter.result())
            raise

    def _pass_on(self, connection: Connection | None) -> None:
        if connection is None:
            self._vacate()
        elif connection.is_open:
            self.give_back(connection)

    def _vacate(self) -> None:
        if waiter := self._first_waiting():
            waiter.set_result(None)
        else:
            self._slots -= 1

    def _first_waiting(self) -> asyncio.Future[Connection | None] | None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                return waiter
        return None

    def _sweep(self) -> None:
        """Close connections that were idle for too long. The oldest are first in the list."""
        now = asyncio.get_running_loop().time()
        for connection in [idle for idle in self._idle if now - idle.idle_since >= _KEEP_IDLE_S]:
            connection.close()
        self._sweeping = None
        if self._idle:
            self._sweeping = asyncio.get_running_loop().call_at(self._idle[0].idle_since + _KEEP_IDLE_S, self._sweep)
