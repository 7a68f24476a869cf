"""The list of sessions: those that this process saw and those that the store keeps, a row each."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator
from heapq import merge
from math import isfinite
from typing import Literal, NamedTuple

import msgspec
from msgspec import structs

from proxy.errors import InvalidRequestError
from proxy.sessions.index import Session, SessionsPage
from proxy.sessions.stores.base import Member
from proxy.telemetry import figures
from proxy.telemetry.events import RequestEnded
from proxy.telemetry.session_history import HistoryView, Key, Newest, SessionFigures, SessionHistory

State = Literal["fits", "compacted", "near", "irreducible", "failing"]
STATES: tuple[State, ...] = ("fits", "compacted", "near", "irreducible", "failing")
FAILED = "failed"
"""Asks for sessions that failed within a day, whatever their state is now."""
PAGE = 50
# Of a conversation's id, as headers and the log show it.
ID_DIGITS = 16


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A session in a list. seen: Unix seconds. used: share of the usable window that its newest request took.

    requests, net, used, cost, saved, kept_alive: of all replicas, as in `Savings`; None if none of them is known.
    stored: whether the store has something of it. failed:
    when a request of it failed last that this process saw.
    """

    tenant: str
    id: str
    label: str
    model: str | None
    seen: float
    state: State
    requests: int | None = None
    used: float | None = None
    compactions: int | None = None
    net: int | None = None
    cost: float | None = None
    saved: float | None = None
    kept_alive: int | None = None
    stored: bool = False
    failed: float | None = None

    @property
    def key(self) -> Key:
        return Key(self.tenant, self.id, self.label)


class Wishes(NamedTuple):
    """Which sessions are wanted: of a tenant, with `q` in label, model or tenant, or at the beginning of the id, of one
    state or `FAILED`, behind the cursor of a listing; empty for all."""

    tenant: str = ""
    q: str = ""
    state: str = ""
    cursor: str = ""


class Listing(msgspec.Struct, frozen=True):
    """A page of sessions, the last used first. cursor: asks for the next page; None on the last one.

    looked: sessions that were looked at, for this page and those before it. store: whether the store could say which
    ones it knows. requests: those whose id begins as it was searched for.
    """

    sessions: list[SessionRow]
    cursor: str | None
    looked: int = 0
    store: bool = True
    requests: list[RequestEnded] = []


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """Where a page ended. place: of the last session that was seen here; members: of tenants, of the last that the
    store told; looked: sessions until there."""

    place: str = ""
    members: dict[str, Member] = {}
    looked: int = 0

    @property
    def text(self) -> str:
        return urlsafe_b64encode(msgspec.msgpack.encode(self)).decode().rstrip("=")


def cursor_of(text: str) -> Cursor:
    """What a page told, read again; the beginning for no text. Raises InvalidRequestError."""
    if not text:
        return Cursor()
    try:
        found = msgspec.msgpack.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=Cursor)
    except (ValueError, msgspec.DecodeError):
        found = None
    if found is None or not all(isfinite(member.expires) for member in found.members.values()):
        raise InvalidRequestError("A cursor is what a page before has told.", param="cursor")
    return found


class _Next(NamedTuple):
    """A session that may be listed next, and where the page ended if it is the last. Without a row nothing is known of
    it; without a member too, the store has more."""

    place: str
    row: SessionRow | None
    tenant: str = ""
    member: Member | None = None


def listing(
    histories: Iterable[SessionHistory], stored: Iterable[tuple[str, SessionsPage]], wishes: Wishes, most: int = PAGE
) -> Listing:
    """A page of these: of tenants what this process saw, and what the store has behind the cursor. Where `FAILED` are
    wished, all of them have."""
    cursor, stored = cursor_of(wishes.cursor), [*stored]
    listed = {row_of_stored(tenant, each).key for tenant, page in stored for _, each in page.entries if each}
    rows = [row_of(each, is_stored=each.place is not None or each.key in listed) for each in histories]
    seen = {row.key for row in rows}
    here = sorted(_Next(_place_of(row), row) for row in rows if _place_of(row) > cursor.place)
    place, members, looked, shown = cursor.place, {**cursor.members}, cursor.looked, list[SessionRow]()
    for each in merge(here, *(_stored_sessions(tenant, page) for tenant, page in stored), key=lambda each: each.place):
        if (each.row is None and each.member is None) or len(shown) == most:
            return Listing(shown, Cursor(place, members, looked).text, looked)
        if each.member is None:
            place = each.place
        else:
            members[each.tenant] = each.member
        if each.row is None or (each.member is not None and each.row.key in seen):
            continue
        looked += 1
        if _fits(each.row, wishes.q.lower()) and wishes.state in ("", FAILED, each.row.state):
            shown.append(each.row)
    return Listing(shown, None, looked)


def _stored_sessions(tenant: str, page: SessionsPage) -> Iterator[_Next]:
    """What the store has of a tenant, in its order."""
    last = ""
    for member, session in page.entries:
        row = None if session is None else row_of_stored(tenant, session)
        last = last if row is None else _place_of(row)
        yield _Next(last, row, tenant, member)
    if not page.is_last:
        yield _Next(last, None)


def _place_of(row: SessionRow) -> str:
    """In the list, the last used first; it holds though others are used meanwhile."""
    return f"{10**10 - row.seen:015.3f}-{row.tenant}-{row.id}-{row.label}"


def _fits(row: SessionRow, query: str) -> bool:
    is_named = row.id.startswith(query) or (len(query) > ID_DIGITS and query.startswith(row.id))
    return is_named or any(query in text.lower() for text in (row.label, row.model or "", row.tenant))


def row_of_stored(tenant: str, session: Session) -> SessionRow:
    return SessionRow(
        tenant=tenant,
        id=session.id[:ID_DIGITS],
        label=session.label,
        model=session.model,
        seen=session.seen,
        state="compacted" if session.record else "fits",
        compactions=session.generation,
        stored=True,
    )


def with_figures(row: SessionRow, seen: SessionFigures) -> SessionRow:
    """Return a row with what all processes saw of the session."""
    known = row_of(seen)
    return structs.replace(
        row,
        seen=max(row.seen, known.seen),
        requests=known.requests,
        used=known.used,
        net=known.net,
        cost=known.cost,
        saved=known.saved,
        kept_alive=known.kept_alive,
    )


def row_of(history: SessionHistory | HistoryView | SessionFigures, *, is_stored: bool = False) -> SessionRow:
    """Return a session's row in a list."""
    newest, sums = history.newest, history.sums
    tally, is_priced = sums.tally, figures.has_price(sums.tally)
    return SessionRow(
        tenant=history.key.tenant,
        id=history.key.id,
        label=history.key.label,
        model=newest.model,
        seen=newest.at,
        state=state_of(newest),
        requests=tally.requests,
        used=figures.fill(newest),
        compactions=sums.records,
        net=figures.net(tally),
        cost=figures.cost_of_answers(tally) + figures.cost_of_summaries(tally) if is_priced else None,
        saved=figures.usd_saved(tally) if is_priced else None,
        kept_alive=tally.kept_alive,
        stored=is_stored,
        failed=history.failed if isinstance(history, SessionHistory) else None,
    )


def state_of(newest: Newest) -> State:
    if newest.status >= 400 or newest.outcome == "failed-open":
        return "failing"
    if newest.reason == "irreducible":
        return "irreducible"
    if figures.is_near(newest):
        return "near"
    return "compacted" if newest.checkpoint else "fits"
