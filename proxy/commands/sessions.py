"""`concertina sessions`: which conversations have something stored, and their erasure by the running proxy, or here."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain

from rich.console import Console
from rich.table import Table

from policies.record.masking import as_allowed
from policies.record.record import Record
from proxy.callers.tenants import Caller, Tenants
from proxy.commands import running
from proxy.commands.common import fail, plain
from proxy.config.loading import Config
from proxy.memory import Memory
from proxy.records.index import Session, Target
from proxy.records.sessions import Sessions
from proxy.stores import StoreError, file_of, open_existing
from proxy.stores.base import Store

_SHOWN = 16


class NothingStoredError(StoreError):
    """The store is a file that is not there."""


async def list_sessions(config: Config, caller: Caller) -> list[Session]:
    """A tenant's conversations, the last used first; raises StoreError."""
    async with open_sessions(config) as sessions:
        return await sessions.of(caller)


async def other_tenants(config: Config, caller: Caller) -> list[str]:
    """The tenants that have sessions, but for the caller's; raises StoreError."""
    tenants = Tenants(config)
    async with open_sessions(config) as sessions:
        others = [other for name in config.tenants if (other := tenants.operator_of(name)) and name != caller.tenant]
        return [other.tenant for other in others if (await sessions.newest(other, 1)).entries]


@dataclass(frozen=True, slots=True)
class ErasureResult:
    """The result of an erasure.

    ids:      sessions that were erased.
    unknown:  names that no session has.
    by_proxy: the running one, which forgets what it has in memory too; else it was done in the store alone.
    """

    ids: list[str]
    unknown: list[str]
    by_proxy: bool


def erase(config: Config, caller: Caller, names: Sequence[str]) -> ErasureResult:
    """Erase the sessions of these names, or all of the tenant where there are none.

    Raises NotDoneError and StoreError, and then some may be left.
    """
    ids: dict[str | None, list[str]] = {}
    for name in names or (None,):
        erased = running.erase_sessions(config, caller.tenant, name)
        if erased is None and ids:
            raise running.NotDoneError(f"the proxy went away before {name} was erased; try again")
        if erased is None:
            return _erasure_of(asyncio.run(_in_store(config, caller, names)), by_proxy=False)
        ids[name] = erased
    return _erasure_of(ids, by_proxy=True)


def _erasure_of(ids: Mapping[str | None, list[str]], *, by_proxy: bool) -> ErasureResult:
    unknown = [name for name, found in ids.items() if name is not None and not found]
    return ErasureResult(list(dict.fromkeys(chain.from_iterable(ids.values()))), unknown, by_proxy)


async def _in_store(config: Config, caller: Caller, names: Sequence[str]) -> dict[str | None, list[str]]:
    ids: dict[str | None, list[str]] = {}
    async with open_sessions(config) as sessions:
        for name in names or (None,):
            pages = sessions.every(caller) if name is None else sessions.find_targets(caller, name)
            erased = await sessions.erase(caller, pages)
            if not erased.is_complete:
                raise StoreError("the store could not erase it all; nothing is promised, try again")
            ids[name] = [target.id for target in erased.targets]
    return ids


async def records(config: Config, caller: Caller, name: str | None) -> list[tuple[Session, Record]]:
    """The newest record of each of a tenant's conversations, the last used first, or of those with this label or whose
    id begins so; raises StoreError."""
    async with open_sessions(config) as sessions:
        found = await (sessions.of(caller) if name is None else find_sessions(sessions, caller, name))
        wanted = [session for session in found if session.record is not None]
        read = [await sessions.checkpoints.lying_at(*one.record) for one in wanted if one.record]
    secrets = caller.policy.secrets
    return [(one, as_allowed(record, secrets)) for one, record in zip(wanted, read, strict=True) if record is not None]


async def find_sessions(sessions: Sessions, caller: Caller, name: str) -> list[Session]:
    """Return the sessions of a tenant with this label, or whose id this is or begins so, or the one that is ID:LABEL;
    the last used first. Fewer than eight digits of an id are searched among all sessions. Raises StoreError."""
    targets: dict[Target, None] = {}
    async for page in sessions.find_sessions(caller, name):
        targets |= dict.fromkeys(page)
    if found := await sessions.look_up(targets):
        return found
    return [session for session in await sessions.of(caller) if _is_called(session, name)]


def _is_called(session: Session, name: str) -> bool:
    begin, colon, label = name.partition(":")
    return session.id.startswith(begin) and (not colon or session.label == label)


async def sessions_called(config: Config, caller: Caller, names: Sequence[str]) -> list[Session]:
    """Return the sessions of these names, or all of the tenant if there are none; end the command if a name has no
    session. Raises StoreError."""
    async with open_sessions(config) as sessions:
        if not names:
            return await sessions.of(caller)
        found: dict[tuple[str, str], Session] = {}
        for name in names:
            called = await find_sessions(sessions, caller, name)
            if not called:
                fail(f"tenant {caller.tenant} has no such session: {name}; `concertina sessions ls` lists them")
            found |= {(session.id, session.label): session for session in called}
    return sorted(found.values(), key=lambda session: -session.seen)


async def one_of(config: Config, caller: Caller, name: str) -> Session:
    """Return the only session of this name; end the command if there is none, or several. Raises StoreError."""
    found = await sessions_called(config, caller, [name])
    if len(found) > 1:
        names = ", ".join(f"{session.id[:_SHOWN]}:{session.label}" for session in found)
        fail(f"several sessions are called {name}; name one: {names}")
    return found[0]


@asynccontextmanager
async def open_sessions(config: Config) -> AsyncIterator[Sessions]:
    """What the store has of sessions; raises StoreError."""
    async with open_stored(config) as store:
        yield Sessions(config.store.seal(store), Memory())


@asynccontextmanager
async def open_stored(config: Config) -> AsyncIterator[Store]:
    """The store, which is not made; raises StoreError."""
    if config.store.url.startswith("memory:"):
        raise StoreError(
            "store.url: memory:// lies inside the running proxy; ask that at /admin/api/sessions (docs/operations.md)"
        )
    store = open_existing(config.store.url, config.store.timeout, config.store.prefix)
    if store is None:
        raise NothingStoredError(f"nothing is stored: {file_of(config.store.url)} does not exist")
    try:
        yield store
    finally:
        await store.close()


def show(sessions: Sequence[Session], console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("ID", no_wrap=True, min_width=_SHOWN)
    for heading in ("LAST USED", "MODEL"):
        table.add_column(heading)
    for heading in ("COVERED", "GENERATION"):
        table.add_column(heading, justify="right")
    table.add_column("LABEL")
    for session in sessions:
        counts = (str(session.covered), str(session.generation))
        table.add_row(session.id[:_SHOWN], moment(session.seen), plain(session.model), *counts, plain(session.label))
    console.print(table)


def moment(seconds: float) -> str:
    """A time in UTC, to the minute."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "minutes").removesuffix("+00:00")
