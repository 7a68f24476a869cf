"""What the store and this process know of sessions, looked up for those who may see it; and erasing."""

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import TypeVar

from policies.chain import mark_of
from proxy.admin.access import Visitor
from proxy.admin.opened import Opened
from proxy.admin.sessions import details, listing, records
from proxy.admin.sessions.details import SessionView
from proxy.admin.sessions.listing import ID_DIGITS, Listing, Wishes
from proxy.callers.tenants import Caller
from proxy.errors import NotFoundError, StoreUnavailableError
from proxy.observing.events import AdminActed
from proxy.observing.session_trails import Key, TrailView
from proxy.records.index import Session, Target
from proxy.stores import StoreError

_T = TypeVar("_T")
UNKNOWN = "No session is known by this id and label: it was erased, or has expired."


async def answered(look: Awaitable[_T]) -> _T:
    """What the store says of its sessions; raises StoreUnavailableError where it says nothing."""
    try:
        return await look
    except StoreError:
        raise StoreUnavailableError(
            "The store could not say which sessions there are; none was erased. Try again."
        ) from None


async def list_sessions(opened: Opened, visitor: Visitor, wishes: Wishes) -> Listing:
    """A page of the sessions of one tenant, or of all that the visitor sees."""
    names = [name for name in opened.config.tenants if visitor.sees(name) and wishes.tenant in ("", name)]
    trails = [trail for trail in opened.trails.newest() if trail.key.tenant in names]
    stored, is_answered = await _stored(opened, names)
    found = listing.listing(trails, stored, wishes)
    return found if is_answered else Listing(found.sessions, found.cursor, store=False)


async def _stored(opened: Opened, tenants: Sequence[str]) -> tuple[list[tuple[str, Session]], bool]:
    """What the store has of these tenants, and whether it could say."""
    found: list[tuple[str, Session]] = []
    for name in tenants:
        caller = opened.active().tenants.named(name)
        try:
            found += [(name, session) for session in await opened.engine.sessions.of(caller)] if caller else []
        except StoreError:
            return found, False
    return found, True


async def session_view(opened: Opened, caller: Caller, name: str, label: str | None) -> SessionView:
    """The session of this conversation and label; without a label the one that was used last. Raises NotFoundError."""
    trail, stored = await trail_view(opened, caller, name, label)
    if trail is not None:
        others = [each.key.label for each in opened.trails.of(caller.tenant, name) if each.key != trail.key]
        return details.view(trail, opened.trails.prompt(trail.key), is_stored=stored is not None, labels=others)
    if stored is None:
        raise NotFoundError(UNKNOWN)
    return details.view_of_stored(caller.tenant, stored)


async def trail_view(
    opened: Opened, caller: Caller, name: str, label: str | None
) -> tuple[TrailView | None, Session | None]:
    """The same session's trail, and what else the store has of it; None each where there is none."""
    trails = [trail for trail in opened.trails.of(caller.tenant, name) if label in (None, trail.key.label)]
    trail = trails[0] if trails else None
    key = trail.key if trail else Key(caller.tenant, name, label or "")
    stored = await stored_session(opened, caller, name, key.label)
    listed = bytes.fromhex(stored.id) + mark_of(caller.labels, key.label) if stored else None
    if opened.kept_trails is None:
        return (None if trail is None else trail.view), stored
    return await opened.kept_trails.view(key, trail, listed), stored


async def stored_session(opened: Opened, caller: Caller, name: str, label: str) -> Session | None:
    """What the store has of a session; None also where it does not answer."""
    try:
        return await opened.engine.sessions.find(caller, name, label)
    except StoreError:
        return None


async def record_rows(opened: Opened, caller: Caller, name: str, label: str) -> list[records.Row]:
    """The records of a session, the newest first."""
    session = await stored_session(opened, caller, name, label)
    return [records.row_of(record) for record in await records.lineage(opened.engine.checkpoints, session)]


async def record_view(
    opened: Opened, caller: Caller, name: str, label: str, digest: str, against: str | None
) -> records.View:
    """One record beside another of its session: unsaid, the one that it continues. Raises NotFoundError."""
    session = await stored_session(opened, caller, name, label)
    found = await records.lineage(opened.engine.checkpoints, session)
    record = next((each for each in found if each.digest == digest), None)
    if record is None:
        raise NotFoundError("The session has no such record: it was erased, or has expired.")
    other = next((each for each in found if each.digest == (against or record.parent)), None)
    return await opened.engine.workers.run(records.view_of, record, other)


async def erase_named(opened: Opened, visitor: Visitor, caller: Caller, name: str) -> list[Target]:
    """Erase the sessions that this label or id names (`SessionIndex.named`), everywhere. Raises NotFoundError where
    there is none, and StoreUnavailableError."""
    found = await answered(opened.engine.sessions.named(caller, name))
    if not found:
        raise NotFoundError("No session of this tenant has this label or id; GET /admin/api/sessions lists them.")
    return await erase(opened, visitor, caller, found)


async def erase(opened: Opened, visitor: Visitor, caller: Caller, found: Sequence[Target]) -> list[Target]:
    """Erase these, and what this process saw of them."""
    erased = await opened.engine.sessions.erase(caller, found)
    for target in found[:erased]:
        opened.trails.forget(caller.tenant, target.id[:ID_DIGITS], partial(_is_named, caller, target))
        opened.recent.forget(caller.tenant, target.id[:ID_DIGITS], partial(_is_named, caller, target))
        opened.engine.observe(AdminActed(visitor.role, "session_erased", caller.tenant, target.id[:ID_DIGITS]))
    if erased < len(found):
        raise StoreUnavailableError("The store could not erase it; nothing is promised. Try again.")
    return [*found]


def _is_named(caller: Caller, target: Target, label: str) -> bool:
    """Whether a session of the target's conversation with this label is meant."""
    return target.mark is None or target.mark == mark_of(caller.labels, label)
