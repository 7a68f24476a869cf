"""What programs read and do about sessions, under /admin/api/sessions."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from policies.record.lineage import Lineage
from proxy.admin.access import Access, Visitor
from proxy.admin.context import AdminContext, tenant_of
from proxy.admin.guard import as_json, limit_of
from proxy.admin.sessions.actions import compact_next, erase, erase_named, export, undo
from proxy.admin.sessions.asking import (
    SessionLook,
    ask_store,
    history_view,
    list_named,
    list_sessions,
    look_at_session,
    record_rows,
    record_view,
    retained_texts,
    stored_compactions,
    unknown,
    wishes_of,
)
from proxy.admin.sessions.details import Mark, SessionView, marks, with_stored
from proxy.admin.sessions.listing import ID_DIGITS, PAGE, Cursor, Listing, cursor_of
from proxy.admin.sessions.records import Exported, RecordRow, View
from proxy.admin.sessions.retained import Retained
from proxy.compaction.sent_prompts import SessionName, ShownPrompt
from proxy.errors import InvalidRequestError
from proxy.sessions.index import Session, Target
from proxy.telemetry.events import note


class Stored(msgspec.Struct, frozen=True):
    """Sessions that the store knows, the last used first. cursor: asks for the next ones; None where there are none."""

    sessions: list[Session]
    cursor: str | None


class HistoryPoints(msgspec.Struct, frozen=True):
    """A session's requests, the oldest first, and what happened on the way."""

    points: list[dict[str, object]]
    marks: list[Mark]


class Fates(msgspec.Struct, frozen=True):
    """What became of each message when that was last told; `at` is None where it never was."""

    at: float | None
    messages: list[dict[str, object]]


class SentPromptList(msgspec.Struct, frozen=True):
    """Prompts as they were sent, the newest first; of this replica, since it started."""

    prompts: list[ShownPrompt]


class Records(msgspec.Struct, frozen=True):
    """The records of a session, the newest first, and how its compactions went."""

    records: list[RecordRow]
    lineage: Lineage | None


class AwaitedRequest(msgspec.Struct, frozen=True):
    """The id of a session whose next request is waited for."""

    asked: str


class UndoneRecord(msgspec.Struct, frozen=True):
    """The digest of the record that was undone, and that of the one in use now; None if there is none."""

    undone: str
    in_use: str | None


class ErasedSessions(msgspec.Struct, frozen=True):
    """Whole ids of the conversations."""

    erased: list[str]


