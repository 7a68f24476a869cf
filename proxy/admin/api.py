"""What programs read and do under /admin/api: a table of endpoints, which is described at /openapi.json too."""

import time
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route as Path

from proxy.admin import setup
from proxy.admin.access import EVERYBODY, FIGURES, OPERATORS, SIGNED_IN, Visitor
from proxy.admin.context import AdminContext, viewed_tenant
from proxy.admin.guard import API, MOST_ROWS, Guard, as_json, limit_of
from proxy.admin.openapi import Endpoint, document
from proxy.admin.overview import SPANS, Overview
from proxy.admin.recent import PAGE, Page, Shown, number_of, page_of, stream
from proxy.admin.sessions.endpoints import SessionEndpoints
from proxy.admin.sessions.one_request import RequestView, request_view, unknown_request
from proxy.admin.setup import ConfigView, Model, Probe, Reloaded, Setting, StoreView, TenantRow, TenantView
from proxy.admin.totals import COLUMNS
from proxy.admin.trials.endpoints import TrialEndpoints
from proxy.admin.views import (
    Used,
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
from proxy.errors import NotFoundError
from proxy.observing.events import RequestEnded
from proxy.records.replicas import Replica

SESSIONS_PATH = f"{API}sessions"
# Those that are no free text.
_PARAMETERS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "range": {"enum": [span.name for span in SPANS]},
        "sort": {"enum": [*COLUMNS]},
        "limit": {"type": "integer", "minimum": 1, "maximum": MOST_ROWS},
        "all": {"const": "true"},
    }
)


class Models(msgspec.Struct, frozen=True):
    """used: what was used of each in a span of time."""

    models: list[Model]
    used: Used


class Tenants(msgspec.Struct, frozen=True):
    """is_whole: whether the figures are of all replicas, or of this one."""

    tenants: list[TenantRow]
    is_whole: bool


class Replicas(msgspec.Struct, frozen=True):
    replicas: list[Replica]


class Policy(msgspec.Struct, frozen=True):
    name: str
    settings: list[Setting]


