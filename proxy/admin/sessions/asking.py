"""Look up sessions in the store and in this process, for visitors who may see them."""

import asyncio
import re
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

from starlette.requests import Request

from policies.conversation.prefix_digests import mark_of
from policies.record.lineage import Lineage
from policies.record.record import Record
from proxy.admin.access import Visitor
from proxy.admin.context import AdminContext
from proxy.admin.requests import Filter, list_requests
from proxy.admin.sessions import details, listing, records
from proxy.admin.sessions.details import SessionView
from proxy.admin.sessions.listing import ID_DIGITS, Listing, SessionRow, Wishes, row_of_stored, with_figures
from proxy.admin.sessions.retained import Retained, retained_in
from proxy.callers.tenants import Caller
from proxy.errors import ErasedError, NotFoundError, ProxyError, StoreUnavailableError
from proxy.sessions.index import FAILED_FOR, Session, Target
from proxy.sessions.sessions import Sessions
from proxy.sessions.stores import StoreError
from proxy.telemetry.compactions import ended_by
from proxy.telemetry.events import CompactionEnded, PromptComposed, RequestEnded
from proxy.telemetry.session_history import HistoryView, Key, SessionHistory

_T = TypeVar("_T")
# The page size of searches in the store, and the maximum number of sessions that are searched for one page. A store
# that returns only unknown sessions is read at most `_ROUNDS` times.
_SEARCHED = 500
_MOST_SEARCHED = 5_000
_ROUNDS = 50
# A searchable beginning of an id. Ids of requests from one connection differ at their end.
_BEGINS_ID = re.compile("[0-9a-f]{8,16}")
_MOST_REQUESTS = 5


async def ask_store(look: Awaitable[_T]) -> _T:
    """Return the store's response about sessions. Raises StoreUnavailableError if there is none."""
    try:
        return await look
    except StoreError:
        raise StoreUnavailableError("The store does not respond, so nothing was done. Try again.") from None


def wishes_of(request: Request) -> Wishes:
    """Return which sessions a query requests."""
    return Wishes(**{name: request.query_params.get(name, "") for name in Wishes._fields})


async def list_sessions(context: AdminContext, visitor: Visitor, wishes: Wishes) -> Listing:
    """Return a page of the sessions of one tenant, or of all that the visitor sees.

    A label or an id is looked up by key. Other words are searched in a bounded number of sessions per page.
    """
    names = [name for name in context.config.tenants if visitor.sees(name) and wishes.tenant in ("", name)]
    histories = [each for each in context.histories.newest() if each.key.tenant in names]
    if wishes.state == listing.FAILED:
        since = time.time() - FAILED_FOR
        histories = [each for each in histories if each.failed is not None and each.failed > since]
    callers = [caller for name in names if (caller := context.active().tenants.operator_of(name)) is not None]
    most = listing.cursor_of(wishes.cursor).looked + _MOST_SEARCHED
    index_names: dict[Key, bytes] = {}
    shown = (
        await _find_named(context, histories, callers, wishes, index_names) if wishes.q and not wishes.cursor else []
    )
    named_keys = {row.key for row in shown}
    requests = await _find_requests(context, visitor, wishes)
    # The id of a request occurs in no session.
    page = Listing([], None if requests else wishes.cursor, store=context.store.available)
    for _ in range(0 if requests else _ROUNDS):
        room = listing.PAGE - len(shown)
        page = await _list_newest(
            context, histories, callers, wishes._replace(cursor=page.cursor or ""), room, index_names
        )
        shown += [row for row in page.sessions if row.key not in named_keys]
        if page.cursor is None or len(shown) == listing.PAGE or page.looked >= most:
            break
    index_names |= {each.key: each.place.name for each in histories if each.place is not None}
    shown = await _with_figures(context, shown, index_names)
    return Listing(shown, page.cursor, page.looked, page.store, requests)


async def _with_figures(
    context: AdminContext, rows: Sequence[SessionRow], names: Mapping[Key, bytes]
) -> list[SessionRow]:
    """Return the rows with figures of all replicas.

    names: of the sessions in the index.
    """
    figures_by_key = await context.stored_histories.figures(
        {row.key: names[row.key] for row in rows if row.key in names}
    )
    return [row if (figures := figures_by_key.get(row.key)) is None else with_figures(row, figures) for row in rows]


async def _find_requests(context: AdminContext, visitor: Visitor, wishes: Wishes) -> list[RequestEnded]:
    """Return the newest requests whose id begins with the query, if it has enough digits."""
    begin, tenant = wishes.q.lower(), visitor.tenant or wishes.tenant
    if not _BEGINS_ID.fullmatch(begin) or wishes.tenant not in ("", tenant):
        return []
    return (await list_requests(context, Filter(tenant=tenant, id=begin), limit=_MOST_REQUESTS)).requests