class SessionEndpoints:
    """The handlers, named as their rows in the table of endpoints."""

    def __init__(self, context: Callable[[], AdminContext], access: Access) -> None:
        self._find = context
        self._access = access

    async def sessions(self, request: Request, visitor: Visitor) -> Stored:
        """List a tenant's conversations of which something is stored; with a name only those with this label or id."""
        caller, limit = tenant_of(request, visitor, self._find()), limit_of(request, PAGE)
        cursor, name = cursor_of(request.query_params.get("cursor", "")), request.query_params.get("name", "")
        sessions = self._find().engine.sessions
        if name:
            named, is_last = await ask_store(list_named(sessions, caller, name, cursor.looked, limit))
            return Stored(named, None if is_last else Cursor(looked=cursor.looked + limit).text)
        before = cursor.members.get(caller.tenant)
        page = await ask_store(sessions.newest(caller, limit, before))
        entries, is_last = page.entries[:limit], page.is_last and len(page.entries) <= limit
        following = None if is_last or not entries else Cursor(members={caller.tenant: entries[-1][0]}).text
        return Stored([session for _, session in entries if session is not None], following)

    async def search(self, request: Request, visitor: Visitor) -> Listing:
        return await list_sessions(self._find(), visitor, wishes_of(request))

    async def erase_all(self, request: Request, visitor: Visitor) -> ErasedSessions:
        context, caller = self._find(), tenant_of(request, visitor, self._find())
        if request.query_params.get("all") != "true":
            raise InvalidRequestError("Name the session in the path, or say ?all=true to erase all.", param="all")
        return _answer_of_erasure(await erase(context, visitor, caller, context.engine.sessions.every(caller)))

    async def erase(self, request: Request, visitor: Visitor) -> ErasedSessions:
        """Erase the conversations of a tenant that this names: all with the label, or the one with the id."""
        caller = tenant_of(request, visitor, self._find())
        return _answer_of_erasure(await erase_named(self._find(), visitor, caller, request.path_params["name"]))

    async def session(self, request: Request, visitor: Visitor) -> SessionView:
        return (await self._look(request, visitor)).view

    async def trail(self, request: Request, visitor: Visitor) -> HistoryPoints:
        caller = tenant_of(request, visitor, self._find())
        label = request.query_params.get("label")
        found, stored = await history_view(self._find(), caller, request.path_params["id"], label)
        if found is None and stored is None:
            raise await unknown(self._find(), caller, request.path_params["id"], label or "")
        if found is None:
            return HistoryPoints([], [])
        made = await stored_compactions(self._find(), caller, found.key.id, found.key.label)
        compactions = with_stored(found.compactions, made)
        return HistoryPoints([point._asdict() for point in found.points], marks(found.points, compactions))

    async def fates(self, request: Request, visitor: Visitor) -> Fates:
        prompt = (await self._look(request, visitor)).prompt
        messages = [message._asdict() for message in prompt.messages] if prompt else []
        return Fates(prompt.at if prompt else None, messages)

    async def prompts(self, request: Request, visitor: Visitor) -> SentPromptList:
        """The newest prompts of a session that this replica holds, in memory alone."""
        caller = tenant_of(request, visitor, self._find())
        self._access.check_content(visitor, caller.tenant)
        row = (await self._look(request, visitor)).view.row
        self._find().engine.observe(note("admin", caller.tenant, row.id, who=visitor.role, what="prompts_read"))
        return SentPromptList(await asyncio.to_thread(self._find().engine.sent_prompts.of, SessionName(*row.key)))

    async def retained(self, request: Request, visitor: Visitor) -> Retained | None:
        caller = tenant_of(request, visitor, self._find())
        self._access.check_content(visitor, caller.tenant)
        name, label = request.path_params["id"], request.query_params.get("label")
        found = await retained_texts(self._find(), caller, name, label)
        self._find().engine.observe(
            note("admin", caller.tenant, name[:ID_DIGITS], who=visitor.role, what="record_read")
        )
        return found

    async def records(self, request: Request, visitor: Visitor) -> Records:
        caller = tenant_of(request, visitor, self._find())
        name, label = request.path_params["id"], request.query_params.get("label")
        return Records(*await record_rows(self._find(), caller, name, label))

    async def record(self, request: Request, visitor: Visitor) -> View:
        caller = tenant_of(request, visitor, self._find())
        self._access.check_content(visitor, caller.tenant)
        name, label = request.path_params["id"], request.query_params.get("label")
        against = request.query_params.get("against")
        view = await record_view(self._find(), caller, name, label, request.path_params["digest"], against)
        self._find().engine.observe(
            note("admin", caller.tenant, name[:ID_DIGITS], who=visitor.role, what="record_read")
        )
        return view

    async def compact(self, request: Request, visitor: Visitor) -> AwaitedRequest:
        caller = tenant_of(request, visitor, self._find())
        name, label = request.path_params["id"], request.query_params.get("label")
        await compact_next(self._find(), visitor, caller, name, label)
        return AwaitedRequest(name)

    async def undo(self, request: Request, visitor: Visitor) -> UndoneRecord:
        caller = tenant_of(request, visitor, self._find())
        name, label = request.path_params["id"], request.query_params.get("label")
        record = await undo(self._find(), visitor, caller, name, label)
        return UndoneRecord(record.digest, record.parent)

    async def export(self, request: Request, visitor: Visitor) -> Annotated[Response, Exported]:
        caller = tenant_of(request, visitor, self._find())
        name, label = request.path_params["id"], request.query_params.get("label")
        is_shown = self._access.may_read(visitor, caller.tenant)
        found = await export(self._find(), visitor, caller, name, label, is_shown=is_shown)
        answer = as_json(found)
        file = f"session-{found.session.id[:ID_DIGITS]}.json"
        answer.headers["content-disposition"] = f'attachment; filename="{file}"'
        return answer

    async def _look(self, request: Request, visitor: Visitor) -> SessionLook:
        caller = tenant_of(request, visitor, self._find())
        label = request.query_params.get("label")
        return await look_at_session(self._find(), caller, request.path_params["id"], label)


def _answer_of_erasure(found: Sequence[Target]) -> ErasedSessions:
    return ErasedSessions([target.id for target in found])
