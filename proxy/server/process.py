"""Running the proxy as a process: the listening socket, the server's settings, and what is printed at the start."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn
from rich.console import Console

from proxy.app import App, create_app
from proxy.callers.admin_token import AdminToken
from proxy.config.loading import Config
from proxy.config.reloading import Source
from proxy.config.settings import DEFAULT
from proxy.runtime import descriptors
from proxy.server.addresses import address, reachable
from proxy.server.protocol import Guard

# Where this class's own shutdown is not used.
_DRAIN_SECONDS = 30
# When the process ends: for requests that are on their way on connections that look idle, and for last words.
_GRACE_SECONDS = 1.0
_LAST_SECONDS = 5.0
_STEP_SECONDS = 0.02
# Longer than clients keep idle connections, so that they close them and no request meets a closed one.
_KEEPALIVE_SECONDS = 75
_BACKLOG = 2048
_FIRST_INHERITED = 3
_SWITCH_SECONDS = 0.0005
# Objects in each generation before it is looked through: far more than one request makes, so that none waits for many
# collections in a row. What is in no cycle, nearly everything here, is freed at once anyway.
_GARBAGE_THRESHOLDS = (20_000, 20, 20)


def settings(app: App) -> uvicorn.Config:
    """The server's settings; the protocol is named, since uvicorn falls back to a laxer parser without a word."""
    return uvicorn.Config(
        app,
        http=Guard,
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=_KEEPALIVE_SECONDS,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
        backlog=_BACKLOG,
    )


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; raises OSError where the address is taken or not ours.

    asyncio turns Nagle's algorithm off only on sockets it made itself: without this every answer waits 40 ms for the
    client's delayed acknowledgement.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), backlog=_BACKLOG, family=family)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def inherited() -> list[socket.socket]:
    """The listening sockets that a supervisor passes, which keep new connections while processes come and go.

    systemd's protocol (sd_listen_fds(3)): LISTEN_FDS of them from descriptor 3 on, for the process LISTEN_PID. Raises
    OSError where one is no listening TCP socket.
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


def run(
    config: Config, name: str, listeners: list[socket.socket], console: Console, source: Source | None = None
) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit code.

    `name` is what the config is called, and `source` what SIGHUP and a change of it read again.
    """
    descriptors.raise_limit()
    # uvicorn raises the signal it was ended by once more after the drain: SIGTERM is no failure then, nor is SIGINT.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _Process(config, name, console, source).run(sockets=listeners)
    except KeyboardInterrupt:
        return 0
    except SystemExit:  # raised by uvicorn where the app could not be opened, after the log said so
        return 1
    return 0


class Server(uvicorn.Server):
    """Ends in order: what is under way is finished, and what cannot be is told so."""

    def __init__(self, app: App, grace: float = _GRACE_SECONDS) -> None:
        super().__init__(settings(app))
        self.app = app
        self._grace = grace

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, a second one ends at once."""
        self.force_exit = self.should_exit
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn's own closes connections on which a request may be coming in, and cuts off streams without a word."""
        left = self.app.drain()
        await self._stop_accepting(sockets or [])
        for guard in self._guards():
            guard.end_after_answer()
        await self._until(lambda: not any(guard.is_idle for guard in self._guards()), min(self._grace, left))
        for guard in self._guards():
            guard.shutdown()
        await self._until(self._is_done, left)
        self.app.break_off()
        await self._until(self._is_done, _LAST_SECONDS)
        for guard in self._guards():
            guard.transport.abort()
        for task in self.server_state.tasks:
            task.cancel()
        if not self.force_exit:
            await self.lifespan.shutdown()

    async def _stop_accepting(self, sockets: list[socket.socket]) -> None:
        """What was accepted in this moment is served: asyncio makes a connection of it one turn of its loop later."""
        for listener in sockets:
            asyncio.get_running_loop().remove_reader(listener)
        await asyncio.sleep(0)
        for server in self.servers:
            server.close()
        for listener in sockets:
            listener.close()

    def _guards(self) -> list[Guard]:
        return [connection for connection in self.server_state.connections if isinstance(connection, Guard)]

    def _is_done(self) -> bool:
        return not self.server_state.connections and not self.server_state.tasks

    async def _until(self, is_so: Callable[[], bool], seconds: float) -> None:
        """Wait until it is so, for this long at most."""
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        while not is_so() and not self.force_exit and clock() < until:  # noqa: ASYNC110 - uvicorn tells nobody either
            await asyncio.sleep(_STEP_SECONDS)


class _Process(Server):
    """Says where it listens as soon as it does, and has the config read again by SIGHUP."""

    def __init__(self, config: Config, name: str, console: Console, source: Source | None) -> None:
        super().__init__(create_app(config, source))
        self._announced = config
        self._name = name
        self._console = console

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Before anything takes its time: the default is to end the process.
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.app.reload)
        await super().startup(sockets)
        # What was loaded stays, and need not be looked through for garbage again: that holds up every request.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GARBAGE_THRESHOLDS)
        # The workers' counting gives way to the event loop sooner than after 5 ms.
        sys.setswitchinterval(_SWITCH_SECONDS)
        for listener in sockets or ():
            host, port, *_ = listener.getsockname()
            for line in announcement(self._announced, host, port):
                self._console.print(line, soft_wrap=True)
            if self.app.admin_token is not None:
                is_private = self._console.file.isatty()
                self._console.print(admin_line(self.app.admin_token, host, port, is_private=is_private), soft_wrap=True)
        self._console.print(f"config {self._name}", soft_wrap=True)


def announcement(config: Config, host: str, port: int) -> Iterator[str]:
    """What an operator wants to know first: the address, the line to paste and the policy in force."""
    name, upstream = config.upstream_for(DEFAULT, "")
    policy_name = config.tenants[DEFAULT].policy
    policy = config.policies[policy_name]
    yield f"concertina listens on http://{address(host, port)}, upstream {name} ({upstream.base_url})"
    yield f"  export OPENAI_BASE_URL=http://{reachable(host, port)}/v1"
    yield (
        f"policy {policy_name}: mode {policy.mode}, compacts at {policy.compaction_threshold:.0%} of the usable window"
        f" down to {policy.target_ratio:.0%}, summarizer {policy.summarizer.model or 'the request’s own model'},"
        f" store {config.store.url.partition('://')[0]}"
    )


def admin_line(token: AdminToken, host: str, port: int, *, is_private: bool) -> str:
    """How an operator opens /admin; a token that was made is shown where the output is private, as on a terminal."""
    pages = f"admin pages http://{reachable(host, port)}/admin/"
    if token.is_configured:
        return f"{pages}, with server.admin_token"
    if is_private:
        return f"{pages}?token={token.value}"
    return f"{pages}, with the token in {token.file}" if token.file else f"{pages}, once server.admin_token is set"
