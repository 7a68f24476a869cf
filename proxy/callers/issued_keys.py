"""Keys that a command issues instead of the config: hashed in the store, for all replicas.

A key is a random secret. The store has only its SHA-256, sealed like every value. Each process knows all keys and polls
for changes every `LOOK_EVERY` seconds, so that no request waits for the store.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace as with_changes
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from proxy.server.headers import bearer_key
from proxy.sessions.shelf import Shelf
from proxy.sessions.stores.base import names_in
from proxy.sessions.stores.sealing import SealedStore

LOOK_EVERY = 2.0
"""Seconds until a process knows a key that another process issued, changed or revoked."""

MOST = 10_000
_INDEX = "index:issued"
_STAMP = "issued:stamp"
_TTL = 10 * 366 * 86_400.0
_ID_DIGITS = 12
_PREFIX = "ck-"


class KeyLimits(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The limits of a key: tokens of prompts and responses, and US dollars by list prices, per day and month in UTC.

    Requests and tokens have limits in any minute. None is no limit.
    """

    tokens_per_day: int | None = None
    tokens_per_month: int | None = None
    usd_per_day: float | None = None
    usd_per_month: float | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    @property
    def count_tokens(self) -> bool:
        """Return True if a response has to report its usage."""
        budgets = (self.tokens_per_day, self.tokens_per_month, self.usd_per_day, self.usd_per_month)
        return any(limit is not None for limit in (*budgets, self.tokens_per_minute))


NO_LIMITS = KeyLimits()


class IssuedKey(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A key of a tenant.

    id: the first digits of `digest`, for people. digest: the SHA-256 of the key in hex. created, expires, revoked: Unix
    seconds.
    """

    id: str
    digest: str
    tenant: str
    created: float
    name: str = ""
    expires: float | None = None
    revoked: float | None = None
    limits: KeyLimits = NO_LIMITS

    def is_in(self, value: bytes) -> bool:
        """Return True if a header's value is this key."""
        return hashlib.sha256(bearer_key(value)).hexdigest() == self.digest

    def why_not(self, now: float) -> str | None:
        """Return why the key may not be used; None if it may."""
        if self.revoked is not None:
            return "the API key was revoked"
        if self.expires is not None and now >= self.expires:
            return f"the API key has expired ({datetime.fromtimestamp(self.expires, UTC):%Y-%m-%d %H:%M} UTC)"
        return None


def key_prefix(store_secret: bytes) -> str:
    """Return the prefix of this store's keys, so that a mistyped or unknown one is not taken for another's."""
    return f"{_PREFIX}{hmac.digest(store_secret, b'issued keys', 'sha256')[:4].hex()}-"


def new_secret(prefix: str = _PREFIX) -> tuple[str, str]:
    """Return a new key, which is shown once, and its SHA-256 in hex."""
    secret = f"{prefix}{secrets.token_urlsafe(32)}"
    return secret, hashlib.sha256(secret.encode()).hexdigest()


def new_key(
    tenant: str,
    now: float,
    *,
    name: str = "",
    expires: float | None = None,
    limits: KeyLimits = NO_LIMITS,
    prefix: str = _PREFIX,
) -> tuple[str, IssuedKey]:
    """Return a new key, which is shown once, and its stored part."""
    secret, digest = new_secret(prefix)
    key = IssuedKey(
        id=digest[:_ID_DIGITS], digest=digest, tenant=tenant, created=now, name=name, expires=expires, limits=limits
    )
    return secret, key


class KeyShelf:
    """The keys in the store.

    unreadable: the number of keys in the last lookup that were lost, or are sealed with another encryption key.
    """

    def __init__(self, sealed: SealedStore) -> None:
        """Create a shelf over a store."""
        self.unreadable = 0
        self._store = sealed.store
        self._sealer = sealed.sealer
        self._shelf = Shelf(with_changes(sealed, ttl=_TTL), IssuedKey)

    async def put(self, key: IssuedKey) -> None:
        """Store a new or changed key, and make every process reload."""
        await self._shelf.put(_at(key.id), key)
        await self._store.enroll(_INDEX, key.id, _TTL)
        await self._store.put(_STAMP, secrets.token_bytes(16), _TTL)

    async def every(self) -> list[IssuedKey] | None:
        """Return all keys including revoked ones, the oldest first; None if the store does not respond."""
        names = await names_in(self._store, _INDEX)
        if names is None:
            return None
        keys = [*filter(None, await self._shelf.look_up([_at(name) for name in names[:MOST]]))]
        self.unreadable = len(names[:MOST]) - len(keys)
        return sorted(keys, key=lambda key: (key.created, key.id))

    async def renew(self, keys: Sequence[IssuedKey]) -> None:
        """Seal keys again during a change of the encryption key, so that the previous one can be dropped."""
        if len(self._sealer.key_ids) > 1:
            for key in keys:
                await self._shelf.put(_at(key.id), key)

    async def stamp(self) -> bytes | None:
        """Return a stamp that changes with every key; None without keys, or if the store does not respond."""
        (stamp,) = await self._store.get_many([_STAMP])
        return stamp


class KeyRing:
    """The issued keys in this process.

    version: increases with every change. is_loaded: True if the store has responded since the start.
    """

    def __init__(
        self,
        shelf: KeyShelf | None = None,
        is_up: Callable[[], bool] = lambda: True,
        report_unreadable: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Create a key ring.

        is_up: returns True if the store responds. report_unreadable: called with the number of unusable keys, if any.
        """
        self.version = 0
        self.is_loaded = shelf is None
        self._shelf = shelf
        self._is_up = is_up
        self._report_unreadable = report_unreadable
        self._stamp: bytes | None = None
        self._by_digest: dict[bytes, IssuedKey] = {}

    def find(self, digest: bytes) -> IssuedKey | None:
        """Return the key with this SHA-256."""
        return self._by_digest.get(digest)

    def of(self, tenant: str) -> list[IssuedKey]:
        """Return a tenant's keys including revoked ones, the newest first."""
        return [key for key in reversed(self._by_digest.values()) if key.tenant == tenant]

    async def look(self) -> None:
        """Load changes from the store. Keys stay known while it does not respond, or has lost them."""
        if self._shelf is None:
            return
        stamp = await self._shelf.stamp()
        if stamp is None or stamp == self._stamp:
            self.is_loaded = self.is_loaded or self._is_up()
            return
        keys = await self._shelf.every()
        if keys is None:
            return
        if self._shelf.unreadable:
            self._report_unreadable(self._shelf.unreadable)
        if not self.is_loaded:
            await self._shelf.renew(keys)
        self.is_loaded = True
        self._stamp = stamp
        self._by_digest = {bytes.fromhex(key.digest): key for key in keys}
        self.version += 1


def as_revoked(key: IssuedKey, now: float) -> IssuedKey:
    """Return a key as revoked."""
    return key if key.revoked is not None else replace(key, revoked=now)


def _at(key_id: str) -> str:
    return f"issued:{key_id}"
