"""Servers for tests: any ASGI app or the whole proxy on a loopback port, over real sockets."""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import yaml

from proxy.config.loading import load
from proxy.demo.serving import serving as serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from proxy.config.loading import Config

__all__ = ["configured", "free_port", "proxy", "serve"]


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


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
