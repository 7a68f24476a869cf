"""What people see under /admin: pages that work without JavaScript."""

import time
from collections.abc import Callable
from typing import get_args

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route as Path

from proxy.admin import chart, overview, rendering, setup
from proxy.admin.access import EVERYBODY, FIGURES, OPERATORS, SIGNED_IN, Access, Visitor
from proxy.admin.explaining import MOST_EXPLAINED, Explained, example, explain
from proxy.admin.guard import ADMIN, Entrance, Guard, form_of
from proxy.admin.recent import page_of
from proxy.admin.rendering import Frame
from proxy.admin.sessions import STATES, SessionView, Wishes
from proxy.admin.views import (
    Opened,
    asked_of,
    erase_named,
    forget_learned,
    list_sessions,
    models_of,
    named_tenant,
    overview_of,
    probe_store,
    record_rows,
    record_view,
    session_view,
    span_of,
    store_view,
    tenant_of,
    tenant_view,
    tenants_of,
    viewed_tenant,
)
from proxy.engine.case import Outcome
from proxy.errors import ProxyError
from proxy.observing.events import AdminActed

# Messages that are listed below the strip, the newest.
_LISTED = 100


class HtmlPages:
    """The views, each with its template."""

    def __init__(self, opened: Callable[[], Opened], guard: Guard) -> None:
        self._find = opened
        self._guard = guard
        self._frame = Frame(opened)

    @property
    def _access(self) -> Access:
        return self._guard.access

    def routes(self) -> list[Path]:
        only = self._guard.only
        session = f"{ADMIN}sessions/{{id}}"
        return [
            *Entrance(self._guard, only(self._overview, EVERYBODY)).routes(),
            Path(f"{ADMIN}live", only(self._live, SIGNED_IN)),
            Path(f"{ADMIN}sessions", only(self._sessions, SIGNED_IN)),
            Path(session, only(self._session, SIGNED_IN)),
            Path(f"{session}/erase", only(self._erase, SIGNED_IN), methods=["POST"]),
            Path(f"{session}/records/{{digest}}", only(self._record, SIGNED_IN)),
        ]

    async def _overview(self, request: Request, visitor: Visitor) -> Response:
        tenant = viewed_tenant(request, visitor, self._find())
        view = await overview_of(self._find(), visitor, tenant, span_of(request), time.time())
        spans = [(minute.received, minute.sent) for minute in view.minutes]
        texts = overview.labels(view.minutes)
        values = {
            "view": view,
            "drawn": [chart.bars(spans, texts, frame) for frame in (chart.LOW, chart.NARROW)],
            "tenant": tenant,
            "tenants": self._tenants(visitor),
            "span": span_of(request),
            "spans": overview.SPANS,
            "address": str(request.base_url).rstrip("/"),
        }
        return await self._frame.page("overview.html", request, visitor, values)

    async def _live(self, request: Request, visitor: Visitor) -> Response:
        wanted, before = asked_of(request, visitor)
        found = page_of(self._find().recent, wanted.holds, before)
        tenants, outcomes = self._tenants(visitor), get_args(Outcome)
        values = {"view": found, "wishes": wanted, "tenants": tenants, "outcomes": outcomes}
        return await self._frame.page("live.html", request, visitor, values)

    async def _sessions(self, request: Request, visitor: Visitor) -> Response:
        wishes = Wishes(**{name: request.query_params.get(name, "") for name in Wishes._fields})
        listed = await list_sessions(self._find(), visitor, wishes)
        values = {"view": listed, "wishes": wishes, "tenants": self._tenants(visitor), "states": STATES}
        return await self._frame.page("sessions.html", request, visitor, values)

    async def _session(self, request: Request, visitor: Visitor) -> Response:
        opened, caller = self._find(), tenant_of(request, visitor, self._find())
        view = await session_view(opened, caller, request.path_params["id"], request.query_params.get("label"))
        prompt = opened.trails.prompt(view.row.key)
        messages = [*prompt.messages] if prompt else []
        values = {
            "view": view,
            "drawn": _drawn(view),
            "filled": chart.stacked([(part.kind, part.tokens) for part in view.filling.parts] if view.filling else ()),
            "strip": chart.strip(messages),
            "messages": messages[-_LISTED:],
            "records": await record_rows(opened, caller, view.row.id, view.row.label),
            "is_shown": self._access.may_read(visitor, caller.tenant),
        }
        return await self._frame.page("session.html", request, visitor, values)

    async def _record(self, request: Request, visitor: Visitor) -> Response:
        opened, caller = self._find(), tenant_of(request, visitor, self._find())
        label, name = request.query_params.get("label", ""), request.path_params["id"]
        values: dict[str, object] = {"session": (caller.tenant, name, label), "is_shown": False, "view": None}
        if self._access.may_read(visitor, caller.tenant):
            opened.engine.observe(AdminActed(visitor.role, "record_read", caller.tenant, name))
            digest, against = request.path_params["digest"], request.query_params.get("against")
            view = await record_view(opened, caller, name, label, digest, against)
            values |= {"is_shown": True, "view": view, "records": await record_rows(opened, caller, name, label)}
        return await self._frame.page("record.html", request, visitor, values, 200 if values["is_shown"] else 403)

    async def _erase(self, request: Request, visitor: Visitor) -> Response:
        caller = tenant_of(request, visitor, self._find())
        name = f"{request.path_params['id']}:{request.query_params.get('label', '')}"
        await erase_named(self._find(), visitor, caller, name)
        return RedirectResponse(f"{rendering.root_of(request)}sessions", 303)

    def _tenants(self, visitor: Visitor) -> list[str]:
        return [name for name in self._find().config.tenants if visitor.sees(name)]


