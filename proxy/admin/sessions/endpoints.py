"""The endpoints under /admin/api/sessions."""

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
    """Stored sessions, the last used first.

    cursor: for the next page; None on the last one.
    """

    sessions: list[Session]
    cursor: str | None


class HistoryPoints(msgspec.Struct, frozen=True):
    """A session's requests, the oldest first, and the marks."""

    points: list[dict[str, object]]
    marks: list[Mark]


class Fates(msgspec.Struct, frozen=True):
    """The fate of each message at the last event.

    at: None if there was no event.
    """

    at: float | None
    messages: list[dict[str, object]]


class SentPromptList(msgspec.Struct, frozen=True):
    """Sent prompts of this replica since its start, the newest first."""

    prompts: list[ShownPrompt]


class Records(msgspec.Struct, frozen=True):
    """The records of a session, the newest first, and the lineage of its compactions."""

    records: list[RecordRow]
    lineage: Lineage | None


class AwaitedRequest(msgspec.Struct, frozen=True):
    """The id of a session that is compacted with its next request."""

    asked: str


class UndoneRecord(msgspec.Struct, frozen=True):
    """The digests of the undone record and of the one in use now; None if there is none."""

    undone: str
    in_use: str | None


class ErasedSessions(msgspec.Struct, frozen=True):
    """The complete ids of the conversations."""

    erased: list[str]


