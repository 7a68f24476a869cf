"""`concertina keys`: issue, list and revoke keys of tenants in the store."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

from proxy.admin.words import limits, usd
from proxy.callers import store_secret
from proxy.callers.issued_keys import IssuedKey, KeyLimits, KeyShelf, as_revoked, key_prefix, new_key
from proxy.callers.key_usage import KeyRow, Used, key_rows
from proxy.cli.common import err, fail, moment, plain, print_table
from proxy.cli.stored import NothingStoredError, open_stored
from proxy.config.loading import Config
from proxy.sessions.stores import StoreError, check_file
from proxy.sessions.stores.base import Store

_UNITS = {"h": 3_600, "d": 86_400, "w": 7 * 86_400}
_DURATION = re.compile(r"([1-9][0-9]{0,4})([hdw])")


async def add(config: Config, tenant: str, *, name: str, expires: float | None, limits: KeyLimits) -> tuple[str, str]:
    """Issue a key in the store, and return the secret and the key's id. Raises StoreError.

    A store that is a file is created. End the command if another valid key has this name.
    """
    _refuse_memory(config)
    check_file(config.store.url, config.store.timeout)
    async with open_stored(config) as store:
        now = time.time()
        for key in await _keys_of(config, store, tenant):
            if name and key.name == name and key.why_not(now) is None:
                fail(f"--name {name}: key {key.id} of {tenant} has this name; choose another, or revoke it first")
        prefix = key_prefix(store_secret.secret_in_force(config.store))
        secret, key = new_key(tenant, now, name=name, expires=expires, limits=limits, prefix=prefix)
        await KeyShelf(config.store.seal(store)).put(key)
        return secret, key.id


async def list_issued(config: Config, tenant: str | None) -> list[KeyRow]:
    """Return the keys of a tenant, or of all tenants, the oldest first. Raises StoreError."""
    _refuse_memory(config)
    try:
        async with open_stored(config) as store:
            return await key_rows(store, await _keys_of(config, store, tenant), time.time())
    except NothingStoredError:
        return []


async def revoke(config: Config, tenant: str, name: str) -> IssuedKey:
    """Revoke the key with this id, prefix of an id, or name. Raises StoreError.

    End the command if no key or several keys match.
    """
    _refuse_memory(config)
    async with open_stored(config) as store:
        keys = await _keys_of(config, store, tenant)
        matches = [key for key in keys if key.id.startswith(name) or key.name == name]
        if not matches:
            fail(f"tenant {tenant} has no such key: {name}; `concertina keys list {tenant}` lists them")
        matches = [key for key in matches if key.revoked is None] or matches
        if len(matches) > 1:
            fail(f"several keys are called {name}; name one: {', '.join(key.id for key in matches)}")
        revoked = as_revoked(matches[0], time.time())
        await KeyShelf(config.store.seal(store)).put(revoked)
        return revoked


async def _keys_of(config: Config, store: Store, tenant: str | None) -> list[IssuedKey]:
    shelf = KeyShelf(config.store.seal(store))
    keys = await shelf.every()
    if shelf.unreadable:
        err(f"note: {shelf.unreadable} more keys were evicted, or are sealed with another store.encryption_key")
    return [key for key in keys or () if tenant in (None, key.tenant)]


def expiry(text: str | None, now: float) -> float | None:
    """Return the end of `30d`, `12h`, `2w` or `2027-01-31` in Unix seconds; None for None.

    A day ends with its last moment in UTC. Raises ValueError for other texts and for times in the past.
    """
    if text is None:
        return None
    if (duration := _DURATION.fullmatch(text)) is not None:
        return now + int(duration[1]) * _UNITS[duration[2]]
    try:
        day = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise ValueError("give a duration, such as 12h, 30d or 2w, or the last day, such as 2027-01-31") from None
    end = day.timestamp() + _UNITS["d"]
    if end <= now:
        raise ValueError(f"{text} is in the past")
    return end


def show(rows: Sequence[KeyRow], console: Console) -> None:
    """Print a row for each key; nothing if there is none."""
    if not rows:
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("ID", "TENANT", "NAME", "STATE", "CREATED", "EXPIRES"):
        table.add_column(heading)
    for heading in ("TODAY", "THIS MONTH"):
        table.add_column(heading, justify="right")
    table.add_column("LIMITS")
    for row in rows:
        expires = "-" if row.expires is None else moment(row.expires)
        used = ("?", "?") if row.used is None else (_today(row.used), _month(row.used))
        names = (row.id, plain(row.tenant), plain(row.name) or "-")
        table.add_row(*names, row.state, moment(row.created), expires, *used, limits(row.limits))
    print_table(table, console)


def _today(used: Used) -> str:
    return f"{used.tokens_today:,} tokens, {usd(used.usd_today)}"


def _month(used: Used) -> str:
    unknown = f" + {used.unpriced:,} without a price" if used.unpriced else ""
    return f"{used.tokens_month:,} tokens, {usd(used.usd_month)}{unknown}"


def _refuse_memory(config: Config) -> None:
    if config.store.url.startswith("memory:"):
        raise StoreError(
            "store.url: memory:// is inside the running proxy, where no command can issue keys; use sqlite or redis,"
            " or `concertina keys new` for a key in the config"
        )
