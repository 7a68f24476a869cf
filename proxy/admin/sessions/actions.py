"""Actions on sessions: compact next, undo, export and erase. Each emits an event."""

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from functools import partial

from policies.conversation.prefix_digests import mark_of
from policies.record.record import Record
from proxy.admin.access import Visitor, hidden
from proxy.admin.context import AdminContext
from proxy.admin.sessions import records
from proxy.admin.sessions.asking import ask_store, name_in_requests, stored_session, unknown
from proxy.admin.sessions.listing import ID_DIGITS
from proxy.admin.sessions.records import Exported
from proxy.callers.tenants import Caller
from proxy.errors import NotFoundError, NothingToUndoError, StoreUnavailableError
from proxy.sessions.index import Target
from proxy.sessions.kept_requests import ErasedSessions
from proxy.telemetry.events import note


async def compact_next(context: AdminContext, visitor: Visitor, caller: Caller, name: str, label: str | None) -> None:
    """Compact a session with its next request, on any replica.

    Raises NotFoundError, ErasedError and StoreUnavailableError.
    """
    session = await ask_store(context.engine.sessions.find(caller, name, label))
    if session is None:
        raise await unknown(context, caller, name, label or "")
    await context.engine.sessions.manual.ask(name_in_requests(caller, session))
    if not context.store.available:
        raise StoreUnavailableError("The store did not respond, so this may be lost. Try again.")
    context.engine.observe(note("admin", caller.tenant, name[:ID_DIGITS], who=visitor.role, what="compaction_asked"))


async def undo(context: AdminContext, visitor: Visitor, caller: Caller, name: str, label: str | None) -> Record:
    """Undo the newest record of a session for all replicas, and return the record.

    Raises NotFoundError, ErasedError, NothingToUndoError and StoreUnavailableError.
    """
    session = await ask_store(context.engine.sessions.find(caller, name, label))
    if session is None:
        raise await unknown(context, caller, name, label or "")
    record = await context.engine.sessions.undo(name_in_requests(caller, session), session)
    if not context.store.available:
        raise StoreUnavailableError("The store did not respond, so this may be lost. Try again.")
    if record is None:
        raise NothingToUndoError()
    context.engine.observe(note("admin", caller.tenant, name[:ID_DIGITS], who=visitor.role, what="record_undone"))
    return record


async def is_compacted_next(context: AdminContext, caller: Caller, name: str, label: str | None) -> bool:
    """Return True if a compaction was requested, and no request has arrived since."""
    manual = context.engine.sessions.manual
    if not manual.asked:
        return False
    session = await stored_session(context, caller, name, label)
    return session is not None and name_in_requests(caller, session) in manual.asked


async def export(
    context: AdminContext, visitor: Visitor, caller: Caller, name: str, label: str | None, *, is_shown: bool
) -> Exported:
    """Return everything that the store has of a session, with record texts only if they are shown.

    Raises NotFoundError, ErasedError and StoreUnavailableError.
    """
    session = await ask_store(context.engine.sessions.find(caller, name, label))
    if session is None:
        raise await unknown(context, caller, name, label or "")
    name_of_requests = name_in_requests(caller, session)
    exported = await records.export_session(context.engine.sessions, session, name_of_requests, caller.policy.secrets)
    if not context.store.available:
        raise StoreUnavailableError("The store could not be read; an export would be incomplete. Try again.")
    if not is_shown:
        silent = [records.without_content(record) for record in exported.records]
        return Exported(session, silent, exported.lineage, hidden(caller.tenant), exported.undone)
    context.engine.observe(note("admin", caller.tenant, name[:ID_DIGITS], who=visitor.role, what="session_exported"))
    return exported


async def erase_named(context: AdminContext, visitor: Visitor, caller: Caller, name: str) -> list[Target]:
    """Erase the sessions with this label or id (`Sessions.find_targets`) everywhere.

    A viewer erases the sessions that are listed for its tenant. An operator erases those that no other tenant lists.
    Raises NotFoundError and StoreUnavailableError.
    """
    targets = context.engine.sessions.find_targets(caller, name, may_be_unlisted=visitor.tenant is None)
    erased = await erase(context, visitor, caller, _drop_foreign_sessions(context, caller, targets))
    if not erased:
        raise NotFoundError("No session of this tenant has this label or id; GET /admin/api/sessions lists them.")
    return erased


async def _drop_foreign_sessions(
    context: AdminContext, caller: Caller, pages: AsyncIterable[Sequence[Target]]
) -> AsyncIterator[list[Target]]:
    """Yield the targets except whole conversations that are listed only for another tenant."""
    async for page in pages:
        yield [
            target for target in page if target.mark is not None or not await _is_of_another(context, caller, target)
        ]


async def _is_of_another(context: AdminContext, caller: Caller, target: Target) -> bool:
    """Return True if a conversation is listed for another tenant, and not for the caller's."""
    sessions = context.engine.sessions
    if await sessions.has_conversation(caller, target.first):
        return False
    names = [name for name in context.config.tenants if name != caller.tenant]
    other_callers = [other for name in names if (other := context.active().tenants.operator_of(name)) is not None]
    return any([await sessions.has_conversation(other, target.first) for other in other_callers])


async def erase(
    context: AdminContext, visitor: Visitor, caller: Caller, pages: AsyncIterable[Sequence[Target]]
) -> list[Target]:
    """Erase sessions in the store and in this process's memory. Raises StoreUnavailableError."""
    erased = await ask_store(context.engine.sessions.erase(caller, pages))
    in_memory = (context.histories, context.recent, context.engine.sent_prompts, context.engine.upstream_failures)
    for target in erased.targets:
        for memory in in_memory:
            memory.forget(caller.tenant, target.id[:ID_DIGITS], partial(_is_named, caller, target))
        context.engine.observe(
            note("admin", caller.tenant, target.id[:ID_DIGITS], who=visitor.role, what="session_erased")
        )
    if erased.targets:
        await context.requests.forget(_erased_sessions(caller, erased.targets))
    if not erased.is_complete:
        raise StoreUnavailableError("The store did not respond, so some sessions may not be erased. Try again.")
    return erased.targets


def _erased_sessions(caller: Caller, targets: Sequence[Target]) -> ErasedSessions:
    """Return the sessions of these targets, as requests name them."""
    marks: dict[str, set[bytes | None]] = {}
    for target in targets:
        marks.setdefault(target.id[:ID_DIGITS], set()).add(target.mark)

    def is_erased(session: str, label: str) -> bool:
        erased = marks.get(session)
        return erased is not None and (None in erased or mark_of(caller.labels, label) in erased)

    return ErasedSessions(caller.tenant, is_erased)


def _is_named(caller: Caller, target: Target, label: str) -> bool:
    """Return True if a target includes its conversation's session with this label."""
    return target.mark is None or target.mark == mark_of(caller.labels, label)
