"""Our own pages: health, metrics, and what operators see and erase under /admin."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route as Path

from proxy.admin.auth import Operators, error_page
from proxy.admin.page import ADMIN_POLICY, admin_page
from proxy.callers.tenants import Caller
from proxy.config.reloading import Reloader
from proxy.config.settings import DEFAULT
from proxy.engine.engine import Engine
from proxy.errors import InvalidRequestError, MethodNotAllowedError, NotFoundError, ProxyError, StoreUnavailableError
from proxy.records.index import Target
from proxy.server.served import Receive, Scope, Send
from proxy.stores import CircuitBreaker, StoreError
from proxy.upstream.active import Active

_T = TypeVar("_T")
SESSIONS_PATH = "/admin/api/sessions"
_NAMES = f"{SESSIONS_PATH}/"
_WELCOME = {
    "name": "concertina",
    "message": "A reverse proxy for OpenAI's and Anthropic's APIs. Point OpenAI's clients at this address followed by"
    " base_url, Anthropic's at this address alone.",
    "base_url": "/v1",
}


@dataclass(frozen=True, slots=True)
class Opened:
    """What is there while the app is open. openmetrics: None where several workers answer as one."""

    store: CircuitBreaker
    engine: Engine
    active: Callable[[], Active]
    reloader: Reloader
    exposition: Callable[[], Awaitable[bytes]]
    openmetrics: Callable[[], Awaitable[bytes]] | None


class Pages:
    """An ASGI application for the paths that are ours."""

    def __init__(
        self,
        opened: Callable[[], Opened | None],
        is_draining: Callable[[], bool],
        lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]],
    ) -> None:
        self._find = opened
        self._is_draining = is_draining
        self._operators = operators = Operators(lambda: self._opened.active().admin_token)
        self._overview = operators.only(self._links)
        self._app = Starlette(
            routes=[
                Path("/", _welcome),
                Path("/api/hello", _welcome),
                Path("/favicon.ico", _no_icon),
                Path("/livez", _alive),
                Path("/readyz", self._ready),
                Path("/metrics", operators.only(self._metrics, figures=True)),
                Path("/admin", self._admin),
                Path("/admin/api/models", operators.only(self._models, figures=True)),
                Path(SESSIONS_PATH, operators.only(self._sessions), methods=["GET", "DELETE"]),
                Path(_NAMES + "{name:path}", operators.only(self._erase), methods=["DELETE"]),
            ],
            exception_handlers={HTTPException: _refused, 500: _failed},
            lifespan=lifespan,
        )
        self._app.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pages are served under their own names alone, so that shutting those off shuts off all; a slash may
        follow them. Only a session's name may be encoded."""
        if scope["type"] == "http":
            written = scope["raw_path"].partition(b"?")[0].decode("latin-1")
            if not written.startswith(_NAMES) or written == _NAMES:
                scope = {**scope, "path": written[:-1] if len(written) > 1 and written.endswith("/") else written}
        await self._app(scope, receive, send)

    @property
    def _opened(self) -> Opened:
        opened = self._find()
        assert opened is not None  # noqa: S101 - pages are served once the lifespan has begun
        return opened

    async def _ready(self, _: Request) -> Response:
        """Ready as soon as requests can be served; a store that is down or a broken config does not change that."""
        opened = self._find()
        if opened is None:
            return JSONResponse({"status": "starting"}, status_code=503)
        if self._is_draining():
            return JSONResponse({"status": "draining"}, status_code=503)
        state: dict[str, object] = {"status": "ready", "store": "up" if opened.store.available else "down"}
        if opened.reloader.problems:
            state |= {"config": "failed", "problems": opened.reloader.problems}
        return JSONResponse(state)

    async def _admin(self, request: Request) -> Response:
        given = request.query_params.get("token")
        return await self._overview(request) if given is None else self._operators.enter(given)

    async def _metrics(self, request: Request) -> Response:
        opened = self._opened
        if opened.openmetrics is not None and "application/openmetrics-text" in request.headers.get("accept", ""):
            content = await opened.openmetrics()
            return Response(content, media_type="application/openmetrics-text; version=1.0.0; charset=utf-8")
        return Response(await opened.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _links(self, request: Request) -> Response:
        content = admin_page(request.scope["server"], self._opened.active().admin_token.file)
        return HTMLResponse(content, headers={"content-security-policy": ADMIN_POLICY})

    async def _models(self, _: Request) -> Response:
        router, windows = self._opened.active().router, self._opened.engine.windows
        known = [windows.sources(place, router.configured_window(place.model)) for place in windows.places()]
        return Response(msgspec.json.encode({"models": known}), media_type="application/json")

    async def _sessions(self, request: Request) -> Response:
        """A tenant's conversations of which something is stored: listed, or erased."""
        caller, sessions = self._tenant(request), self._opened.engine.sessions
        if request.method == "DELETE":
            if request.query_params.get("all") != "true":
                raise InvalidRequestError("Name the session in the path, or say ?all=true to erase all.", param="all")
            return await self._erased(caller, await _told(sessions.every(caller)))
        found = await _told(sessions.of(caller))
        return Response(msgspec.json.encode({"sessions": found}), media_type="application/json")

    async def _erase(self, request: Request) -> Response:
        """Erase the conversations of a tenant that this names: all with the label, or the one with the id."""
        caller = self._tenant(request)
        found = await _told(self._opened.engine.sessions.named(caller, request.path_params["name"]))
        if not found:
            raise NotFoundError("No session of this tenant has this label or id; GET /admin/api/sessions lists them.")
        return await self._erased(caller, found)

    async def _erased(self, caller: Caller, found: Sequence[Target]) -> Response:
        erased = await self._opened.engine.sessions.erase(caller, found)
        if erased < len(found):
            raise StoreUnavailableError("The store could not erase it; nothing is promised. Try again.")
        return JSONResponse({"erased": [target.id for target in found]})

    def _tenant(self, request: Request) -> Caller:
        name = request.query_params.get("tenant", DEFAULT)
        caller = self._opened.active().tenants.named(name)
        if caller is None:
            raise NotFoundError("No tenant has this name; say which by ?tenant=NAME.", param="tenant")
        return caller


async def _told(look: Awaitable[_T]) -> _T:
    """What the store says of its sessions; raises StoreUnavailableError where it says nothing."""
    try:
        return await look
    except StoreError:
        raise StoreUnavailableError(
            "The store could not say which sessions there are; none was erased. Try again."
        ) from None


async def _welcome(_: Request) -> Response:
    return JSONResponse(_WELCOME)


async def _no_icon(_: Request) -> Response:
    return Response(status_code=204)


async def _alive(_: Request) -> Response:
    return JSONResponse({"status": "alive"})


async def _refused(_: Request, error: Exception) -> Response:
    """What Starlette refuses by itself, in OpenAI's shape."""
    allowed = error.headers.get("Allow") if isinstance(error, HTTPException) and error.headers else None
    if allowed is not None:
        return error_page(MethodNotAllowedError(f"This page takes {allowed} only.", allowed))
    return error_page(NotFoundError("There is no such page; docs/operations.md names those that there are."))


async def _failed(_: Request, __: Exception) -> Response:
    return error_page(ProxyError("This page could not be made; the log says where it failed."))
