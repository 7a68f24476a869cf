"""The secret of hashes in the store: `store.secret`, or a generated one next to the store."""

import hmac
from contextlib import suppress
from pathlib import Path

from proxy.callers import admin_token
from proxy.config.settings import Config, StoreConfig
from proxy.sessions.stores import beside, file_of

_NONE = b"concertina"


def secret_file(store: StoreConfig) -> Path | None:
    """Return the file of a generated secret; None if one is configured, or the store is no file."""
    return None if store.secret.get_secret_value() else beside(store.url, "secret")


def make(config: Config) -> str | None:
    """Generate a secret before the store is created. Return a problem for the operator, or None.

    A store without a secret keeps its sessions: with a new secret they would not be found again.
    """
    store = file_of(config.store.url)
    if (file := secret_file(config.store)) is None or store is None:
        return None
    if not file.exists() and store.exists():
        return f"{store} has no secret ({file} does not exist); set store.secret, and sessions start anew"
    with suppress(OSError):  # the store reports why its folder cannot be created
        file.parent.mkdir(parents=True, exist_ok=True)
    generated = admin_token.keep_token(file)
    if generated.file is None:
        return f"{file} cannot be used, so a client that can write to the store can guess the keys of sessions"
    return f"{file} was invalid and was replaced: sessions start anew" if generated.trouble else None


def secret_in_force(store: StoreConfig) -> bytes:
    """Return the secret in force."""
    configured, file = store.secret.get_secret_value(), secret_file(store)
    try:
        return configured.encode() or (admin_token.read_token(file).encode() if file else _NONE)
    except (admin_token.UnfitError, OSError):
        return _NONE


def mark_of(store: StoreConfig) -> str:
    """Return a short mark that is equal for replicas with the same secret, and does not reveal it."""
    return hmac.digest(secret_in_force(store), b"replicas", "sha256")[:4].hex()
