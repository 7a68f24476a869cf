"""uvicorn's server with an end in order, and the sockets it listens on."""

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

# Where this class's own shutdown is not used.
_DRAIN_SECONDS = 30
# When the process ends: for requests that are on their way on connections that look idle, and for last words.
_GRACE_SECONDS = 1.0
_LAST_SECONDS = 5.0
_STEP_SECONDS = 0.02
_BACKLOG = 2048
_FIRST_INHERITED = 3


def settings(app: Served) -> uvicorn.Config:
    """Return uvicorn's settings. They name the protocol, since uvicorn falls back to a laxer parser silently."""
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
"""Makes, or has, the sockets that one process serves."""


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises OSError if the address is taken or not ours.

    asyncio turns Nagle's algorithm off only on its own sockets. Without this each response waits 40 ms for the client's
    delayed acknowledgement.
    """
    listener = socket.create_server((host, port), backlog=_BACKLOG, family=_family(host))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    keep_alive(listener)
    return listener


def listen_apart(host: str, port: int) -> tuple[socket.socket, Listens]:
    """Hold an address for several processes. Yield what returns a socket of its own there for each of them.

    The system spreads connections over the listening sockets. The process that serves a connection also accepts it, and
    no connection waits for a process that has died. With one socket for all, the first process that wakes takes all
    connections that have come by then. Raises OSError like `listen`.
    """
    if sys.platform != "linux":  # elsewhere the newest socket gets all connections
        alone = listen(host, port)
        return alone, lambda: [alone]
    if port:  # a shared address may be another proxy's
        listen(host, port).close()
    holder = _shared_socket(host, port)
    port = holder.getsockname()[1]
    return holder, lambda: [_shared_socket(host, port)]


def _shared_socket(host: str, port: int) -> socket.socket:
    """Return a socket at an address that others have too. It does not listen."""
    made = socket.socket(_family(host), socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    keep_alive(made)
    if made.family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    made.bind((host, port))
    return made


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def inherited_sockets() -> list[socket.socket]:
    """Return the listening sockets that a supervisor passes, which keep new connections while processes change.

    systemd's protocol (sd_listen_fds(3)): LISTEN_FDS of them from descriptor 3 on, for the process LISTEN_PID. Raises
    OSError if one is no listening TCP socket.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    number = int(os.environ.get("LISTEN_FDS", "0"))
    found = [socket.socket(fileno=_FIRST_INHERITED + at) for at in range(number)]
    for listener in found:
        listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if not listens or listener.family not in (socket.AF_INET, socket.AF_INET6):
            raise OSError(errno.EINVAL, "a socket passed by LISTEN_FDS is no listening TCP socket")
        listener.set_inheritable(False)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def _accept_all(listener: socket.socket) -> Iterator[socket.socket]:
    """Connections that wait at a listener which does not block."""
    with suppress(BlockingIOError):
        while True:
            connection, _ = listener.accept()
            yield connection


class OrderlyServer(uvicorn.Server):
    """Ends in order: requests in flight are finished, and clients of those that cannot be get an error."""

    def __init__(self, app: Served, grace: float = _GRACE_SECONDS) -> None:
        super().__init__(settings(app))
        self.app = app
        self._grace = grace

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, and end at once at a second one."""
        self.force_exit = self.should_exit
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn's own closes connections on which a request may be coming in, and cuts off streams without a word."""
        self.app.drain()
        await self._until(lambda: False, self.app.server_settings.drain_delay)
        await self._stop_accepting(sockets or [])
        left = self.app.server_settings.drain
        for connection in self._connections():
            connection.end_after_response()
        await self._until(
            lambda: not any(connection.is_idle for connection in self._connections()), min(self._grace, left)
        )
        for connection in self._connections():
            connection.shutdown()
        await self._until(self._is_done, left)
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
        """Stop accepting, but serve what has been accepted or waits for that.

        asyncio makes a connection one turn of its loop later. A connection that waits in the listener would be reset
        with it, and a front end that has sent a POST there may not send it again.
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

    async def _until(self, is_so: Callable[[], bool], seconds: float) -> None:
        """Wait until it is so, for this long at most."""
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        while not is_so() and not self.force_exit and clock() < until:  # noqa: ASYNC110 - uvicorn tells nobody either
            await asyncio.sleep(_STEP_SECONDS)
