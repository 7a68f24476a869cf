"""`concertina sessions`: list, find and erase the stored conversations of a tenant through the admin API."""

from collections.abc import Iterable, Sequence
from contextlib import suppress

import msgspec
from rich.console import Console
from rich.table import Table

from proxy.admin.endpoints import find_endpoint
from proxy.cli.admin_client import AdminClient, AdminError
from proxy.cli.common import fail, moment, plain, print_table
from proxy.sessions.index import Session

SHOWN = 16
_PAGE = 200


class _Page(msgspec.Struct):
    sessions: list[Session]
    cursor: str | None


class _Erased(msgspec.Struct):
    erased: list[str]


class _Undone(msgspec.Struct):
    undone: str
    in_use: str | None


def list_sessions(client: AdminClient, name: str = "") -> list[Session]:
    """Return a tenant's conversations, the last used first. Raises AdminError.

    name: a label, or at least eight digits at the beginning of an id.
    """
    sessions: dict[tuple[str, str], Session] = {}
    cursor: str | None = ""
    while cursor is not None:
        query = {"name": name, "limit": str(_PAGE), "cursor": cursor}
        page = client.call(find_endpoint("sessions"), _Page, query)
        sessions |= {(session.id, session.label): session for session in page.sessions}
        cursor = page.cursor
    return sorted(sessions.values(), key=lambda session: -session.seen)


def other_tenants(client: AdminClient, tenants: Iterable[str]) -> list[str]:
    """Return those of these tenants that have sessions, except the client's."""
    names = []
    for tenant in tenants:
        with suppress(AdminError):  # the running proxy does not know the tenant yet
            query = {"tenant": tenant, "limit": "1"}
            if tenant != client.tenant and client.call(find_endpoint("sessions"), _Page, query).sessions:
                names.append(tenant)
    return names


def no_sessions(tenant: str, other_names: Sequence[str]) -> str:
    """Return what to do if a tenant has no sessions.

    other_names: tenants that have some.
    """
    if other_names:
        return f"tenant {tenant} has no sessions; these tenants have some, use --tenant NAME: {', '.join(other_names)}"
    return (
        f"tenant {tenant} has no sessions yet: a conversation is listed when it is long enough for a compaction;"
        " `concertina tail` prints every request"
    )


def find_sessions(client: AdminClient, names: Sequence[str]) -> list[Session]:
    """Return the sessions with these names, or all of the tenant if there are no names. Raises AdminError.

    End the command if no session has a name.
    """
    if not names:
        return list_sessions(client)
    sessions: dict[tuple[str, str], Session] = {}
    for name in names:
        matches = find_named(client, name)
        if not matches:
            fail(f"tenant {client.tenant} has no such session: {name}; `concertina sessions ls` lists them")
        sessions |= {(session.id, session.label): session for session in matches}
    return sorted(sessions.values(), key=lambda session: -session.seen)


def find_named(client: AdminClient, name: str) -> list[Session]:
    """Return the sessions with this label, id or ID:LABEL, the last used first. Raises AdminError.

    Fewer than eight digits of an id are searched among all sessions.
    """
    listed = list_sessions(client, name) or list_sessions(client)
    return [session for session in listed if _is_named(session, name)]


def _is_named(session: Session, name: str) -> bool:
    begin, colon, label = name.partition(":")
    return session.label == name or (session.id.startswith(begin) and (not colon or session.label == label))


def find_session(client: AdminClient, name: str) -> Session:
    """Return the only session with this name. Raises AdminError.

    End the command if no session or several sessions match.
    """
    sessions = find_sessions(client, [name])
    if len(sessions) > 1:
        names = ", ".join(f"{session.id[:SHOWN]}:{session.label}" for session in sessions)
        fail(f"several sessions are called {name}; name one: {names}")
    return sessions[0]


def undo(client: AdminClient, session: Session) -> _Undone:
    """Undo the newest record of a session, and return its digest and the one in use now. Raises AdminError."""
    return client.call(find_endpoint("undo"), _Undone, {"label": session.label}, id=session.id)


def erase(client: AdminClient, name: str) -> list[str]:
    """Erase the sessions with this name, and return their ids; none if no session has it. Raises AdminError."""
    try:
        return client.call(find_endpoint("erase"), _Erased, name=name).erased
    except AdminError as error:
        if error.status != 404:
            raise
        return []


def erase_all(client: AdminClient) -> list[str]:
    """Erase all sessions of the tenant, and return their ids. Raises AdminError."""
    return client.call(find_endpoint("erase_all"), _Erased, {"all": "true"}).erased


def show(sessions: Sequence[Session], console: Console) -> None:
    """Print a row for each session; nothing if there is none."""
    if not sessions:
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("ID", no_wrap=True, min_width=SHOWN)
    for heading in ("LAST USED", "MODEL"):
        table.add_column(heading)
    for heading in ("MESSAGES REPLACED", "RECORDS MADE"):
        table.add_column(heading, justify="right")
    table.add_column("LABEL")
    for session in sessions:
        counts = (str(session.covered), str(session.generation))
        table.add_row(session.id[:SHOWN], moment(session.seen), plain(session.model), *counts, plain(session.label))
    print_table(table, console)
