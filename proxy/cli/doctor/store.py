"""The store looked at: whether it takes, gives and lets go of an entry, how fast, and how much room it has."""

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
from proxy.sessions.replicas import replicas_there
from proxy.sessions.stores import StoreError, file_of, open_existing
from proxy.sessions.stores.base import Increment, Store
from proxy.sessions.stores.redis.store import RedisStore

_ABOUT = "store"
_LEAST_FREE = 200 * 1024 * 1024
_TTL = 60.0


async def looked_at(settings: StoreConfig) -> list[Finding]:
    if settings.url.startswith("memory:"):
        return [ok(_ABOUT, "in the process itself: a restart forgets what was kept")]
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
        found, _, way_out = str(error).partition("; ")
        without = "requests go on without it, and every replica makes its own summaries"
        return [wrong(_ABOUT, found, way_out or without), *room]


async def _round_trip(store: Store, most: float) -> Finding:
    # Users of a shared server may be allowed names that are in use anyway.
    key, token = f"lock:doctor:{secrets.token_hex(8)}", secrets.token_hex(8)
    began = time.monotonic()
    await store.lock(key, token, _TTL)
    (found,) = await store.get_many([key])
    await store.lock(key, token, 0)
    each = (time.monotonic() - began) / 3
    await _try_each(store)
    if found != token.encode():
        return wrong(_ABOUT, "what was stored could not be read again", "let requests go to a server that takes writes")
    told = f"an operation takes {1000 * each:.1f} ms"
    if each > most / 2:
        return warning(_ABOUT, f"{told}, of {1000 * most:g} at most", "move it nearer, or raise store.timeout")
    return ok(_ABOUT, told)


async def _try_each(store: Store) -> None:
    """What else the proxy asks of a store, which a user of a server may not be allowed; raises StoreError."""
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
    """Whether issued keys can be used, and what a shared server does with them once it is full."""
    shelf = KeyShelf(settings.seal(store))
    keys = await shelf.every()
    found = await _eviction_findings(store, has_keys=bool(keys))
    if shelf.unreadable:
        told = f"{shelf.unreadable} issued keys were evicted, or are sealed with another store.encryption_key"
        found.append(wrong("store.keys", told, "go back to that key, in retired_keys for a while, or issue them anew"))
    return found


async def _eviction_findings(store: Store, *, has_keys: bool) -> list[Finding]:
    """What a shared server does once it is full."""
    if not isinstance(store, RedisStore):
        return []
    about, policy = "store.maxmemory-policy", (await store.facts()).eviction
    if policy is None:
        return [warning(about, "the server does not tell it to this user", "allow it INFO, or ask its operator")]
    if policy == "noeviction":
        return [ok(about, f"{policy}: once full, records are no longer stored and none is lost")]
    if has_keys:
        way_out = "set maxmemory-policy to noeviction, or give the proxy a server of its own"
        return [warning(about, f"{policy}: it may evict issued keys", way_out)]
    return [ok(about, f"{policy}: before you issue keys, set it to noeviction")]


def _secret(settings: StoreConfig) -> Iterator[Finding]:
    """A server that others may reach needs one; beside a file it is made at the first start."""
    if settings.url.startswith("redis") and not settings.secret.get_secret_value():
        told = "empty, so whoever can write to the store can guess where sessions lie"
        yield wrong("store.secret", told, "set it to the same long random value in every replica")


async def _other_secrets(settings: StoreConfig, store: Store) -> list[Finding]:
    """Replicas with another secret find none of the sessions that those with this one keep, and do not know mistyped
    keys of theirs for ours."""
    mark = store_secret.mark_of(settings)
    others = [each.name for each in await replicas_there(settings.seal(store)) if each.secret not in ("", mark)]
    told = f"{', '.join(others)} {'serve' if len(others) > 1 else 'serves'} over this store with another one"
    return [wrong("store.secret", told, "give every replica the same, and restart those")] if others else []


def _room(file: Path) -> Iterator[Finding]:
    folder = next(parent for parent in file.absolute().parents if parent.exists())
    if not os.access(file if file.exists() else folder, os.W_OK):
        yield wrong(_ABOUT, f"{file} may not be written here", "run the proxy as its owner, or name another file")
    elif not file.exists():
        yield ok(_ABOUT, f"{file} is made at the first start")
    free = shutil.disk_usage(folder).free
    told = f"{free / 1024**3:,.1f} GB free in {folder}"
    if free < _LEAST_FREE:
        yield warning(f"{_ABOUT}.disk", told, "make room, or name another place in store.url")
    else:
        yield ok(f"{_ABOUT}.disk", told)
