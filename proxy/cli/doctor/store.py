"""Checks of the store: a round trip of an entry, its latency, free disk space and eviction."""

import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from proxy.callers import store_secret
from proxy.callers.issued_keys import KeyShelf
from proxy.cli.doctor.finding import Finding, ok, warning, wrong
from proxy.config.settings import StoreConfig
from proxy.sessions.replicas import find_replicas
from proxy.sessions.stores import StoreError, file_of, open_existing
from proxy.sessions.stores.base import Increment, Store
from proxy.sessions.stores.redis.store import RedisStore

_ABOUT = "store"
_LEAST_FREE = 200 * 1024 * 1024
_TTL = 60.0


async def check_store(settings: StoreConfig) -> list[Finding]:
    """Check the store and return the findings."""
    if settings.url.startswith("memory:"):
        return [ok(_ABOUT, "in the process itself: a restart loses all records")]
    file = file_of(settings.url)
    room = [] if file is None else [*_room(file)]
    try:
        store = open_existing(settings.url, settings.timeout, settings.prefix)
        if store is None:
            return room
        try:
            return [
                await _round_trip(store, settings.timeout),
                *(await _key_findings(settings, store)),
                *room,
                *_secret(settings),
                *(await _other_secrets(settings, store)),
            ]
        finally:
            await store.close()
    except StoreError as error:
        problem, _, way_out = str(error).partition("; ")
        consequence = "requests continue without it, and every replica makes its own summaries"
        return [wrong(_ABOUT, problem, way_out or consequence), *room]


async def _round_trip(store: Store, most: float) -> Finding:
    # Users of a shared server may be restricted to names that the proxy uses anyway.
    key, token = f"lock:doctor:{secrets.token_hex(8)}", secrets.token_hex(8)
    began = time.monotonic()
    await store.lock(key, token, _TTL)
    (stored,) = await store.get_many([key])
    await store.lock(key, token, 0)
    each = (time.monotonic() - began) / 3
    await _try_each(store)
    if stored != token.encode():
        return wrong(
            _ABOUT, "a stored value could not be read again", "use the address of a server that accepts writes"
        )
    text = f"an operation takes {1000 * each:.1f} ms"
    if each > most / 2:
        return warning(_ABOUT, f"{text}; the timeout is {1000 * most:g} ms", "move it nearer, or raise store.timeout")
    return ok(_ABOUT, text)


async def _try_each(store: Store) -> None:
    """Call the other operations that the proxy uses, which a user of a server may lack. Raises StoreError."""
    tag = secrets.token_hex(8)
    key, index = f"probe:{{{tag}}}:doctor", f"index:doctor:{tag}"
    await store.put(key, b"doctor", _TTL)
    await store.put(key, b"doctor", _TTL, only_new=True)
    await store.touch([key], _TTL)
    await store.items(f"history:{tag}", [b"doctor"], limit=1, ttl=_TTL)
    await store.items(f"history:{tag}")
    await store.enroll(index, tag, _TTL)
    await store.members(index)
    await store.enrolled(index, [tag])
    await store.enroll(index, tag, 0)
    await store.count([Increment(f"used:{tag}", {"doctor": 1}, _TTL)])
    await store.erase(tag, b"doctor", _TTL)


async def _key_findings(settings: StoreConfig, store: Store) -> list[Finding]:
    """Return findings for issued keys, and for what a shared server does when it is full."""
    shelf = KeyShelf(settings.seal(store))
    keys = await shelf.every()
    findings = await _eviction_findings(store, has_keys=bool(keys))
    if shelf.unreadable:
        problem = f"{shelf.unreadable} issued keys were evicted, or are sealed with another store.encryption_key"
        findings.append(
            wrong("store.keys", problem, "add that key to retired_keys for a while, or issue the keys again")
        )
    return findings


async def _eviction_findings(store: Store, *, has_keys: bool) -> list[Finding]:
    """Return findings for what a shared server does when it is full."""
    if not isinstance(store, RedisStore):
        return []
    about, policy = "store.maxmemory-policy", (await store.facts()).eviction
    if policy is None:
        return [warning(about, "the server does not show it to this user", "allow the user INFO, or ask the operator")]
    if policy == "noeviction":
        return [ok(about, f"{policy}: when it is full, new records are not stored and none is lost")]
    if has_keys:
        way_out = "set maxmemory-policy to noeviction, or use a separate server for the proxy"
        return [warning(about, f"{policy}: it may evict issued keys", way_out)]
    return [ok(about, f"{policy}: before you issue keys, set it to noeviction")]


def _secret(settings: StoreConfig) -> Iterator[Finding]:
    """Yield a finding if a shared server has no secret. For a file, the secret is generated at the first start."""
    if settings.url.startswith("redis") and not settings.secret.get_secret_value():
        problem = "empty, so a client that can write to the store can guess the keys of sessions"
        yield wrong("store.secret", problem, "set it to the same long random value in every replica")


async def _other_secrets(settings: StoreConfig, store: Store) -> list[Finding]:
    """Return a finding if replicas have another secret.

    They find none of the sessions under this secret, and do not recognize mistyped issued keys.
    """
    mark = store_secret.mark_of(settings)
    names = [each.name for each in await find_replicas(settings.seal(store)) if each.secret not in ("", mark)]
    problem = f"{', '.join(names)} {'serve' if len(names) > 1 else 'serves'} this store with another secret"
    return [wrong("store.secret", problem, "give every replica the same secret, and restart these")] if names else []


def _room(file: Path) -> Iterator[Finding]:
    folder = next(parent for parent in file.absolute().parents if parent.exists())
    if not os.access(file if file.exists() else folder, os.W_OK):
        yield wrong(
            _ABOUT, f"{file} is not writable for this user", "run the proxy as its owner, or choose another file"
        )
    elif not file.exists():
        yield ok(_ABOUT, f"{file} is created at the first start")
    free = shutil.disk_usage(folder).free
    text = f"{free / 1024**3:,.1f} GB free in {folder}"
    if free < _LEAST_FREE:
        yield warning(f"{_ABOUT}.disk", text, "free some space, or choose another folder in store.url")
    else:
        yield ok(f"{_ABOUT}.disk", text)
