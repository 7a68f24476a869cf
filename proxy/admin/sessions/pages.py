"""The pages of sessions: the list, a session, a record, and actions."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from proxy.admin import chart, rendering
from proxy.admin.access import Access, Visitor
from proxy.admin.context import AdminContext, tenant_of
from proxy.admin.rendering import PageFrame
from proxy.admin.roles import OPERATORS
from proxy.admin.sessions.actions import compact_next, erase_named, is_compacted_next, undo
from proxy.admin.sessions.asking import list_sessions, look_at_session, record_rows, record_view, wishes_of
from proxy.admin.sessions.details import SessionView
from proxy.admin.sessions.listing import FAILED, STATES, SessionRow
from proxy.admin.sessions.one_request import RequestView, may_be_id, view_of
from proxy.admin.sessions.retained import retained_in
from proxy.compaction.sent_prompts import SessionName
from proxy.lru import remember
from proxy.telemetry.events import note
from proxy.telemetry.tally import HOUR

# The number of messages in the table below the strip, the newest.
_LISTED = 100
_SLOWEST = 3
# The maximum number of records and prompts whose reading in this hour is remembered.
_NOTED = 1_000


class SessionPages:
    """The views of sessions with their templates."""

    def __init__(self, context: Callable[[], AdminContext], access: Access) -> None:
        """Create pages over the running proxy."""
        self._find = context
        self._access = access
        self._frame = PageFrame(context)
        self._noted: OrderedDict[tuple[str, ...], int] = OrderedDict()

    async def sessions(self, request: Request, visitor: Visitor) -> Response:
        """Return the list of sessions."""
        wishes = wishes_of(request)
        listed = await list_sessions(self._find(), visitor, wishes)
        values = {
            "view": listed,
            "wishes": wishes,
            "tenants": self._tenants(visitor),
            "states": [*((state, state) for state in STATES), (FAILED, "failed in the last 24 h")],
            "may_be_request": may_be_id(wishes.q),
        }
        return await self._frame.page("sessions.html", request, visitor, values)

    async def session(self, request: Request, visitor: Visitor) -> Response:
        """Return the page of one session."""
        context, caller = self._find(), tenant_of(request, visitor, self._find())
        name, label = request.path_params["id"], request.query_params.get("label")
        view, prompt, records, in_use = await look_at_session(context, caller, name, label)
        is_shown = self._access.may_read(visitor, caller.tenant)
        retained = await context.engine.workers.run(retained_in, in_use) if is_shown and in_use else None
        name = SessionName(*view.row.key)
        prompts = await asyncio.to_thread(context.engine.sent_prompts.of, name) if is_shown else []
        if retained is not None:
            self._note_read(visitor, view.row, retained.digest, "record_read")
        if prompts:
            self._note_read(visitor, view.row, str(prompts[0].at), "prompts_read")
        messages = [*prompt.messages] if prompt else []
        values = {
            "view": view,
            "drawn": _drawn(view),
            "filled": chart.stack_parts(
                [(part.kind, part.tokens) for part in view.filling.parts] if view.filling else ()
            ),
            "strip": chart.strip(messages),
            "messages": messages[-_LISTED:],
            "records": records,
            "retained": retained,
            "prompts": prompts,
            "slow": _slowest(context, view.row),
            "started": context.started,
            "is_shown": is_shown,
            "is_answered": context.store.available,
            "is_asked": await is_compacted_next(context, caller, view.row.id, view.row.label),
            "may_act": visitor.role in OPERATORS,
        }
        return await self._frame.page("session.html", request, visitor, values)

    def _note_read(self, visitor: Visitor, row: SessionRow, digest: str, action: str) -> None:
        """Emit an event that a record or a prompt was read, once an hour for a role: pages reload themselves."""
        read = (visitor.role, *row.key, digest)
        hour = int(time.time()) // HOUR
        if self._noted.get(read) == hour:
            return
        remember(self._noted, read, hour, _NOTED)
        self._find().engine.observe(note("admin", row.tenant, row.id, who=visitor.role, what=action))

    async def record(self, request: Request, visitor: Visitor) -> Response:
        """Return the page of one record."""
        context, caller = self._find(), tenant_of(request, visitor, self._find())
        label, name = request.query_params.get("label", ""), request.path_params["id"]
        values: dict[str, object] = {"session": (caller.tenant, name, label), "is_shown": False, "view": None}
        if self._access.may_read(visitor, caller.tenant):
            context.engine.observe(note("admin", caller.tenant, name, who=visitor.role, what="record_read"))
            digest, against = request.path_params["digest"], request.query_params.get("against")
            view = await record_view(context, caller, name, label, digest, against)
            rows, _ = await record_rows(context, caller, name, label)
            values |= {"is_shown": True, "view": view, "records": rows}
        return await self._frame.page("record.html", request, visitor, values, 200 if values["is_shown"] else 403)

    async def compact(self, request: Request, visitor: Visitor) -> Response:
        """Compact a session with its next request, and return to its page."""
        caller = tenant_of(request, visitor, self._find())
        name, label = request.path_params["id"], request.query_params.get("label", "")
        await compact_next(self._find(), visitor, caller, name, label)
        return _back(request)

    async def undo(self, request: Request, visitor: Visitor) -> Response:
        """Undo the newest record of a session, and return to its page."""
        caller = tenant_of(request, visitor, self._find())
        name, label = request.path_params["id"], request.query_params.get("label", "")
        await undo(self._find(), visitor, caller, name, label)
        return _back(request)

    async def erase(self, request: Request, visitor: Visitor) -> Response:
        """Erase a session, and return to the list."""
        caller = tenant_of(request, visitor, self._find())
        name = f"{request.path_params['id']}:{request.query_params.get('label', '')}"
        await erase_named(self._find(), visitor, caller, name)
        return RedirectResponse(f"{rendering.root_of(request)}sessions", 303)

    def _tenants(self, visitor: Visitor) -> list[str]:
        return [name for name in self._find().config.tenants if visitor.sees(name)]


def _slowest(context: AdminContext, row: SessionRow) -> list[RequestView]:
    """Return the slowest requests of a session in this replica's memory, with their stages."""
    events = sorted(context.recent.of(*row.key), key=lambda event: -event.ms)[:_SLOWEST]
    return [view for view in (view_of(event, None) for event in events) if view.stages]


def _back(request: Request) -> Response:
    """Redirect to the session's page from an action below it."""
    name, query = request.path_params["id"], request.url.query
    return RedirectResponse(f"../{name}" + (f"?{query}" if query else ""), 303)


def _drawn(view: SessionView) -> list[chart.Saw]:
    """Return the chart in each of its sizes; none for a session that this process has not seen."""
    if view.last is None or not view.points:
        return []
    due = view.filling.due if view.filling else None
    limits = [("window", view.last.window), ("usable", view.last.usable), ("floor", due)]
    lines = [(kind, tokens) for kind, tokens in limits if tokens]
    places = [(mark.place, mark.kind) for mark in view.marks]
    return [chart.saw(view.points, lines, places, frame) for frame in (chart.WIDE, chart.NARROW)]
