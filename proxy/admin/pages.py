"""The pages for people under /admin. They work without JavaScript."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, get_args

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from proxy.admin import overview, rendering, setup
from proxy.admin.access import Visitor
from proxy.admin.context import AdminContext, viewed_tenant
from proxy.admin.guard import form_of
from proxy.admin.rendering import PageFrame
from proxy.admin.requests import FILTERS, list_requests, read_filter
from proxy.admin.roles import FIGURES
from proxy.admin.sessions.one_request import request_view, unknown_request
from proxy.admin.totals import as_csv
from proxy.admin.views import (
    UsageTable,
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
    used_by_both,
    used_of,
)
from proxy.compaction.plan_input import Outcome
from proxy.sessions.replicas import Replica


class HtmlPages:
    """The views with their templates, named as their rows in the table of pages."""

    def __init__(self, context: Callable[[], AdminContext]) -> None:
        """Create pages over the running proxy."""
        self._find = context
        self._frame = PageFrame(context)

    async def overview(self, request: Request, visitor: Visitor) -> Response:
        """Return the overview."""
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
        """Return the page of the newest requests."""
        wanted, before = read_filter(request, visitor)
        listed = await list_requests(self._find(), wanted, before)
        parameters = {name: request.query_params.get(name, "").strip() for name in FILTERS}
        query = {name: value for name, value in parameters.items() if value}
        tenants, outcomes = self._tenants(visitor), get_args(Outcome)
        values = {"view": listed, "asked": parameters, "query": query, "tenants": tenants, "outcomes": outcomes}
        return await self._frame.page("live.html", request, visitor, values)

    async def request(self, request: Request, visitor: Visitor) -> Response:
        """Return the page of one request."""
        context, name = self._find(), request.path_params["request"]
        view = await request_view(context, visitor, name)
        unknown = await unknown_request(context, name) if view is None else None
        values = {"view": view, "name": name, "unknown": unknown}
        return await self._frame.page("request.html", request, visitor, values, unknown.status if unknown else 200)

    def _tenants(self, visitor: Visitor) -> list[str]:
        return [name for name in self._find().config.tenants if visitor.sees(name)]


class Sections(NamedTuple):
    """The sections of the status page besides tenants."""

    models: list[setup.TenantModel]
    store: setup.StoreView
    replicas: Sequence[Replica]
    config: setup.ConfigView


class StatusPages:
    """The status page and its forms, the page of a tenant, and tables as CSV."""

    def __init__(self, context: Callable[[], AdminContext]) -> None:
        """Create pages over the running proxy."""
        self._find = context
        self._frame = PageFrame(context)

    async def status(self, request: Request, visitor: Visitor) -> Response:
        """Return the status page."""
        return await self._page(request, visitor)

    async def _page(
        self,
        request: Request,
        visitor: Visitor,
        probe: setup.Probe | None = None,
        reloaded: setup.Reloaded | None = None,
    ) -> Response:
        context = self._find()
        by_tenant, by_model = await used_by_both(context, visitor, span_of(request), sort_of(request))
        values: dict[str, object] = {
            "rows": tenants_of(context, by_tenant),
            "by_tenant": by_tenant,
            "by_model": by_model,
            "sections": None,
            "probe": probe,
            "reloaded": reloaded,
            **_table_query(request),
        }
        if visitor.role in FIGURES:
            replicas, config = await context.replicas.every(), setup.config(context.reloader)
            values["sections"] = Sections(models_of(context), await store_view(context), replicas, config)
        return await self._frame.page("status.html", request, visitor, values)

    async def models_csv(self, request: Request, visitor: Visitor) -> Response:
        """Return the usage by model as CSV."""
        return _csv("models", request, await self._used_by(request, visitor, by_model=True))

    async def tenants_csv(self, request: Request, visitor: Visitor) -> Response:
        """Return the usage by tenant as CSV."""
        return _csv("tenants", request, await self._used_by(request, visitor, by_model=False))

    async def _used_by(self, request: Request, visitor: Visitor, *, by_model: bool) -> UsageTable:
        return await used_of(self._find(), visitor, span_of(request), sort_of(request), by_model=by_model)

    async def forget_model(self, request: Request, visitor: Visitor) -> Response:
        """Forget what was learned of a model, and return to the page."""
        form = await form_of(request)
        await forget_learned(
            self._find(), visitor, form.get("tenant", ""), form.get("upstream", ""), form.get("model", "")
        )
        return RedirectResponse(f"{rendering.root_of(request)}status#models", 303)

    async def tenant(self, request: Request, visitor: Visitor) -> Response:
        """Return the page of one tenant."""
        view = await tenant_view(self._find(), visitor, request.path_params["name"], span_of(request))
        return await self._frame.page("tenant.html", request, visitor, {"view": view, **_table_query(request)})

    async def probe_store(self, request: Request, visitor: Visitor) -> Response:
        """Try the store, and return the status page with the result."""
        return await self._page(request, visitor, probe=await probe_store(self._find()))

    async def reload_config(self, request: Request, visitor: Visitor) -> Response:
        """Read the config's file again, and return the status page with the result."""
        return await self._page(request, visitor, reloaded=await reload_config(self._find(), visitor))


def _table_query(request: Request) -> dict[str, object]:
    """Return the span and the sort order of a table."""
    return {"span": span_of(request), "spans": overview.SPANS, "sort": sort_of(request)}


def _csv(name: str, request: Request, used: UsageTable) -> Response:
    file = f'attachment; filename="{name}-{span_of(request).name}.csv"'
    return Response(as_csv(used.rows), media_type="text/csv; charset=utf-8", headers={"content-disposition": file})