def _drawn(view: SessionView) -> list[chart.Saw]:
    """The picture in each of its sizes; none of a session that this process has not seen."""
    if view.last is None or not view.points:
        return []
    due = view.filling.due if view.filling else None
    limits = [("window", view.last.window), ("usable", view.last.usable), ("floor", due)]
    known = [(kind, tokens) for kind, tokens in limits if tokens]
    places = [(mark.place, mark.kind) for mark in view.marks]
    return [chart.saw(view.points, known, places, frame) for frame in (chart.WIDE, chart.NARROW)]


class ExplainPages:
    """Explains what is pasted, for those who are signed in: it is their own content."""

    def __init__(self, opened: Callable[[], Opened], guard: Guard) -> None:
        self._find = opened
        self._guard = guard
        self._frame = Frame(opened)

    def routes(self) -> list[Path]:
        return [Path(f"{ADMIN}explain", self._guard.only(self._page, SIGNED_IN), methods=["GET", "POST"])]

    async def _page(self, request: Request, visitor: Visitor) -> Response:
        if request.method == "GET":
            body = example() if request.query_params.get("example") else ""
            return await self._shown(request, visitor, {"body": body})
        form = await form_of(request, MOST_EXPLAINED)
        chosen = [form.get(name, "") for name in ("policy", "other")]
        try:
            caller = named_tenant(form.get("tenant", ""), visitor, self._find())
            wanted = [name for name in chosen if name]
            explained = await explain(self._find(), caller, form.get("body", "").encode(), wanted)
        except ProxyError as error:
            return await self._shown(request, visitor, form, chosen, problem=error.message, status=error.status)
        return await self._shown(request, visitor, form, chosen, explained)

    async def _shown(
        self,
        request: Request,
        visitor: Visitor,
        form: dict[str, str],
        chosen: list[str] | None = None,
        explained: list[Explained] | None = None,
        *,
        problem: str = "",
        status: int = 200,
    ) -> Response:
        config = self._find().config
        values = {
            "body": form.get("body", ""),
            "tenant": form.get("tenant", ""),
            "tenants": [name for name in config.tenants if visitor.sees(name)],
            "policies": [*config.policies],
            "chosen": chosen or ["", ""],
            "explained": explained,
            "problem": problem,
        }
        return await self._frame.page("explain.html", request, visitor, values, status)


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
        replicas = await self._find().replicas.every()
        return await self._frame.page("replicas.html", request, visitor, {"replicas": replicas})

    async def _config(self, request: Request, visitor: Visitor) -> Response:
        return await self._frame.page("config.html", request, visitor, {"view": setup.config(self._find().reloader)})