async def list_named(
    sessions: Sessions, caller: Caller, name: str, start: int, limit: int
) -> tuple[list[Session], bool]:
    """Return a page of the stored sessions with this label or id, and True if it is the last. Raises StoreError."""
    targets: dict[Target, None] = {}
    async for page in sessions.find_sessions(caller, name):
        targets |= dict.fromkeys(page)
        if len(targets) > start + limit:
            break
    listed = await sessions.look_up([*targets][start : start + limit])
    return listed, len(targets) <= start + limit


async def _find_named(
    context: AdminContext,
    histories: Sequence[SessionHistory],
    callers: Sequence[Caller],
    wishes: Wishes,
    names: dict[Key, bytes],
) -> list[SessionRow]:
    """Return at most a page of stored sessions with the queried label or beginning of an id.

    Add their names in the index to `names`.
    """
    sessions, known_keys = context.engine.sessions, {history.key for history in histories}
    rows: list[SessionRow] = []
    for caller in callers:
        with suppress(StoreError):
            async for page in sessions.find_sessions(caller, wishes.q):
                looked_up = await sessions.look_up(page)
                names |= _names_of(caller, looked_up)
                stored = [row_of_stored(caller.tenant, each) for each in looked_up]
                rows += [row for row in stored if row.key not in known_keys and wishes.state in ("", row.state)]
                if len(rows) >= listing.PAGE:
                    return rows[: listing.PAGE]
    return rows


def _names_of(caller: Caller, sessions: Iterable[Session]) -> dict[Key, bytes]:
    """Return the names of stored sessions in the index."""
    return {Key(caller.tenant, each.id[:ID_DIGITS], each.label): name_in_requests(caller, each) for each in sessions}


