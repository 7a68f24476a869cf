"""The composition root: opens everything in order, closes it in reverse, and says which path goes where."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import resources

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as Path

from policies.prompting import Prompts
from proxy.checkpoints import Checkpoints
from proxy.compactor import Compactor
from proxy.config import Config
from proxy.drafts import Drafter
from proxy.errors import ProxyError
from proxy.exchange import ClientGoneError, Exchange, Receive, Scope, Send
from proxy.gateway import Active, Gateway
from proxy.log import Log, open_log
from proxy.models import ModelTable, Windows
from proxy.reader import RequestReader
from proxy.routes import Router
from proxy.spending import Spending
from proxy.stores import GuardedStore, Sealer, open_store
from proxy.tenants import Tenants
from proxy.tokenizer import DEFAULT_ENCODING, Tokenizer
from proxy.upstream.client import TruncatedError, UpstreamClient
from proxy.upstream.summarizer import Summarizer

CHAT_PATHS = frozenset({"/v1/chat/completions", "/chat/completions"})
OWN_PATHS = frozenset({"/livez", "/readyz"})
_WORKERS = 2


class App:
    """The ASGI application. Chat and relayed requests go straight to the gateway; our own pages through Starlette."""

    def __init__(self, config: Config, log: Log | None = None) -> None:
        self._config = config
        self._log = log or open_log(config.logging.level, time.time)
        self._gateway: Gateway | None = None
        self._store: GuardedStore | None = None
        self._pages = Starlette(
            routes=[Path("/livez", _alive), Path("/readyz", self._ready)], lifespan=lambda _: self._open()
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OWN_PATHS or self._gateway is None:
            await self._pages(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send)
        is_chat = exchange.method == "POST" and exchange.path in CHAT_PATHS
        try:
            await (self._gateway.chat(exchange) if is_chat else self._gateway.passthrough(exchange))
        except ProxyError as error:
            self._log.info("refused", status=error.status, code=error.code)
            if not exchange.started:
                await exchange.refuse(error, [])
        except ClientGoneError:
            self._log.info("client_gone", status=exchange.status)
        except TruncatedError:
            # Returning without ending the answer makes the server close the connection, as the upstream did.
            self._log.warning("upstream_truncated", status=exchange.status)

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
            client = await opened.enter_async_context(UpstreamClient())
            tokenizer, table = Tokenizer(), ModelTable()
            await asyncio.to_thread(tokenizer.warm, DEFAULT_ENCODING)
            await asyncio.to_thread(table.load)
            windows = Windows(table)
            checkpoints = Checkpoints(store, Sealer(config.store.encryption_key_bytes), config.store.ttl)
            compactor = Compactor(
                checkpoints,
                Summarizer(client, time.monotonic),
                tokenizer,
                read_prompts(),
                windows,
                Spending(time.time),
                workers,
                time.time,
                time.monotonic,
            )
            self._store = store
            self._gateway = Gateway(
                activate(config, windows, tokenizer),
                RequestReader(tokenizer, workers),
                Drafter(checkpoints, compactor, tokenizer, workers),
                windows,
                client,
                self._log,
            )
            yield
            self._gateway = None

    def _told(self, available: bool, reason: str) -> None:
        (self._log.info if available else self._log.warning)("store_up" if available else "store_down", reason=reason)

    async def _ready(self, _: Request) -> Response:
        """Ready as soon as requests can be served; a store that is down does not change that."""
        if self._gateway is None or self._store is None:
            return JSONResponse({"status": "starting"}, status_code=503)
        return JSONResponse({"status": "ready", "store": "up" if self._store.available else "down"})


async def _alive(_: Request) -> Response:
    return JSONResponse({"status": "alive"})


def activate(config: Config, windows: Windows, tokenizer: Tokenizer) -> Active:
    """What the gateway needs of a config, as one value."""
    router = Router(config, windows, tokenizer, time.monotonic)
    return Active(Tenants(config), router, config.server.max_body_bytes)


def read_prompts() -> Prompts:
    """The summarizer's prompts, as shipped."""
    folder = resources.files("policies") / "prompts"
    read = {name: (folder / f"{name}.md").read_text("utf-8") for name in ("summarize", "merge", "reminder")}
    return Prompts(**read)


def create_app(config: Config) -> App:
    return App(config)
