"""What places in the store are hashed with: `store.secret`, else one made at the first start beside the store."""

import hmac
from contextlib import suppress
from pathlib import Path

from proxy.callers import admin_token
from proxy.config.settings import Config, StoreConfig
from proxy.sessions.stores import beside, file_of

_NONE = b"concertina"


def secret_file(store: StoreConfig) -> Path | None:
    """Where one that was made is kept; None where one is configured, or the store is no file."""
    return None if store.secret.get_secret_value() else beside(store.url, "secret")


def make(config: Config) -> str | None:
    """Make one before the store itself is made; returns what an operator should know of it, None if all is well.

    A store that has none keeps its sessions: under another secret nobody would find them again.
    """
    store = file_of(config.store.url)
    if (file := secret_file(config.store)) is None or store is None:
        return None
    if not file.exists() and store.exists():
        return f"{store} has no secret ({file} is not there); set store.secret for one, and its sessions start anew"
    with suppress(OSError):  # the store says why its folder cannot be made
        file.parent.mkdir(parents=True, exist_ok=True)
    kept = admin_token.keep_token(file)
    if kept.file is None:
        return f"{file} cannot be used, so whoever can write to the store can guess where sessions lie"
    return f"{file} was not fit and is a new one: sessions start anew" if kept.trouble else None


def secret_in_force(store: StoreConfig) -> bytes:
    """The one in force."""
    configured, file = store.secret.get_secret_value(), secret_file(store)
    try:
        return configured.encode() or (admin_token.read_token(file).encode() if file else _NONE)
    except (admin_token.UnfitError, OSError):
        return _NONE


def mark_of(store: StoreConfig) -> str:
    """Return a short mark that is the same for all replicas with the same secret, and does not reveal it."""
    return hmac.digest(secret_in_force(store), b"replicas", "sha256")[:4].hex()