async def _list_newest(
    context: AdminContext,
    histories: Sequence[SessionHistory],
    callers: Sequence[Caller],
    wishes: Wishes,
    most: int,
    names: dict[Key, bytes],
) -> Listing:
    """Return at most `most` sessions, among the next of every tenant in the store.

    Add their names in the index to `names`.
    """
    members = listing.cursor_of(wishes.cursor).members
    limit = max(listing.PAGE, _SEARCHED // max(1, len(callers))) if wishes.q or wishes.state else listing.PAGE
    sessions = context.engine.sessions
    look = sessions.newest_failures if wishes.state == listing.FAILED else sessions.newest
    pages = (look(each, limit, members.get(each.tenant)) for each in callers)
    try:
        stored = [*zip((each.tenant for each in callers), await asyncio.gather(*pages), strict=True)]
    except StoreError:
        page = listing.listing(histories, [], wishes, most)
        return Listing(page.sessions, page.cursor, page.looked, store=False)
    page = listing.listing(histories, stored, wishes, most)
    shown = {row.key for row in page.sessions}
    for caller, (_, stored_page) in zip(callers, stored, strict=True):
        listed = (each for _, each in stored_page.entries if each is not None)
        names |= _names_of(
            caller, (each for each in listed if Key(caller.tenant, each.id[:ID_DIGITS], each.label) in shown)
        )
    return page


class SessionLook(NamedTuple):
    """A session and its context.

    prompt: its composition at the last event. records: the newest first. in_use: those that were not undone.
    """

    view: SessionView
    prompt: PromptComposed | None
    records: list[records.RecordRow]
    in_use: Sequence[Record] = ()


async def look_at_session(context: AdminContext, caller: Caller, name: str, label: str | None) -> SessionLook:
    """Return the session of this conversation and label, without a label the last used one.

    Raises NotFoundError and ErasedError.
    """
    history, stored = await history_view(context, caller, name, label)
    if history is None and stored is None:
        raise await unknown(context, caller, name, label or "")
    exported = await _exported(context, caller, stored)
    compactions = compactions_of(caller, stored, exported.records if exported else [])
    rows, in_use = (exported.rows, exported.in_use) if exported else ([], [])
    if history is not None:
        labels = [each.key.label for each in context.histories.of(*history.key[:2]) if each.key != history.key]
        is_stored = stored is not None
        view = details.view(history, is_stored=is_stored, labels=labels, stored=compactions)
        return SessionLook(view, history.prompt, rows, in_use)
    assert stored is not None  # noqa: S101 - otherwise the session is unknown
    return SessionLook(details.view_of_stored(caller.tenant, stored, compactions), None, rows, in_use)


async def retained_texts(context: AdminContext, caller: Caller, name: str, label: str | None) -> Retained | None:
    """Return what the newest record of a session retains; None without a record. Raises NotFoundError, ErasedError."""
    session = await stored_session(context, caller, name, label)
    if session is None:
        raise await unknown(context, caller, name, label or "")
    exported = await _exported(context, caller, session)
    return await context.engine.workers.run(retained_in, exported.in_use if exported else [])


def compactions_of(caller: Caller, session: Session | None, records: Sequence[Record]) -> list[CompactionEnded]:
    """Return the compactions that made these records of a session."""
    if session is None:
        return []
    tenant, name, label = caller.tenant, session.id[:ID_DIGITS], session.label or None
    return [ended_by(record, tenant=tenant, session=name, label=label, for_model=session.model) for record in records]


async def stored_compactions(
    context: AdminContext, caller: Caller, name: str, label: str | None
) -> list[CompactionEnded]:
    """Return the compactions of a session whose records the store has, the newest first."""
    session = await stored_session(context, caller, name, label)
    exported = await _exported(context, caller, session)
    return compactions_of(caller, session, exported.records if exported else [])


async def newest_compactions(
    context: AdminContext, visitor: Visitor, tenant: str | None, most: int
) -> list[CompactionEnded]:
    """Return the newest compactions of a tenant, or of all that the visitor sees; none if the store fails."""
    names = [name for name in context.config.tenants if visitor.sees(name) and tenant in (None, name)]
    callers = [caller for name in names if (caller := context.active().tenants.operator_of(name)) is not None]
    look = context.engine.sessions.newest_records
    try:
        records_by_caller = await asyncio.gather(*(look(caller, most) for caller in callers))
    except StoreError:
        return []
    sessions = [(caller, *each) for caller, listed in zip(callers, records_by_caller, strict=True) for each in listed]
    return [event for caller, session, records in sessions for event in compactions_of(caller, session, records)]


async def unknown(context: AdminContext, caller: Caller, name: str, label: str) -> ProxyError:
    """Return the error for a session that does not exist."""
    was_erased = await context.engine.sessions.was_erased(caller, name[:ID_DIGITS], label)
    return ErasedError() if was_erased else NotFoundError("No session has this id and label.")


async def history_view(
    context: AdminContext, caller: Caller, name: str, label: str | None
) -> tuple[HistoryView | None, Session | None]:
    """Return a session's history and its stored session; None for each that does not exist."""
    histories = context.histories.of(caller.tenant, name[:ID_DIGITS])
    history = next((each for each in histories if label in (None, each.key.label)), None)
    stored = await stored_session(context, caller, name, history.key.label if history else label)
    id_, stored_label = (stored.id, stored.label) if stored else (name, label or "")
    key = history.key if history else Key(caller.tenant, id_[:ID_DIGITS], stored_label)
    listed = name_in_requests(caller, stored) if stored else None
    return await context.stored_histories.view(key, history, listed), stored


def name_in_requests(caller: Caller, session: Session) -> bytes:
    """Return a session's name in its requests (`Chain.session`)."""
    return bytes.fromhex(session.id) + mark_of(caller.labels, session.label)


async def stored_session(context: AdminContext, caller: Caller, name: str, label: str | None) -> Session | None:
    """Return a stored session, without a label the last used one; None also if the store does not respond."""
    try:
        return await context.engine.sessions.find(caller, name, label)
    except StoreError:
        return None


async def _exported(context: AdminContext, caller: Caller, session: Session | None) -> records.Exported | None:
    if session is None:
        return None
    name, secrets = name_in_requests(caller, session), caller.policy.secrets
    return await records.export_session(context.engine.sessions, session, name, secrets)


async def record_rows(
    context: AdminContext, caller: Caller, name: str, label: str | None
) -> tuple[list[records.RecordRow], Lineage | None]:
    """Return the records of a session, the newest first, and the lineage of its compactions."""
    exported = await _exported(context, caller, await stored_session(context, caller, name, label))
    return (exported.rows, exported.lineage) if exported else ([], None)


async def record_view(
    context: AdminContext, caller: Caller, name: str, label: str | None, digest: str, against: str | None
) -> records.View:
    """Return a record compared with another one of its session, by default the one that it continues.

    Raises NotFoundError.
    """
    exported = await _exported(context, caller, await stored_session(context, caller, name, label))
    stored_records = exported.records if exported else []
    record = next((each for each in stored_records if each.digest == digest), None)
    if exported is None or record is None:
        raise NotFoundError("The session has no such record. It was erased, or has expired.")
    other = next((each for each in stored_records if each.digest == (against or record.parent)), None)
    view = partial(records.view_of, record, other, is_undone=digest in exported.undone)
    return await context.engine.workers.run(view)
