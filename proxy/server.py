"""Running the proxy as a process: the listening socket, the server's settings, and what is printed at the start."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator

import uvicorn
from rich.console import Console

from proxy.app import App, create_app
from proxy.config import Config
from proxy.config_models import DEFAULT

_DRAIN_SECONDS = 30
# Longer than clients keep idle connections, so that they close them and no request meets a closed one.
_KEEPALIVE_SECONDS = 75
_BACKLOG = 2048


def settings(app: App) -> uvicorn.Config:
    """The server's settings; httptools is named, since uvicorn falls back to a laxer parser without a word."""
    return uvicorn.Config(
        app,
        http="httptools",
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


def run(config: Config, listener: socket.socket, console: Console) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit code."""
    # uvicorn raises the signal it was ended by once more after the drain: SIGTERM is no failure then, nor is SIGINT.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _Server(config, console).run(sockets=[listener])
    except KeyboardInterrupt:
        return 0
    except SystemExit:  # raised by uvicorn where the app could not be opened, after the log said so
        return 1
    return 0


class _Server(uvicorn.Server):
    """Says where it listens as soon as it does."""

    def __init__(self, config: Config, console: Console) -> None:
        super().__init__(settings(create_app(config)))
        self._announced = config
        self._console = console

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            host, port, *_ = listener.getsockname()
            for line in announcement(self._announced, host, port):
                self._console.print(line, soft_wrap=True)


def announcement(config: Config, host: str, port: int) -> Iterator[str]:
    """What an operator wants to know first: the address, the line to paste and the policy in force."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - shown, not bound
    name, upstream = config.upstream_for(DEFAULT, "")
    policy_name = config.tenants[DEFAULT].policy
    policy = config.policies[policy_name]
    yield f"concertina listens on http://{address(host, port)}, upstream {name} ({upstream.base_url})"
    yield f"  export OPENAI_BASE_URL=http://{address(reachable, port)}/v1"
    yield (
        f"policy {policy_name}: mode {policy.mode}, compacts at {policy.compaction_threshold:.0%} of the usable window"
        f" down to {policy.target_ratio:.0%}, summarizer {policy.summarizer.model or 'the request’s own model'},"
        f" store {config.store.url.partition('://')[0]}"
    )


def address(host: str, port: int) -> str:
    """Host and port as a URL has them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
