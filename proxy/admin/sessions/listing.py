"""The list of sessions: those that this process saw and those that the store keeps, a row each."""

from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec

from proxy.observing import figures
from proxy.observing.session_trails import Key, Newest, SessionTrail, TrailView
from proxy.records.index import Session

State = Literal["fits", "compacted", "near", "irreducible", "failing"]
STATES: tuple[State, ...] = ("fits", "compacted", "near", "irreducible", "failing")
_PAGE = 50
# Of a conversation's id, as headers and the log show it.
ID_DIGITS = 16


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A session in a list. seen: Unix seconds. used: share of the usable window that its newest request took.

    requests, net, used: of this process; None where it saw none. stored: whether the store has something of it.
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
    stored: bool = False

    @property
    def key(self) -> Key:
        return Key(self.tenant, self.id, self.label)


class Wishes(NamedTuple):
    """Which sessions are wanted: of a tenant, with `q` in label, id or model, of one state, behind the cursor of a
    listing; empty for all."""

    tenant: str = ""
    q: str = ""
    state: str = ""
    cursor: str = ""


class Listing(msgspec.Struct, frozen=True):
    """A page of sessions, the last used first. cursor: asks for the next page; None on the last one.

    store: whether the store could say which sessions it knows.
    """

    sessions: list[Row]
    cursor: str | None
    store: bool = True


def listing(trails: Iterable[SessionTrail], stored: Iterable[tuple[str, Session]], wishes: Wishes) -> Listing:
    """A page of these. stored: tenants and what the store has of them."""
    rows = {row.key: row for row in (row_of_stored(tenant, session) for tenant, session in stored)}
    for trail in trails:
        rows[trail.key] = row_of(trail, is_stored=trail.key in rows)
    wanted = [row for row in rows.values() if _fits(row, wishes.q.lower()) and wishes.state in ("", row.state)]
    ordered = sorted(wanted, key=cursor_of)
    behind = [row for row in ordered if cursor_of(row) > wishes.cursor]
    page = behind[:_PAGE]
    return Listing(page, cursor_of(page[-1]) if len(behind) > len(page) else None)


def cursor_of(row: Row) -> str:
    """A place in the list, newest first, that holds though others are used meanwhile."""
    return f"{10**10 - row.seen:015.3f}-{row.tenant}-{row.id}-{row.label}"


def _fits(row: Row, query: str) -> bool:
    return any(query in text.lower() for text in (row.label, row.id, row.model or ""))


def row_of_stored(tenant: str, session: Session) -> Row:
    return Row(
        tenant=tenant,
        id=session.id[:ID_DIGITS],
        label=session.label,
        model=session.model,
        seen=session.seen,
        state="compacted" if session.record else "fits",
        compactions=session.generation,
        stored=True,
    )


def row_of(trail: SessionTrail | TrailView, *, is_stored: bool = False) -> Row:
    newest, tally = trail.newest, trail.tally
    return Row(
        tenant=trail.key.tenant,
        id=trail.key.id,
        label=trail.key.label,
        model=newest.model,
        seen=newest.at,
        state=state_of(newest),
        requests=tally.requests,
        used=figures.fill(newest),
        compactions=trail.made,
        net=figures.net(tally),
        stored=is_stored,
    )


def state_of(newest: Newest) -> State:
    if newest.status >= 400 or newest.outcome == "failed-open":
        return "failing"
    if newest.reason == "irreducible":
        return "irreducible"
    if figures.is_near(newest):
        return "near"
    return "compacted" if newest.checkpoint else "fits"
