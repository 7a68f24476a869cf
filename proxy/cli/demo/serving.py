"""A server in the running event loop, started and stopped by its user, without signal handlers."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Literal

import uvicorn

from proxy.runtime.deadlines import within
from proxy.server.process import listen
from proxy.server.protocol import HttpProtocol

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator

    from starlette.types import ASGIApp

_HOST = "127.0.0.1"
_GRACE = 2
_STEP_SECONDS = 0.001


class _LoopServer(uvicorn.Server):
    """A server that stops when nothing is in flight.

    uvicorn's own polls ten times a second, and always waits once.
    """

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listening in (*self.servers, *(sockets or ())):
            listening.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        with suppress(TimeoutError):
            async with within(_GRACE):
                while state.connections or state.tasks:  # noqa: ASYNC110 - uvicorn has no event for it
                    await asyncio.sleep(_STEP_SECONDS)
        for task in state.tasks:
            task.cancel()
        await self.lifespan.shutdown()


@asynccontextmanager
async def serving(app: ASGIApp, *, port: int = 0, lifespan: Literal["on", "off"] = "off") -> AsyncIterator[str]:
    """Serve the app on the loopback interface and yield its address. Port 0 is any free port.

    At the end, requests in flight have two seconds. Raises OSError if the port is taken.
    """
    config = uvicorn.Config(
        app,
        http=HttpProtocol,
        ws="none",
        lifespan=lifespan,
        access_log=False,
        proxy_headers=False,
        log_config=None,
    )
    config.load()
    server = _LoopServer(config)
    server.lifespan = config.lifespan_class(config)
    listener = listen(_HOST, port)
    address = f"http://{_HOST}:{listener.getsockname()[1]}"
    # Its `serve` would install signal handlers and poll for the end ten times a second.
    await server.startup([listener])
    try:
        yield address
    finally:
        await server.shutdown([listener])
