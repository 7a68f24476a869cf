"""The proxy as an ASGI application: `CONCERTINA_CONFIG=config.yaml uvicorn proxy.asgi:app`, hypercorn, or below a path
of another application (`starlette.routing.Mount`)."""

import asyncio
import os
from pathlib import Path

from proxy.app import App
from proxy.callers import store_secret
from proxy.config.loading import ConfigError, load
from proxy.config.reloading import source
from proxy.server.asgi_exchange import AsgiExchange, head_of
from proxy.server.head import RequestHead
from proxy.server.served import Receive, Scope, Send
from proxy.stores import StoreError, check_file

_CONFIG = "CONCERTINA_CONFIG"


class Application:
    """Requests of conversations and relayed ones become exchanges, all others go to the proxy's own pages.

    Opened by the server's lifespan. Where none comes, as below a path of another application, the first request opens
    it for as long as the event loop runs.
    """

    def __init__(self, proxy: App | None = None) -> None:
        """`proxy`: else one of the config that CONCERTINA_CONFIG names, else of the built-in defaults, read when it is
        opened: importing this module needs none. A faulty one, or its store, keeps the server from starting; where
        no lifespan comes, it raises ConfigError or StoreError then."""
        self._given = proxy
        self._app: App | None = None
        self._opening: _Opening | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
            return
        app = self._app or await self._open_app()
        head = head_of(app, scope) if scope["type"] == "http" else None
        if head is not None and app.answers(head):
            await _carry_exchange(app, head, receive, send)
        else:
            await app(scope, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Be open for as long as the server lives, or keep it from starting: if this raised instead, uvicorn would
        serve without a lifespan, and every request be a fault."""
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
        path = Path(named) if (named := os.environ.get(_CONFIG)) else None
        file = source(path, os.environ)
        config = load(path, os.environ)
        store_secret.make(config)  # before there is a store, which would be one without it
        check_file(config.store.url, config.store.timeout)
        return App(config, source=file)

    async def _open_app(self) -> App:
        if self._opening is None or not self._opening.is_usable:
            self._opening = _Opening(self._make_app())
        await self._opening.wait()
        return self._opening.app


class _Opening:
    """An app that is opened by a task of its own, which stays in it until its event loop ends."""

    def __init__(self, app: App) -> None:
        self.app = app
        self._loop = asyncio.get_running_loop()
        self._is_open = self._loop.create_future()
        self._task = self._loop.create_task(self._stay())

    @property
    def is_usable(self) -> bool:
        return self._loop is asyncio.get_running_loop() and not self._task.done()

    async def wait(self) -> None:
        """Return when it is open; raises what kept it from that."""
        await asyncio.wait((self._task, self._is_open), return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            self._task.result()

    async def _stay(self) -> None:
        async with self.app.open():
            self._is_open.set_result(None)
            await self._loop.create_future()


async def _carry_exchange(app: App, head: RequestHead, receive: Receive, send: Send) -> None:
    """An exchange from its first event to its last. One that is not completed is left to the server, which breaks the
    connection off, as the upstream did."""
    exchange = AsgiExchange(head, app.error_shape(head))
    exchange.task = asyncio.current_task()
    receiving = asyncio.create_task(exchange.receive_all(receive))
    sending = asyncio.create_task(exchange.send_all(send))
    try:
        await app.answer(exchange)
        exchange.finish()
        await sending
    finally:
        receiving.cancel()
        sending.cancel()


app = Application()
