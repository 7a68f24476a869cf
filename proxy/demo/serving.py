"""A server in the running event loop: started and stopped by the code that needs it, signals left alone."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Literal

import uvicorn

from proxy.server.process import listen
from proxy.server.protocol import ClientConnection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import ASGIApp

_HOST = "127.0.0.1"
_GRACE = 2


@asynccontextmanager
async def serving(app: ASGIApp, *, port: int = 0, lifespan: Literal["on", "off"] = "off") -> AsyncIterator[str]:
    """The address at which the app is served on the loopback interface; port 0 takes any that is free.

    What it still does at the end is given two seconds. Raises OSError where the port is taken.
    """
    config = uvicorn.Config(
        app,
        http=ClientConnection,
        ws="none",
        lifespan=lifespan,
        access_log=False,
        proxy_headers=False,
        log_config=None,
        timeout_graceful_shutdown=_GRACE,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    listener = listen(_HOST, port)
    address = f"http://{_HOST}:{listener.getsockname()[1]}"
    # Its `serve` would install signal handlers and poll for the end ten times a second.
    await server.startup([listener])
    try:
        yield address
    finally:
        await server.shutdown([listener])
