"""The proxy as an ASGI application for other servers.

Use `CONCERTINA_CONFIG=config.yaml uvicorn proxy.asgi:app`, hypercorn, or a path of another application
(`starlette.routing.Mount`).
"""

import asyncio
import os
from pathlib import Path

from proxy.app import App
from proxy.callers import store_secret
from proxy.config.loading import ConfigError, load
from proxy.config.reloading import source
from proxy.server.served import Event, Receive, Scope, Send
from proxy.sessions.stores import StoreError, check_file

_CONFIG = "CONCERTINA_CONFIG"
_OF_SERVER = (b"connection", b"transfer-encoding", b"keep-alive", b"date", b"server")


class Application:
    """The proxy in a server that is not its own.

    The server's lifespan opens it. Without a lifespan, as at a path of another application, the first request opens it
    until the event loop ends.
    """

    def __init__(self, proxy: App | None = None) -> None:
        """Create the application.

        proxy: by default one with the config of CONCERTINA_CONFIG or the built-in defaults. It is read when it is
        opened, so importing this module needs none. An invalid config or store keeps the server from starting. Without
        a lifespan it raises ConfigError or StoreError at the first request.
        """
        self._given = proxy
        self._app: App | None = None
        self._opening: _Opening | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request or the lifespan."""
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
            return
        app = self._app or await self._open_app()

        async def send_on(event: Event) -> None:
            await send(_without_server_headers(event))

        await app(scope, receive, send_on)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stay open while the server runs, or keep it from starting.

        An exception instead would make uvicorn serve without a lifespan, and every request would fail.
        """
        try:
            self._app = self._make_app()
        except (ConfigError, StoreError) as error:
            await receive()
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self._app = None

    def _make_app(self) -> App:
        if self._given is not None:
            return self._given
        path = Path(variable) if (variable := os.environ.get(_CONFIG)) else None
        file = source(path, os.environ)
        config = load(path, os.environ)
        store_secret.make(config)  # before the store is created, which would otherwise have no secret
        check_file(config.store.url, config.store.timeout)
        return App(config, source=file)

    async def _open_app(self) -> App:
        if self._opening is None or not self._opening.is_usable:
            self._opening = _Opening(self._make_app())
        await self._opening.wait()
        return self._opening.app


class _Opening:
    """An app that its own task keeps open until its event loop ends."""

    def __init__(self, app: App) -> None:
        self.app = app
        self._loop = asyncio.get_running_loop()
        self._is_open = self._loop.create_future()
        self._task = self._loop.create_task(self._stay())

    @property
    def is_usable(self) -> bool:
        return self._loop is asyncio.get_running_loop() and not self._task.done()

    async def wait(self) -> None:
        """Return when it is open. Raises the error of opening it."""
        await asyncio.wait((self._task, self._is_open), return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            self._task.result()

    async def _stay(self) -> None:
        async with self.app.open():
            self._is_open.set_result(None)
            await self._loop.create_future()


def _without_server_headers(event: Event) -> Event:
    """Drop headers that the server adds itself, or that HTTP/2 forbids (RFC 9113, section 8.2.2)."""
    if event["type"] != "http.response.start":
        return event
    return {**event, "headers": [header for header in event.get("headers", ()) if header[0] not in _OF_SERVER]}


app = Application()
