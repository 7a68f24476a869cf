"""The config's store, for commands that read it without a proxy."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proxy.config.loading import Config
from proxy.memory import Memory
from proxy.sessions.sessions import Sessions
from proxy.sessions.stores import StoreError, file_of, open_existing
from proxy.sessions.stores.base import OpenedStore


class NothingStoredError(StoreError):
    """The store is a file that does not exist."""


@asynccontextmanager
async def open_sessions(config: Config) -> AsyncIterator[Sessions]:
    """Open the stored sessions. Raises StoreError."""
    async with open_stored(config) as store:
        yield Sessions(config.store.seal(store), Memory())


@asynccontextmanager
async def open_stored(config: Config) -> AsyncIterator[OpenedStore]:
    """Open the store, and create none. Raises StoreError."""
    if config.store.url.startswith("memory:"):
        raise StoreError(
            "store.url: memory:// is inside the running proxy; use its /admin/api/sessions (docs/sessions.md)"
        )
    store = open_existing(config.store.url, config.store.timeout, config.store.prefix)
    if store is None:
        raise NothingStoredError(
            f"nothing is stored: {file_of(config.store.url)} does not exist; `concertina serve` creates it"
        )
    try:
        yield store
    finally:
        await store.close()