class SessionEndpoints:
    """Handlers with the names of their rows in the table of endpoints."""

    def __init__(self, context: Callable[[], AdminContext], access: Access) -> None:
        """Create handlers over the running proxy."""
        self._find = context
        self._access = access

    async def sessions(self, request: Request, visitor: Visitor) -> Stored:
        """List a tenant's stored conversations, with a name only those with this label or id."""
        caller, limit = tenant_of(request, visitor, self._find()), limit_of(request, PAGE)
        cursor, name = cursor_of(request.query_params.get("cursor", "")), request.query_params.get("name", "")
        sessions = self._find().engine.sessions
        if name:
            matches, is_last = await ask_store(list_named(sessions, caller, name, cursor.looked, limit))
            return Stored(matches, None if is_last else Cursor(looked=cursor.looked + limit).text)
        member = cursor.members.get(caller.tenant)
        page = await ask_store(sessions.newest(caller, limit, member))
        entries, is_last = page.entries[:limit], page.is_last and len(page.entries) <= limit
        following = None if is_last or not entries else Cursor(members={caller.tenant: entries[-1][0]}).text
        return Stored([session for _, session in entries if session is not None], following)

    async def search(self, request: Request, visitor: Visitor) -> Listing:
        """Return a page of matching sessions."""
        return await list_sessions(self._find(), visitor, wishes_of(request))

    async def erase_all(self, request: Request, visitor: Visitor) -> ErasedSessions:
        """Erase all sessions of a tenant. Raises InvalidRequestError without ?all=true."""
        context, caller = self._find(), tenant_of(request, visitor, self._find())
        if request.query_params.get("all") != "true":
            raise InvalidRequestError("Name the session in the path, or use ?all=true to erase all.", param="all")
        return _answer_of_erasure(await erase(context, visitor, caller, context.engine.sessions.every(caller)))

    async def erase(self, request: Request, visitor: Visitor) -> ErasedSessions:
        """Erase a tenant's conversations with this label or id."""
        caller = tenant_of(request, visitor, self._find())
        return _answer_of_erasure(await erase_named(self._find(), visitor, caller, request.path_params["name"]))

    async def session(self, request: Request, visitor: Visitor) -> SessionView:
        """Return one session. Raises NotFoundError and ErasedError."""
        return (await self._look(request, visitor)).view

    async def trail(self, request: Request, visitor: Visitor) -> HistoryPoints:
        """Return a session's requests as points. Raises NotFoundError and ErasedError."""
        caller = tenant_of(request, visitor, self._find())
        label = request.query_params.get("label")
        history, stored = await history_view(self._find(), caller, request.path_params["id"], label)
        if history is None and stored is None:
            raise await unknown(self._find(), caller, request.path_params["id"], label or "")
        if history is None:
            return HistoryPoints([], [])
        events = await stored_compactions(self._find(), caller, history.key.id, history.key.label)
        compactions = with_stored(history.compactions, events)
        return HistoryPoints([point._asdict() for point in history.points], marks(history.points, compactions))

    async def fates(self, request: Request, visitor: Visitor) -> Fates:
        """Return the fate of each message in the newest analyzed prompt."""
        prompt = (await self._look(request, visitor)).prompt
        messages = [message._asdict() for message in prompt.messages] if prompt else []
        return Fates(prompt.at if prompt else None, messages)

    async def prompts(self, request: Request, visitor: Visitor) -> SentPromptList:
        """Return the newest prompts of a session in this replica's memory."""
        caller = tenant_of(request, visitor, self._find())
        self._access.check_content(visitor, caller.tenant)
        row = (await self._look(request, visitor)).view.row
        self._find().engine.observe(note("admin", caller.tenant, row.id, who=visitor.role, what="prompts_read"))
        return SentPromptList(await asyncio.to_thread(self._find().engine.sent_prompts.of, SessionName(*row.key)))

    async def retained(self, request: Request, visitor: Visitor) -> Retained | None:
        """Return the retained statements and rules. Raises ContentHiddenError."""
        caller = tenant_of(request, visitor, self._find())
        self._access.check_content(visitor, caller.tenant)
        name, label = request.path_params["id"], request.query_params.get("label")
        texts = await retained_texts(self._find(), caller, name, label)
        self._find().engine.observe(
            note("admin", caller.tenant, name[:ID_DIGITS], who=visitor.role, what="record_read")
        )
        return texts

    async def records(self, request: Request, visitor: Visitor) -> Records:
        """Return the records without their texts."""
        caller = tenant_of(request, visitor, self._find())
        name, label = request.path_params["id"], request.query_params.get("label")
        return Records(*await record_rows(self._find(), caller, name, label))

    async def record(self, request: Request, visitor: Visitor) -> View:
        """Return a record compared with another. Raises ContentHiddenError, NotFoundError."""
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
        """Compact a session with its next request."""
        caller = tenant_of(request, visitor, self._find())
        name, label = request.path_params["id"], request.query_params.get("label")
        await compact_next(self._find(), visitor, caller, name, label)
        return AwaitedRequest(name)

    async def undo(self, request: Request, visitor: Visitor) -> UndoneRecord:
        """Undo the newest record of a session."""
        caller = tenant_of(request, visitor, self._find())
        name, label = request.path_params["id"], request.query_params.get("label")
        record = await undo(self._find(), visitor, caller, name, label)
        return UndoneRecord(record.digest, record.parent)

    async def export(self, request: Request, visitor: Visitor) -> Annotated[Response, Exported]:
        """Return everything that is stored of a session, as a file."""
        caller = tenant_of(request, visitor, self._find())
        name, label = request.path_params["id"], request.query_params.get("label")
        is_shown = self._access.may_read(visitor, caller.tenant)
        exported = await export(self._find(), visitor, caller, name, label, is_shown=is_shown)
        response = as_json(exported)
        file = f"session-{exported.session.id[:ID_DIGITS]}.json"
        response.headers["content-disposition"] = f'attachment; filename="{file}"'
        return response

    async def _look(self, request: Request, visitor: Visitor) -> SessionLook:
        caller = tenant_of(request, visitor, self._find())
        label = request.query_params.get("label")
        return await look_at_session(self._find(), caller, request.path_params["id"], label)


def _answer_of_erasure(targets: Sequence[Target]) -> ErasedSessions:
    return ErasedSessions([target.id for target in targets])
