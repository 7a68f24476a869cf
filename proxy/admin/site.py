"""The proxy's own pages: an ASGI application for health, metrics and everything under /admin."""

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route as Path

from proxy.admin import rendering
from proxy.admin.access import Access, Visitor
from proxy.admin.api import GeneralEndpoints
from proxy.admin.context import AdminContext
from proxy.admin.endpoints import API, ENDPOINTS, METRICS, PAGES, READY
from proxy.admin.guard import Guard, error_page, error_response, with_protection
from proxy.admin.health import levels_of, newest_health
from proxy.admin.pages import HtmlPages, StatusPages
from proxy.admin.roles import FIGURES
from proxy.admin.routing import api_routes, handlers_of, page_routes
from proxy.admin.sessions.endpoints import SessionEndpoints
from proxy.admin.sessions.pages import SessionPages
from proxy.admin.trials.endpoints import TrialEndpoints
from proxy.admin.trials.explaining import Explaining
from proxy.admin.trials.pages import TrialPages
from proxy.errors import MethodNotAllowedError, NotFoundError, ProxyError
from proxy.server.served import Receive, Scope, Send
from proxy.sessions.stores.breaker import for_page

_NAMES = f"{API}sessions/"
_WELCOME = {
    "name": "concertina",
    "message": "A reverse proxy for OpenAI's and Anthropic's APIs. Point OpenAI's clients at this address followed by"
    " base_url, Anthropic's at this address alone.",
    "base_url": "/v1",
}


class AdminSite:
    """The ASGI application for the proxy's own paths."""

    def __init__(
        self,
        context: Callable[[], AdminContext | None],
        is_draining: Callable[[], bool],
        lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]],
    ) -> None:
        """Create the site. `context` returns None before the lifespan has begun."""
        self._find = context
        self._is_draining = is_draining
        self.access = Access(lambda: self._context.config, lambda: self._context.active().admin_token)

        def opened() -> AdminContext:
            return self._context

        guard = Guard(self.access, lambda: opened().config.server.admin)
        explaining = Explaining(opened, self.access)
        endpoints = (GeneralEndpoints(opened), SessionEndpoints(opened, self.access), TrialEndpoints(explaining))
        sessions, trials = SessionPages(opened, self.access), TrialPages(opened, explaining)
        pages = handlers_of(PAGES, (HtmlPages(opened), StatusPages(opened), sessions, trials))
        self.handlers = handlers_of(ENDPOINTS, endpoints)
        self._app = Starlette(
            routes=[
                Path("/", _welcome),
                Path("/api/hello", _welcome),
                Path("/favicon.ico", _no_icon),
                Path("/livez", _alive),
                Path(READY, self._ready),
                Path(METRICS, self._metrics),
                *page_routes(guard, pages),
                *api_routes(guard, self.handlers),
            ],
            exception_handlers={HTTPException: _error_page, 500: _fault_page},
            lifespan=lifespan,
        )
        self._app.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a page under its exact name, with an optional slash at the end.

        Only a session's name may be encoded. So a front end that blocks /admin blocks every page.
        """
        if scope["type"] == "http":
            written = scope["raw_path"].partition(b"?")[0].decode("latin-1")
            if not written.startswith(_NAMES) or written == _NAMES:
                is_longer = len(written) > 1 and written.endswith("/")
                scope = {**scope, "path": written[:-1] if is_longer else written}
        await self._app(scope, receive, send)

    @property
    def _context(self) -> AdminContext:
        context = self._find()
        assert context is not None  # noqa: S101 - pages are served after the lifespan has begun
        return context

    async def _ready(self, request: Request) -> Response:
        """Return 200 when requests can be served. A failed store or a broken config does not change that.

        `?verbose` adds the health of each part, without names, since the endpoint is public.
        """
        context = self._find()
        if context is None:
            return JSONResponse({"status": "starting"}, status_code=503)
        if self._is_draining():
            return JSONResponse({"status": "draining"}, status_code=503)
        state: dict[str, object] = {"status": "ready", "store": "up" if context.store.available else "down"}
        if context.reloader.problems:
            state |= {"config": "failed", "problems": context.reloader.problems}
        if "verbose" in request.query_params:
            with for_page():
                health = await newest_health(context, Visitor("nobody"), time.time())
            state |= {"health": health.level, "parts": levels_of(health)}
        return JSONResponse(state)

    async def _metrics(self, request: Request) -> Response:
        """Return the metrics for Prometheus. server.admin does not turn them off."""
        await self.access.slow_down(request)
        try:
            self.access.visitor(request, FIGURES)
        except ProxyError as error:
            return with_protection(error_page(error))
        context = self._context
        if context.openmetrics is not None and "application/openmetrics-text" in request.headers.get("accept", ""):
            content = await context.openmetrics()
            kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"
        else:
            content, kind = await context.exposition(), "text/plain; version=0.0.4; charset=utf-8"
        return with_protection(Response(content, media_type=kind))


async def _welcome(request: Request) -> Response:
    if request.url.path == "/" and rendering.wants_html(request):
        return RedirectResponse("./admin/", 303)
    return JSONResponse(_WELCOME)


async def _no_icon(_: Request) -> Response:
    return Response(status_code=204)


async def _alive(_: Request) -> Response:
    return JSONResponse({"status": "alive"})


async def _error_page(request: Request, error: Exception) -> Response:
    """Return the page for an error of Starlette."""
    allowed = error.headers.get("Allow") if isinstance(error, HTTPException) and error.headers else None
    if allowed is not None:
        return with_protection(
            await error_response(request, MethodNotAllowedError(f"This page supports only {allowed}.", allowed))
        )
    missing = NotFoundError("Page not found. docs/observability.md lists all pages.")
    return with_protection(await error_response(request, missing))


async def _fault_page(request: Request, _: Exception) -> Response:
    error = ProxyError("This page failed; see the log.")
    return with_protection(await error_response(request, error))
