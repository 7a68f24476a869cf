"""Running the proxy as a process: the listening socket, the server's settings, and what is printed at the start."""

from __future__ import annotations

import socket

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


def run(config: Config, host: str, port: int, console: Console) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit code."""
    try:
        listener = listen(host, port)
    except OSError as error:
        console.print(f"cannot listen on {host}:{port}: {error.strerror}; choose another with --port or server.port")
        return 1
    _announce(config, host, listener.getsockname()[1], console)
    server = uvicorn.Server(settings(create_app(config)))
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        return 0
    return 0 if server.started else 1


def _announce(config: Config, host: str, port: int, console: Console) -> None:
    shown = f"[{host}]" if ":" in host else host
    reachable = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(shown, shown)  # noqa: S104 - shown, not bound
    name, upstream = config.upstream_for(DEFAULT, "")
    policy_name = config.tenants[DEFAULT].policy
    policy = config.policies[policy_name]
    console.print(f"concertina listens on http://{shown}:{port}, upstream {name} ({upstream.base_url})")
    console.print(f"  export OPENAI_BASE_URL=http://{reachable}:{port}/v1", soft_wrap=True)
    console.print(
        f"policy {policy_name}: mode {policy.mode}, compacts at {policy.compaction_threshold:.0%} of the usable window"
        f" down to {policy.target_ratio:.0%}, summarizer {policy.summarizer.model or 'the request’s own model'},"
        f" store {config.store.url.partition('://')[0]}",
        soft_wrap=True,
    )
