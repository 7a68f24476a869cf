"""The list of sessions, from this process and the store, one row each."""

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
"""The filter for sessions that failed within a day, whatever their state is now."""
PAGE = 50
# The digits of a conversation's id in headers and in the log.
ID_DIGITS = 16


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A session in a list.

    seen: the last use in Unix seconds. used: the share of the usable window in its newest request. requests, net, used,
    cost, saved, kept_alive: of all replicas, as in `Savings`; None if no request is known. stored: True if the store
    has it. failed: the last failure that this process saw, in Unix seconds.
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
        """Return the session's key."""
        return Key(self.tenant, self.id, self.label)


class Wishes(NamedTuple):
    """A filter of sessions. Empty fields match everything.

    q: in label, model or tenant, or at the beginning of the id. state: a state or `FAILED`. cursor: of the previous
    page.
    """

    tenant: str = ""
    q: str = ""
    state: str = ""
    cursor: str = ""


class Listing(msgspec.Struct, frozen=True):
    """A page of sessions, the last used first.

    cursor: for the next page; None on the last one. looked: the number of sessions searched for this page and those
    before it. store: True if the store responded. requests: those whose id begins with the query.
    """

    sessions: list[SessionRow]
    cursor: str | None
    looked: int = 0
    store: bool = True
    requests: list[RequestEnded] = []


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """The end of a page.

    place: of the last session from this process. members: the last stored session by tenant. looked: the number of
    sessions up to there.
    """

    place: str = ""
    members: dict[str, Member] = {}
    looked: int = 0

    @property
    def text(self) -> str:
        """Return the cursor as text for a query."""
        return urlsafe_b64encode(msgspec.msgpack.encode(self)).decode().rstrip("=")


def cursor_of(text: str) -> Cursor:
    """Parse a cursor; the beginning for an empty text. Raises InvalidRequestError."""
    if not text:
        return Cursor()
    try:
        cursor = msgspec.msgpack.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=Cursor)
    except (ValueError, msgspec.DecodeError):
        cursor = None
    if cursor is None or not all(isfinite(member.expires) for member in cursor.members.values()):
        raise InvalidRequestError("cursor must be the value from the previous page.", param="cursor")
    return cursor


class _Next(NamedTuple):
    """A candidate for the next row, and the end of the page if it is the last.

    Without a row, the session is unknown. Without row and member, the store has more sessions.
    """

    place: str
    row: SessionRow | None
    tenant: str = ""
    member: Member | None = None


def listing(
    histories: Iterable[SessionHistory], stored: Iterable[tuple[str, SessionsPage]], wishes: Wishes, most: int = PAGE
) -> Listing:
    """Merge a page of sessions from this process and, after the cursor, from the store.

    If `FAILED` is wanted, all given sessions have failed.
    """
    cursor, stored = cursor_of(wishes.cursor), [*stored]
    listed = {row_of_stored(tenant, each).key for tenant, page in stored for _, each in page.entries if each}
    rows = [row_of(each, is_stored=each.place is not None or each.key in listed) for each in histories]
    row_keys = {row.key for row in rows}
    candidates = sorted(_Next(_place_of(row), row) for row in rows if _place_of(row) > cursor.place)
    place, members, looked, shown = cursor.place, {**cursor.members}, cursor.looked, list[SessionRow]()
    for each in merge(
        candidates, *(_stored_sessions(tenant, page) for tenant, page in stored), key=lambda each: each.place
    ):
        if (each.row is None and each.member is None) or len(shown) == most:
            return Listing(shown, Cursor(place, members, looked).text, looked)
        if each.member is None:
            place = each.place
        else:
            members[each.tenant] = each.member
        if each.row is None or (each.member is not None and each.row.key in row_keys):
            continue
        looked += 1
        if _fits(each.row, wishes.q.lower()) and wishes.state in ("", FAILED, each.row.state):
            shown.append(each.row)
    return Listing(shown, None, looked)


def _stored_sessions(tenant: str, page: SessionsPage) -> Iterator[_Next]:
    """Yield a tenant's stored sessions in their order."""
    end = ""
    for member, session in page.entries:
        row = None if session is None else row_of_stored(tenant, session)
        end = end if row is None else _place_of(row)
        yield _Next(end, row, tenant, member)
    if not page.is_last:
        yield _Next(end, None)


def _place_of(row: SessionRow) -> str:
    """Return the sort key of a row, the last used first. It stays valid while other sessions are used."""
    return f"{10**10 - row.seen:015.3f}-{row.tenant}-{row.id}-{row.label}"


def _fits(row: SessionRow, query: str) -> bool:
    is_named = row.id.startswith(query) or (len(query) > ID_DIGITS and query.startswith(row.id))
    return is_named or any(query in text.lower() for text in (row.label, row.model or "", row.tenant))


def row_of_stored(tenant: str, session: Session) -> SessionRow:
    """Return the row of a stored session."""
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


def with_figures(row: SessionRow, session_figures: SessionFigures) -> SessionRow:
    """Return a row with the figures of all replicas."""
    figures_row = row_of(session_figures)
    return structs.replace(
        row,
        seen=max(row.seen, figures_row.seen),
        requests=figures_row.requests,
        used=figures_row.used,
        net=figures_row.net,
        cost=figures_row.cost,
        saved=figures_row.saved,
        kept_alive=figures_row.kept_alive,
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
    """Return the state of a session by its newest request."""
    if newest.status >= 400 or newest.outcome == "failed-open":
        return "failing"
    if newest.reason == "irreducible":
        return "irreducible"
    if figures.is_near(newest):
        return "near"
    return "compacted" if newest.checkpoint else "fits"
