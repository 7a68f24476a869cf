"""The composition root: opens everything in order, closes it in reverse, and says which path goes where."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as Path

from proxy.background import Background
from proxy.config import Config
from proxy.config_models import DEFAULT, Server
from proxy.deadlines import repeated
from proxy.engine import Engine, open_engine
from proxy.erasures import LOOK_EVERY
from proxy.errors import EndedError, NotFoundError, ProxyError, ShuttingDownError, StoreUnavailableError
from proxy.exchange import ClientGoneError, Exchange, Receive, Scope, Send
from proxy.gateway import Gateway
from proxy.incoming import Active
from proxy.log import Log, open_log
from proxy.operators import for_operators
from proxy.reloading import SECONDS, Reloader, Source
from proxy.rim import Rim
from proxy.stores import GuardedStore, open_store
from proxy.tenants import Caller, Tenants
from proxy.upstream.asker import WindowAsker
from proxy.upstream.client import TruncatedError, UpstreamClient

CHAT_PATHS = frozenset({"/v1/chat/completions", "/chat/completions"})
EXPLAIN_PATHS = frozenset({"/v1/compaction/explain", "/compaction/explain"})
OWN_PATHS = frozenset({"/livez", "/readyz", "/metrics", "/admin/api/models"})
SESSIONS_PATH = "/admin/api/sessions"
_WORKERS = 2
# For work that goes on in the background, once the last request has ended.
_DRAIN_SECONDS = 10.0


class App:
    """The ASGI application. Chat and relayed requests go straight to the gateway; our own pages through Starlette."""

    def __init__(
        self, config: Config, log: Log | None = None, source: Source | None = None, look_every: float = SECONDS
    ) -> None:
        """`source` is looked at every `look_every` seconds, and taken where it has changed."""
        self._config = config
        self._source = source
        self._look_every = look_every
        self._log = log or open_log(config.logging.level, time.time)
        self.reloader: Reloader | None = None
        self.is_draining = False
        self._open_requests: set[Exchange] = set()
        self._gateway: Gateway | None = None
        self._store: GuardedStore | None = None
        self._engine: Engine | None = None
        self._pages = Starlette(
            routes=[
                Path("/livez", _alive),
                Path("/readyz", self._ready),
                Path("/metrics", for_operators(self._admin_token, self._metrics)),
                Path("/admin/api/models", for_operators(self._admin_token, self._models)),
                Path(SESSIONS_PATH, for_operators(self._admin_token, self._sessions)),
                Path(
                    SESSIONS_PATH + "/{name:path}",
                    for_operators(self._admin_token, self._erase),
                    methods=["DELETE"],
                ),
            ],
            lifespan=lambda _: self._open(),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _is_ours(scope["path"]) or self._gateway is None:
            await self._pages(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send)
        gateway = self._gateway
        self._open_requests.add(exchange)
        try:
            if exchange.path in EXPLAIN_PATHS:
                await gateway.explain(exchange)
            elif exchange.path in CHAT_PATHS and exchange.method == "POST":
                await gateway.chat(exchange)
            else:
                await gateway.passthrough(exchange)
        except EndedError as error:
            await exchange.break_off(error)
        except ProxyError as error:
            await exchange.refuse(error)
        except (ClientGoneError, TruncatedError):
            # Returning without ending the answer makes the server close the connection, as the upstream did.
            return
        finally:
            self._open_requests.remove(exchange)

    @property
    def server_settings(self) -> Server:
        """Of the config in force."""
        return self._config.server

    def drain(self) -> float:
        """Be no longer ready, since the process is about to end; returns the seconds that open requests have left."""
        self.is_draining = True
        return self._config.server.drain

    def break_off(self) -> None:
        """End every open request now, each with an error its client can read."""
        for exchange in self._open_requests:
            exchange.end(ShuttingDownError())

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        config = self._config
        async with AsyncExitStack() as opened:
            workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="concertina")
            opened.callback(workers.shutdown, wait=False, cancel_futures=True)
            store = GuardedStore(
                open_store(config.store.url, config.store.timeout), time.monotonic, on_change=self._told
            )
            opened.push_async_callback(store.close)
            client = await opened.enter_async_context(UpstreamClient(config.upstreams))
            background = Background(self._log)
            opened.push_async_callback(background.drain, _DRAIN_SECONDS)
            engine = await open_engine(config, store, client, workers, self._log)
            self._store = store
            self._engine = engine
            self._gateway = Gateway(
                activate(config, engine),
                engine.reader,
                engine.drafter,
                engine.ahead,
                engine.explainer,
                engine.sessions,
                engine.windows,
                WindowAsker(client, engine.windows, time.monotonic),
                client,
                background,
                self._log,
            )
            self.reloader = Reloader(self._source, config, self._swap, engine.metrics, self._log)
            watching = asyncio.create_task(self.reloader.watch(self._look_every))
            opened.callback(watching.cancel)
            rim = Rim(self._log)
            await opened.enter_async_context(
                repeated(lambda: rim.shield(engine.erasures.look_after(), None), LOOK_EVERY)
            )
            yield
            self._gateway = None

    def reload(self) -> None:
        """Have the config read again; before the app is open there is nothing newer to read."""
        if self.reloader is not None:
            self.reloader.ask()

    def _swap(self, config: Config) -> None:
        """Put a config in force for the requests to come; those under way keep what they began with."""
        assert self._engine is not None  # noqa: S101 - opened before there is anything to swap
        assert self._gateway is not None  # noqa: S101 - as above
        self._gateway.active = activate(config, self._engine)
        self._config = config
        self._log.set_level(config.logging.level)

    def _admin_token(self) -> str:
        """In force now."""
        return self._config.server.admin_token.get_secret_value()

    def _told(self, available: bool, reason: str) -> None:
        (self._log.info if available else self._log.warning)("store_up" if available else "store_down", reason=reason)

    async def _ready(self, _: Request) -> Response:
        """Ready as soon as requests can be served; a store that is down or a broken config does not change that."""
        if self._gateway is None or self._store is None:
            return JSONResponse({"status": "starting"}, status_code=503)
        if self.is_draining:
            return JSONResponse({"status": "draining"}, status_code=503)
        state: dict[str, object] = {"status": "ready", "store": "up" if self._store.available else "down"}
        if self.reloader is not None and self.reloader.problems:
            state |= {"config": "failed", "problems": self.reloader.problems}
        return JSONResponse(state)

    async def _metrics(self, _: Request) -> Response:
        assert self._engine is not None  # noqa: S101 - pages are served once the lifespan has begun
        return Response(self._engine.metrics.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _models(self, _: Request) -> Response:
        assert self._engine is not None  # noqa: S101 - as above
        assert self._gateway is not None  # noqa: S101 - as above
        router, windows = self._gateway.active.router, self._engine.windows
        known = [windows.sources(place, router.configured_window(place.model)) for place in windows.places()]
        return Response(msgspec.json.encode({"models": known}), media_type="application/json")

    async def _sessions(self, request: Request) -> Response:
        """A tenant's conversations of which something is stored."""
        assert self._engine is not None  # noqa: S101 - as above
        found = await self._engine.sessions.of(self._tenant(request).index)
        return Response(msgspec.json.encode({"sessions": found}), media_type="application/json")

    async def _erase(self, request: Request) -> Response:
        """Erase the conversations of a tenant that this names: all with the label, or the one with the id."""
        assert self._engine is not None  # noqa: S101 - as above
        sessions, index, name = self._engine.sessions, self._tenant(request).index, request.path_params["name"]
        found = await sessions.named(index, name)
        if not found:
            raise NotFoundError("No session of this tenant has this label or id; GET /admin/api/sessions lists them.")
        erased = await sessions.erase(index, found)
        if erased < len(found):
            raise StoreUnavailableError("The store could not erase it; nothing is promised. Try again.")
        return JSONResponse({"erased": [session.id for session in found]})

    def _tenant(self, request: Request) -> Caller:
        assert self._gateway is not None  # noqa: S101 - as above
        name = request.query_params.get("tenant", DEFAULT)
        caller = self._gateway.active.tenants.named(name)
        if caller is None:
            raise NotFoundError("No tenant has this name; say which by ?tenant=NAME.", param="tenant")
        return caller


def _is_ours(path: str) -> bool:
    return path in OWN_PATHS or path == SESSIONS_PATH or path.startswith(f"{SESSIONS_PATH}/")


async def _alive(_: Request) -> Response:
    return JSONResponse({"status": "alive"})


def activate(config: Config, engine: Engine) -> Active:
    """What the gateway needs of a config, as one value."""
    return Active(Tenants(config), engine.router(config), config.server)


def create_app(config: Config, source: Source | None = None) -> App:
    return App(config, source=source)
