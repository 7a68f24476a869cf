"""The pages on how the proxy is set up."""

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route as Path

from proxy.admin import rendering, setup
from proxy.admin.access import EVERYBODY, FIGURES, OPERATORS, Visitor
from proxy.admin.entrance import form_of
from proxy.admin.frame import Frame
from proxy.admin.guard import ADMIN, Guard
from proxy.admin.looking import forget_learned, models_of, probe_store, replicas_of, store_view, tenant_view, tenants_of
from proxy.admin.opened import Opened


class SetupPages:
    """Models, tenants, store and config, each with its template."""

    def __init__(self, opened: Callable[[], Opened], guard: Guard) -> None:
        self._find = opened
        self._guard = guard
        self._frame = Frame(opened)

    def routes(self) -> list[Path]:
        only = self._guard.only
        return [
            Path(f"{ADMIN}models", only(self._models, FIGURES)),
            Path(f"{ADMIN}models/forget", only(self._forget, OPERATORS), methods=["POST"]),
            Path(f"{ADMIN}tenants", only(self._tenants, EVERYBODY)),
            Path(f"{ADMIN}tenants/{{tenant}}", only(self._tenant, EVERYBODY)),
            Path(f"{ADMIN}store", only(self._store, FIGURES)),
            Path(f"{ADMIN}store/probe", only(self._probe, OPERATORS), methods=["POST"]),
            Path(f"{ADMIN}replicas", only(self._replicas, FIGURES)),
            Path(f"{ADMIN}config", only(self._config, FIGURES)),
        ]

    async def _models(self, request: Request, visitor: Visitor) -> Response:
        return await self._frame.page("models.html", request, visitor, {"models": models_of(self._find())})

    async def _forget(self, request: Request, visitor: Visitor) -> Response:
        form = await form_of(request)
        await forget_learned(
            self._find(), visitor, form.get("tenant", ""), form.get("upstream", ""), form.get("model", "")
        )
        return RedirectResponse(f"{rendering.root_of(request)}models", 303)

    async def _tenants(self, request: Request, visitor: Visitor) -> Response:
        return await self._frame.page("tenants.html", request, visitor, {"rows": tenants_of(self._find(), visitor)})

    async def _tenant(self, request: Request, visitor: Visitor) -> Response:
        view = tenant_view(self._find(), visitor, request.path_params["tenant"])
        return await self._frame.page("tenant.html", request, visitor, {"view": view})

    async def _store(self, request: Request, visitor: Visitor) -> Response:
        return await self._frame.page("store.html", request, visitor, {"view": store_view(self._find()), "probe": None})

    async def _probe(self, request: Request, visitor: Visitor) -> Response:
        probe = await probe_store(self._find())
        values = {"view": store_view(self._find()), "probe": probe}
        return await self._frame.page("store.html", request, visitor, values)

    async def _replicas(self, request: Request, visitor: Visitor) -> Response:
        return await self._frame.page("replicas.html", request, visitor, {"replicas": replicas_of(self._find())})

    async def _config(self, request: Request, visitor: Visitor) -> Response:
        return await self._frame.page("config.html", request, visitor, {"view": setup.config(self._find().reloader)})
