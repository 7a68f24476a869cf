"""What programs read and do under /admin/api."""

import time
from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route as Path

from proxy.admin import live, setup
from proxy.admin.access import EVERYBODY, FIGURES, OPERATORS, SIGNED_IN, Visitor
from proxy.admin.guard import API, Guard, as_json
from proxy.admin.looking import (
    answered,
    asked_of,
    erase,
    erase_named,
    forget_learned,
    overview_of,
    probe_store,
    record_rows,
    record_view,
    session_view,
    store_view,
    tenant_of,
    tenant_view,
    tenants_of,
    viewed_tenant,
)
from proxy.admin.opened import Opened
from proxy.admin.recent import Shown
from proxy.admin.sessions import SessionView
from proxy.errors import InvalidRequestError, NotFoundError
from proxy.observing.events import AdminActed, RequestEnded
from proxy.records.index import Target

SESSIONS_PATH = f"{API}sessions"


class Api:
    """The endpoints; every answer is JSON."""

    def __init__(self, opened: Callable[[], Opened], guard: Guard) -> None:
        self._find = opened
        self._guard = guard

    def routes(self) -> list[Path]:
        only, session = self._guard.only, f"{SESSIONS_PATH}/{{id}}"
        return [
            Path(f"{API}overview", only(self._overview, EVERYBODY)),
            Path(f"{API}requests", only(self._requests, SIGNED_IN)),
            Path(f"{API}live", only(self._live, SIGNED_IN)),
            Path(f"{API}models", only(self._models, FIGURES)),
            Path(f"{API}models/learned", only(self._forget, OPERATORS), methods=["DELETE"]),
            Path(f"{API}tenants", only(self._tenants, EVERYBODY)),
            Path(f"{API}tenants/{{tenant}}", only(self._tenant, EVERYBODY)),
            Path(f"{API}policies/{{policy}}", only(self._policy, FIGURES)),
            Path(f"{API}config", only(self._config, FIGURES)),
            Path(f"{API}store", only(self._store, FIGURES)),
            Path(f"{API}store/probe", only(self._probe, OPERATORS), methods=["POST"]),
            Path(SESSIONS_PATH, only(self._sessions, SIGNED_IN), methods=["GET", "DELETE"]),
            Path(session, only(self._session, SIGNED_IN)),
            Path(f"{session}/trail", only(self._trail, SIGNED_IN)),
            Path(f"{session}/fates", only(self._fates, SIGNED_IN)),
            Path(f"{session}/records", only(self._records, SIGNED_IN)),
            Path(f"{session}/records/{{digest}}", only(self._record, SIGNED_IN)),
            Path(f"{SESSIONS_PATH}/{{name:path}}", only(self._erase, SIGNED_IN), methods=["DELETE"]),
        ]

    async def _overview(self, request: Request, visitor: Visitor) -> Response:
        tenant = viewed_tenant(request, visitor, self._find())
        return as_json(overview_of(self._find(), visitor, tenant, time.time()))

    async def _requests(self, request: Request, visitor: Visitor) -> Response:
        wanted, before = asked_of(request, visitor)
        return as_json(live.page(self._find().recent, wanted.holds, before))

    async def _live(self, request: Request, visitor: Visitor) -> Response:
        wanted, _ = asked_of(request, visitor)

        def is_wanted(event: Shown) -> bool:
            if isinstance(event, RequestEnded):
                return wanted.holds(event)
            return wanted.tenant in ("", event.tenant) and event.session.startswith(wanted.session)

        events = live.stream(self._find().recent, is_wanted, self._find().is_draining)
        return StreamingResponse(events, media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    async def _models(self, _: Request, __: Visitor) -> Response:
        router, windows = self._find().active().router, self._find().engine.windows
        known = [windows.sources(place, router.configured_window(place.model)) for place in windows.places()]
        return as_json({"models": known})

    async def _forget(self, request: Request, visitor: Visitor) -> Response:
        tenant, upstream, model = (request.query_params.get(name, "") for name in ("tenant", "upstream", "model"))
        await forget_learned(self._find(), visitor, tenant, upstream, model)
        return Response(status_code=204)

    async def _tenants(self, _: Request, visitor: Visitor) -> Response:
        return as_json({"tenants": tenants_of(self._find(), visitor)})

    async def _tenant(self, request: Request, visitor: Visitor) -> Response:
        return as_json(tenant_view(self._find(), visitor, request.path_params["tenant"]))

    async def _policy(self, request: Request, _: Visitor) -> Response:
        name, reloader = request.path_params["policy"], self._find().reloader
        if name not in reloader.config.policies:
            raise NotFoundError("No policy has this name.")
        return as_json({"name": name, "settings": setup.policy(name, reloader)})

    async def _store(self, _: Request, __: Visitor) -> Response:
        return as_json(store_view(self._find()))

    async def _probe(self, _: Request, __: Visitor) -> Response:
        return as_json(await probe_store(self._find()))

    async def _config(self, _: Request, __: Visitor) -> Response:
        return as_json(setup.config(self._find().reloader))

    async def _sessions(self, request: Request, visitor: Visitor) -> Response:
        """A tenant's conversations of which something is stored: listed, or erased."""
        opened, caller = self._find(), tenant_of(request, visitor, self._find())
        sessions = opened.engine.sessions
        if request.method == "DELETE":
            if request.query_params.get("all") != "true":
                raise InvalidRequestError("Name the session in the path, or say ?all=true to erase all.", param="all")
            return _erased(await erase(opened, visitor, caller, await answered(sessions.every(caller))))
        return as_json({"sessions": await answered(sessions.of(caller))})

    async def _erase(self, request: Request, visitor: Visitor) -> Response:
        """Erase the conversations of a tenant that this names: all with the label, or the one with the id."""
        caller = tenant_of(request, visitor, self._find())
        return _erased(await erase_named(self._find(), visitor, caller, request.path_params["name"]))

    async def _session(self, request: Request, visitor: Visitor) -> Response:
        return as_json(await self._view(request, visitor))

    async def _trail(self, request: Request, visitor: Visitor) -> Response:
        view = await self._view(request, visitor)
        return as_json({"points": [point._asdict() for point in view.points], "marks": view.marks})

    async def _fates(self, request: Request, visitor: Visitor) -> Response:
        view = await self._view(request, visitor)
        prompt = self._find().trails.prompt(view.row.key)
        messages = [message._asdict() for message in prompt.messages] if prompt else []
        return as_json({"at": prompt.at if prompt else None, "messages": messages})

    async def _records(self, request: Request, visitor: Visitor) -> Response:
        caller = tenant_of(request, visitor, self._find())
        name, label = request.path_params["id"], request.query_params.get("label", "")
        return as_json({"records": await record_rows(self._find(), caller, name, label)})

    async def _record(self, request: Request, visitor: Visitor) -> Response:
        caller = tenant_of(request, visitor, self._find())
        self._guard.access.check_content(visitor, caller.tenant)
        name, label = request.path_params["id"], request.query_params.get("label", "")
        against = request.query_params.get("against")
        view = await record_view(self._find(), caller, name, label, request.path_params["digest"], against)
        self._find().engine.observe(AdminActed(visitor.role, "record_read", caller.tenant, name))
        return as_json(view)

    async def _view(self, request: Request, visitor: Visitor) -> SessionView:
        caller = tenant_of(request, visitor, self._find())
        label = request.query_params.get("label")
        return await session_view(self._find(), caller, request.path_params["id"], label)


def _erased(found: Sequence[Target]) -> Response:
    return as_json({"erased": [target.id for target in found]})
