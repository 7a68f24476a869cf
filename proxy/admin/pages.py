"""What people see under /admin: pages that work without JavaScript."""

import time
from collections.abc import Callable
from typing import get_args

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from proxy.admin import overview, rendering, setup
from proxy.admin.access import Visitor
from proxy.admin.context import AdminContext, viewed_tenant
from proxy.admin.guard import form_of
from proxy.admin.recent import page_of
from proxy.admin.rendering import PageFrame
from proxy.admin.sessions.one_request import request_view, unknown_request
from proxy.admin.totals import as_csv
from proxy.admin.views import (
    UsageTable,
    asked_of,
    forget_learned,
    models_of,
    overview_of,
    probe_store,
    reload_config,
    sort_of,
    span_of,
    store_view,
    tenant_view,
    tenants_of,
    used_of,
)
from proxy.compaction.plan_input import Outcome


class HtmlPages:
    """The views, each with its template, named as their rows in the table of pages."""

    def __init__(self, context: Callable[[], AdminContext]) -> None:
        self._find = context
        self._frame = PageFrame(context)

    async def overview(self, request: Request, visitor: Visitor) -> Response:
        tenant = viewed_tenant(request, visitor, self._find())
        view = await overview_of(self._find(), visitor, tenant, span_of(request), time.time())
        values = {
            "view": view,
            "health": view.health,
            "by_minute": overview.by_minute(view.minutes),
            "by_part": overview.by_part(view.parts, span_of(request)),
            "tenant": tenant,
            "tenants": self._tenants(visitor),
            "span": span_of(request),
            "spans": overview.SPANS,
            "address": str(request.base_url).rstrip("/"),
        }
        return await self._frame.page("overview.html", request, visitor, values)

    async def live(self, request: Request, visitor: Visitor) -> Response:
        wanted, before = asked_of(request, visitor)
        found = page_of(self._find().recent, wanted.holds, before)
        tenants, outcomes = self._tenants(visitor), get_args(Outcome)
        values = {"view": found, "wishes": wanted, "tenants": tenants, "outcomes": outcomes}
        return await self._frame.page("live.html", request, visitor, values)

    async def request(self, request: Request, visitor: Visitor) -> Response:
        context, name = self._find(), request.path_params["request"]
        view = await request_view(context, visitor, name)
        unknown = await unknown_request(context, name) if view is None else None
        values = {"view": view, "name": name, "unknown": unknown}
        return await self._frame.page("request.html", request, visitor, values, unknown.status if unknown else 200)

    def _tenants(self, visitor: Visitor) -> list[str]:
        return [name for name in self._find().config.tenants if visitor.sees(name)]


class SetupPages:
    """Models, tenants, store and config: as above."""

    def __init__(self, context: Callable[[], AdminContext]) -> None:
        self._find = context
        self._frame = PageFrame(context)

    async def models(self, request: Request, visitor: Visitor) -> Response:
        used = await self._used_by(request, visitor, by_model=True)
        values = {"models": models_of(self._find()), "used": used, **_table_query(request)}
        return await self._frame.page("models.html", request, visitor, values)

    async def models_csv(self, request: Request, visitor: Visitor) -> Response:
        return _csv("models", request, await self._used_by(request, visitor, by_model=True))

    async def _used_by(self, request: Request, visitor: Visitor, *, by_model: bool) -> UsageTable:
        return await used_of(self._find(), visitor, span_of(request), sort_of(request), by_model=by_model)

    async def forget_model(self, request: Request, visitor: Visitor) -> Response:
        form = await form_of(request)
        await forget_learned(
            self._find(), visitor, form.get("tenant", ""), form.get("upstream", ""), form.get("model", "")
        )
        return RedirectResponse(f"{rendering.root_of(request)}models", 303)

    async def tenants(self, request: Request, visitor: Visitor) -> Response:
        used = await self._used_by(request, visitor, by_model=False)
        values = {"rows": tenants_of(self._find(), used), "used": used, **_table_query(request)}
        return await self._frame.page("tenants.html", request, visitor, values)

    async def tenants_csv(self, request: Request, visitor: Visitor) -> Response:
        return _csv("tenants", request, await self._used_by(request, visitor, by_model=False))

    async def tenant(self, request: Request, visitor: Visitor) -> Response:
        view = await tenant_view(self._find(), visitor, request.path_params["name"], span_of(request))
        return await self._frame.page("tenant.html", request, visitor, {"view": view, **_table_query(request)})

    async def store(self, request: Request, visitor: Visitor) -> Response:
        return await self._frame.page(
            "store.html", request, visitor, {"view": await store_view(self._find()), "probe": None}
        )

    async def probe_store(self, request: Request, visitor: Visitor) -> Response:
        probe = await probe_store(self._find())
        values = {"view": await store_view(self._find()), "probe": probe}
        return await self._frame.page("store.html", request, visitor, values)

    async def replicas(self, request: Request, visitor: Visitor) -> Response:
        replicas = await self._find().replicas.every()
        return await self._frame.page("replicas.html", request, visitor, {"replicas": replicas})

    async def config(self, request: Request, visitor: Visitor) -> Response:
        values = {"view": setup.config(self._find().reloader), "reloaded": None}
        return await self._frame.page("config.html", request, visitor, values)

    async def reload_config(self, request: Request, visitor: Visitor) -> Response:
        reloaded = await reload_config(self._find(), visitor)
        values = {"view": setup.config(self._find().reloader), "reloaded": reloaded}
        return await self._frame.page("config.html", request, visitor, values)


def _table_query(request: Request) -> dict[str, object]:
    """What a table is of, and sorted by."""
    return {"span": span_of(request), "spans": overview.SPANS, "sort": sort_of(request)}


def _csv(name: str, request: Request, used: UsageTable) -> Response:
    file = f'attachment; filename="{name}-{span_of(request).name}.csv"'
    return Response(as_csv(used.rows), media_type="text/csv; charset=utf-8", headers={"content-disposition": file})
