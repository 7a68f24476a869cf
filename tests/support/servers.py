"""Servers for tests: any ASGI app or the whole proxy on a loopback port, over real sockets."""

from __future__ import annotations

import socket
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import yaml

from proxy.cli.demo.serving import serving as serve
from proxy.config.loading import load

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from proxy.config.loading import Config

__all__ = ["configured", "proxy", "reserve_port", "serve"]


@asynccontextmanager
async def proxy(config: Config, *, port: int = 0) -> AsyncIterator[str]:
    """The address of the whole proxy."""
    from proxy.app import App

    async with serve(App(config), port=port, lifespan="on") as address:
        yield address


def configured(directory: Path, settings: Mapping[str, object], env: Mapping[str, str] | None = None) -> Config:
    """The config that a file with these settings makes."""
    file = directory / "config.yaml"
    file.write_text(yaml.safe_dump(dict(settings)), encoding="utf-8")
    return load(file, env or {})


def reserve_port() -> int:
    """Return a port that refuses connections until a server of this test binds it.

    A socket stays bound to it until this process ends, so the system gives it to no other socket. Servers can bind
    it all the same: they set SO_REUSEADDR, and the socket that holds it does not listen.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    port: int = holder.getsockname()[1]
    if sys.platform == "linux":
        holder.detach()
    else:  # a bound port is refused to servers as well
        holder.close()
    return port