class Api:
    """The endpoints; every answer is JSON, but for the stream."""

    def __init__(self, context: Callable[[], AdminContext], guard: Guard, trials: TrialEndpoints) -> None:
        self._find = context
        self._guard = guard
        self._trials = trials
        self._sessions = SessionEndpoints(context, guard.access)

    def described(self) -> Path:
        """The table for programs: for everybody, since it tells nothing of this proxy."""
        return Path("/openapi.json", self._guard.around(self._describe))

    def routes(self) -> list[Path]:
        return [
            Path(f"{API}{each.path}", self._guard.only(_written(each), each.roles), methods=[each.method])
            for each in self.endpoints()
        ]

    def endpoints(self) -> list[Endpoint]:
        """The table; of two paths that fit the first holds."""
        found, of_span = ("tenant", "session", "outcome", "status"), ("range", "sort")
        return [
            Endpoint("GET", "overview", EVERYBODY, self._overview, Overview, "Health and figures", ("tenant", "range")),
            Endpoint(
                "GET", "requests", SIGNED_IN, self._requests, Page, "Newest requests", (*found, "limit", "cursor")
            ),
            Endpoint("GET", "requests/{request}", SIGNED_IN, self._request, RequestView, "One request, by its id"),
            Endpoint("GET", "live", SIGNED_IN, self._live, str, "Requests as they end, as server-sent events", found),
            Endpoint("GET", "models", FIGURES, self._models, Models, "Windows, and what was used", of_span),
            Endpoint(
                *("DELETE", "models/learned", OPERATORS, self._forget, None, "Forget what was learned of a model"),
                ("tenant", "upstream", "model"),
            ),
            Endpoint("GET", "tenants", EVERYBODY, self._tenants, Tenants, "Tenants with their figures", of_span),
            Endpoint("GET", "tenants/{name}", EVERYBODY, self._tenant, TenantView, "A tenant, its policy", ("range",)),
            Endpoint("GET", "policies/{name}", FIGURES, self._policy, Policy, "Settings, and where they come from"),
            *self._trials.endpoints(),
            Endpoint("GET", "config", FIGURES, self._config, ConfigView, "The config in force, without secrets"),
            Endpoint("POST", "config/reload", OPERATORS, self._reload, Reloaded, "Read the config's file again"),
            Endpoint("GET", "replicas", FIGURES, self._replicas, Replicas, "Processes that serve, this one first"),
            Endpoint("GET", "store", FIGURES, self._store, StoreView, "The store and its operations"),
            Endpoint("POST", "store/probe", OPERATORS, self._probe, Probe, "Write, read and erase an entry"),
            *self._sessions.endpoints(),
        ]

    async def _overview(self, request: Request, visitor: Visitor) -> object:
        tenant = viewed_tenant(request, visitor, self._find())
        return await overview_of(self._find(), visitor, tenant, span_of(request), time.time())

    async def _requests(self, request: Request, visitor: Visitor) -> object:
        wanted, before = asked_of(request, visitor)
        return page_of(self._find().recent, wanted.holds, before, limit_of(request, PAGE))

    async def _request(self, request: Request, visitor: Visitor) -> object:
        name = request.path_params["request"]
        found = request_view(self._find(), visitor, name)
        if found is None:
            raise await unknown_request(self._find(), name)
        return found

    async def _live(self, request: Request, visitor: Visitor) -> object:
        wanted, _ = asked_of(request, visitor)

        def is_wanted(event: Shown) -> bool:
            if isinstance(event, RequestEnded):
                return wanted.holds(event)
            return wanted.tenant in ("", event.tenant) and event.session.startswith(wanted.session)

        after = number_of(request.headers.get("last-event-id", ""))
        events = stream(self._find().recent, is_wanted, self._find().is_draining, after)
        return StreamingResponse(events, media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    async def _models(self, request: Request, visitor: Visitor) -> object:
        used = await used_of(self._find(), visitor, span_of(request), sort_of(request), by_model=True)
        return Models(models_of(self._find()), used)

    async def _forget(self, request: Request, visitor: Visitor) -> object:
        tenant, upstream, model = (request.query_params.get(name, "") for name in ("tenant", "upstream", "model"))
        await forget_learned(self._find(), visitor, tenant, upstream, model)
        return None

    async def _tenants(self, request: Request, visitor: Visitor) -> object:
        used = await used_of(self._find(), visitor, span_of(request), sort_of(request), by_model=False)
        return Tenants(tenants_of(self._find(), used), used.is_whole)

    async def _tenant(self, request: Request, visitor: Visitor) -> object:
        return await tenant_view(self._find(), visitor, request.path_params["name"], span_of(request))

    async def _policy(self, request: Request, _: Visitor) -> object:
        name, reloader = request.path_params["name"], self._find().reloader
        if name not in reloader.config.policies:
            raise NotFoundError("No policy has this name.")
        return Policy(name, setup.policy(name, reloader))

    async def _replicas(self, _: Request, __: Visitor) -> object:
        return Replicas(await self._find().replicas.every())

    async def _store(self, _: Request, __: Visitor) -> object:
        return await store_view(self._find())

    async def _probe(self, _: Request, __: Visitor) -> object:
        return await probe_store(self._find())

    async def _describe(self, _: Request) -> Response:
        return as_json(document(self.endpoints(), _PARAMETERS))

    async def _reload(self, _: Request, visitor: Visitor) -> object:
        return await reload_config(self._find(), visitor)

    async def _config(self, _: Request, __: Visitor) -> object:
        return setup.config(self._find().reloader)


def _written(endpoint: Endpoint) -> Callable[[Request, Visitor], Awaitable[Response]]:
    """What an endpoint does, with its answer as JSON."""

    async def answer(request: Request, visitor: Visitor) -> Response:
        value = await endpoint.does(request, visitor)
        if isinstance(value, Response):
            return value
        return Response(status_code=204) if value is None else as_json(value, endpoint.status)

    return answer
