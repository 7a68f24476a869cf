"""The endpoints under /admin/api, except sessions and trials."""

import time
from collections.abc import Callable
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from proxy.admin import setup
from proxy.admin.access import Visitor
from proxy.admin.context import AdminContext, viewed_tenant
from proxy.admin.guard import limit_of
from proxy.admin.overview import Overview
from proxy.admin.recent import Shown, number_of, stream
from proxy.admin.requests import PAGE, RequestsPage, list_requests, read_filter
from proxy.admin.sessions.one_request import RequestView, request_view, unknown_request
from proxy.admin.setup import ConfigView, Probe, Reloaded, Setting, StoreView, TenantModel, TenantRow, TenantView
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
    used_of,
)
from proxy.errors import NotFoundError
from proxy.sessions.replicas import Replica
from proxy.telemetry.events import RequestEnded


class Models(msgspec.Struct, frozen=True):
    """The models, and their usage in a span of time."""

    models: list[TenantModel]
    used: UsageTable


class TenantList(msgspec.Struct, frozen=True):
    """The tenants with their figures.

    is_whole: True if the figures are of all replicas, False if of this one.
    """

    tenants: list[TenantRow]
    is_whole: bool


class ReplicaList(msgspec.Struct, frozen=True):
    """The serving processes."""

    replicas: list[Replica]


class Policy(msgspec.Struct, frozen=True):
    """A policy with its settings and their origins."""

    name: str
    settings: list[Setting]


class GeneralEndpoints:
    """Handlers with the names of their rows in the table of endpoints."""

    def __init__(self, context: Callable[[], AdminContext]) -> None:
        """Create handlers over the running proxy."""
        self._find = context

    async def overview(self, request: Request, visitor: Visitor) -> Overview:
        """Return health and figures."""
        tenant = viewed_tenant(request, visitor, self._find())
        return await overview_of(self._find(), visitor, tenant, span_of(request), time.time())

    async def requests(self, request: Request, visitor: Visitor) -> RequestsPage:
        """Return a page of requests."""
        wanted, before = read_filter(request, visitor)
        return await list_requests(self._find(), wanted, before, limit_of(request, PAGE))

    async def request(self, request: Request, visitor: Visitor) -> RequestView:
        """Return one request. Raises NotFoundError."""
        name = request.path_params["request"]
        view = await request_view(self._find(), visitor, name)
        if view is None:
            raise await unknown_request(self._find(), name)
        return view

    async def live(self, request: Request, visitor: Visitor) -> Annotated[Response, str]:
        """Stream the requests and compactions that match the query."""
        wanted, _ = read_filter(request, visitor)

        def is_wanted(event: Shown) -> bool:
            if isinstance(event, RequestEnded):
                return wanted.holds(event)
            return wanted.tenant in ("", event.tenant) and event.session.startswith(wanted.session)

        after = number_of(request.headers.get("last-event-id", ""))
        events = stream(self._find().recent, is_wanted, self._find().is_draining, after)
        return StreamingResponse(events, media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    async def models(self, request: Request, visitor: Visitor) -> Models:
        """Return windows and usage of models."""
        used = await used_of(self._find(), visitor, span_of(request), sort_of(request), by_model=True)
        return Models(models_of(self._find()), used)

    async def forget_model(self, request: Request, visitor: Visitor) -> None:
        """Forget what was learned of a model. Raises NotFoundError."""
        tenant, upstream, model = (request.query_params.get(name, "") for name in ("tenant", "upstream", "model"))
        await forget_learned(self._find(), visitor, tenant, upstream, model)

    async def tenants(self, request: Request, visitor: Visitor) -> TenantList:
        """Return the tenants with their figures."""
        used = await used_of(self._find(), visitor, span_of(request), sort_of(request), by_model=False)
        return TenantList(tenants_of(self._find(), used), used.is_whole)

    async def tenant(self, request: Request, visitor: Visitor) -> TenantView:
        """Return one tenant. Raises NotFoundError."""
        return await tenant_view(self._find(), visitor, request.path_params["name"], span_of(request))

    async def policy(self, request: Request, _: Visitor) -> Policy:
        """Return the settings of a policy. Raises NotFoundError."""
        name, reloader = request.path_params["name"], self._find().reloader
        if name not in reloader.config.policies:
            raise NotFoundError("No policy has this name.")
        return Policy(name, setup.policy(name, reloader))

    async def replicas(self, _: Request, __: Visitor) -> ReplicaList:
        """Return the serving processes."""
        return ReplicaList(await self._find().replicas.every())

    async def store(self, _: Request, __: Visitor) -> StoreView:
        """Return the state of the store."""
        return await store_view(self._find())

    async def probe_store(self, _: Request, __: Visitor) -> Probe:
        """Write, read and erase an entry of the store."""
        return await probe_store(self._find())

    async def reload_config(self, _: Request, visitor: Visitor) -> Reloaded:
        """Read the config's file again."""
        return await reload_config(self._find(), visitor)

    async def config(self, _: Request, __: Visitor) -> ConfigView:
        """Return the config in force."""
        return setup.config(self._find().reloader)
