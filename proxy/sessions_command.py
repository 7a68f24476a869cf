"""`concertina sessions`: which conversations have something stored, and their erasure, in the config's store."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

from proxy.config import Config
from proxy.erasures import Erasures
from proxy.session_index import Session, SessionIndex
from proxy.stores import Sealer, StoreError, open_store
from proxy.tenants import Caller

_SHOWN = 16


async def listed(config: Config, caller: Caller) -> list[Session]:
    """A tenant's conversations, the last used first; raises StoreError."""
    async with _index(config) as index:
        return await index.of(caller.index)


async def erase(config: Config, caller: Caller, names: Sequence[str], *, all_of_them: bool) -> list[Session]:
    """Those that were erased: of these names, or all of a tenant; raises StoreError, and then some may be left."""
    async with _index(config) as index:
        if all_of_them:
            found = await index.of(caller.index)
        else:
            found = [s for name in names for s in await index.named(caller.index, name)]
        await index.erase(caller.index, found)
        return found


@asynccontextmanager
async def _index(config: Config) -> AsyncIterator[SessionIndex]:
    if config.store.url.startswith("memory:"):
        raise StoreError(
            "store.url: memory:// lies inside the running proxy; ask that at /admin/api/sessions (docs/operations.md)"
        )
    store = open_store(config.store.url, config.store.timeout)
    try:
        sealer = Sealer(config.store.encryption_key_bytes, config.store.retired_key_bytes)
        erasures = Erasures(store, config.store.ttl, time.monotonic)
        yield SessionIndex(store, sealer, config.store.ttl, erasures, time.time)
    finally:
        await store.close()


def show(sessions: Sequence[Session], console: Console) -> None:
    """One line a conversation."""
    table = Table(box=None, pad_edge=False)
    for heading in ("ID", "LAST USED", "MODEL"):
        table.add_column(heading)
    for heading in ("COVERED", "GENERATION"):
        table.add_column(heading, justify="right")
    table.add_column("LABEL")
    for session in sessions:
        seen = datetime.fromtimestamp(session.seen, UTC).isoformat(" ", "minutes").removesuffix("+00:00")
        counts = (str(session.covered), str(session.generation))
        table.add_row(session.id[:_SHOWN], seen, session.model, *counts, session.label)
    console.print(table)
