"""uvicorn's server with an orderly shutdown, and its listening sockets."""

import asyncio
import errno
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType

import uvicorn

from proxy.server.keep_alive import keep_alive
from proxy.server.protocol import HttpProtocol
from proxy.server.served import Served

# Used only if this class's own shutdown is not.
_DRAIN_SECONDS = 30
# At the end of the process: seconds for requests that are about to arrive on idle connections, and for final errors.
_GRACE_SECONDS = 1.0
_LAST_SECONDS = 5.0
_STEP_SECONDS = 0.02
_BACKLOG = 2048
_FIRST_INHERITED = 3


def settings(app: Served) -> uvicorn.Config:
    """Return uvicorn's settings. They name the protocol, since uvicorn silently falls back to a laxer parser."""
    return uvicorn.Config(
        app,
        http=HttpProtocol,
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
        backlog=_BACKLOG,
    )


Listens = Callable[[], list[socket.socket]]
"""A function that returns the sockets that one process serves."""


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises OSError if the address is in use or not local.

    asyncio turns Nagle's algorithm off only on its own sockets. Without this each response waits 40 ms for the client's
    delayed acknowledgement.
    """
    listener = socket.create_server((host, port), backlog=_BACKLOG, family=_family(host))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    keep_alive(listener)
    return listener


def listen_apart(host: str, port: int) -> tuple[socket.socket, Listens]:
    """Reserve an address for several processes. Returns its socket, and a function that makes one for each process.

    The system spreads connections over the listening sockets. The process that serves a connection also accepts it, and
    no connection waits for a dead process. With a single socket, the first process that wakes takes all waiting
    connections. Raises OSError like `listen`.
    """
    if sys.platform != "linux":  # on other systems the newest socket gets all connections
        alone = listen(host, port)
        return alone, lambda: [alone]
    if port:  # a shared address may belong to another proxy
        listen(host, port).close()
    holder = _shared_socket(host, port)
    port = holder.getsockname()[1]
    return holder, lambda: [_shared_socket(host, port)]


def _shared_socket(host: str, port: int) -> socket.socket:
    """Return a socket at a shared address. It does not listen."""
    shared = socket.socket(_family(host), socket.SOCK_STREAM)
    shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    shared.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    keep_alive(shared)
    if shared.family == socket.AF_INET6:
        shared.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    shared.bind((host, port))
    return shared


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def inherited_sockets() -> list[socket.socket]:
    """Return the listening sockets that a supervisor passes, which keep new connections during restarts.

    systemd's protocol (sd_listen_fds(3)): LISTEN_FDS of them from descriptor 3 on, for the process LISTEN_PID. Raises
    OSError if one is not a listening TCP socket.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    number = int(os.environ.get("LISTEN_FDS", "0"))
    listeners = [socket.socket(fileno=_FIRST_INHERITED + at) for at in range(number)]
    for listener in listeners:
        listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if not listens or listener.family not in (socket.AF_INET, socket.AF_INET6):
            raise OSError(errno.EINVAL, "a socket passed by LISTEN_FDS is not a listening TCP socket")
        listener.set_inheritable(False)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listeners


def _accept_all(listener: socket.socket) -> Iterator[socket.socket]:
    """Yield the connections that wait at a non-blocking listener."""
    with suppress(BlockingIOError):
        while True:
            connection, _ = listener.accept()
            yield connection


class OrderlyServer(uvicorn.Server):
    """uvicorn's server with an orderly end: requests in flight finish, and clients of the others get an error."""

    def __init__(self, app: Served, grace: float = _GRACE_SECONDS) -> None:
        """Create a server. grace: seconds for requests that are about to arrive on idle connections."""
        super().__init__(settings(app))
        self.app = app
        self._grace = grace

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, and end immediately at the second."""
        self.force_exit = self.should_exit
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, and end. uvicorn's own method closes connections with incoming requests and truncates streams."""
        self.app.drain()
        await self._until(lambda: False, self.app.server_settings.drain_delay)
        await self._stop_accepting(sockets or [])
        drain_seconds = self.app.server_settings.drain
        for connection in self._connections():
            connection.end_after_response()
        await self._until(
            lambda: not any(connection.is_idle for connection in self._connections()), min(self._grace, drain_seconds)
        )
        for connection in self._connections():
            connection.shutdown()
        await self._until(self._is_done, drain_seconds)
        self.app.break_off()
        await self._until(self._is_done, _LAST_SECONDS)
        for connection in self._connections():
            connection.transport.abort()
        for task in self.server_state.tasks:
            task.cancel()
        if not self.force_exit:
            await self.lifespan.shutdown()
        self.app.report_end()

    async def _stop_accepting(self, sockets: list[socket.socket]) -> None:
        """Stop accepting, but serve connections that are accepted or wait for that.

        asyncio makes a connection one turn of its loop later. Closing the listener would reset the waiting connections,
        and a front end may not send a POST again.
        """
        loop = asyncio.get_running_loop()
        for listener in sockets:
            loop.remove_reader(listener)
        await asyncio.sleep(0)
        waiting = [connection for listener in sockets for connection in _accept_all(listener)]
        for server in self.servers:
            server.close()
        for listener in sockets:
            listener.close()
        for connection in waiting:
            await loop.connect_accepted_socket(self._serve_connection, connection)

    def _serve_connection(self) -> HttpProtocol:
        return HttpProtocol(self.config, self.server_state, self.lifespan.state)

    def _connections(self) -> list[HttpProtocol]:
        return [connection for connection in self.server_state.connections if isinstance(connection, HttpProtocol)]

    def _is_done(self) -> bool:
        return not self.server_state.connections and not self.server_state.tasks

    async def _until(self, is_true: Callable[[], bool], seconds: float) -> None:
        """Wait until `is_so` returns True, for at most `seconds`."""
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        while not is_true() and not self.force_exit and clock() < until:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(_STEP_SECONDS)
