"""Stores of records between requests: SQLite, Redis or memory, with a circuit breaker and sealed values."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from proxy.sessions.stores.base import DEFAULT_TIMEOUT, OpenedStore, StoreError
from proxy.sessions.stores.breaker import CircuitBreaker
from proxy.sessions.stores.redis import url as redis_url
from proxy.sessions.stores.sealing import Sealer

__all__ = ["CircuitBreaker", "Sealer", "StoreError", "beside", "check_file", "file_of", "open_existing", "open_store"]


def open_store(url: str, timeout: float = DEFAULT_TIMEOUT, prefix: str = "") -> OpenedStore:
    """Open the store of `store.url`. Raises StoreError. Only the implementation in use is imported.

    URLs are `sqlite:///relative.db`, `sqlite:////absolute.db`, `memory://`, and those of `redis_url`. prefix: of keys
    in Redis.
    """
    scheme = url.partition("://")[0].lower()
    match scheme:
        case "memory":
            from proxy.sessions.stores.memory import MemoryStore

            return MemoryStore()
        case "sqlite":
            from proxy.sessions.stores.sqlite import SqliteStore

            return SqliteStore(_sqlite_path(url), timeout=timeout)
        case _ if scheme in redis_url.SCHEMES:
            from proxy.sessions.stores.redis.store import RedisStore

            return RedisStore(url, timeout=timeout, prefix=prefix)
        case _:
            raise StoreError(f"store.url: must be sqlite:///PATH, memory://, {redis_url.FORMS}")


def check_file(url: str, timeout: float = DEFAULT_TIMEOUT) -> None:
    """Open and close a store that is a file. Raises StoreError if the file cannot be a store."""
    if (file := file_of(url)) is not None:
        from proxy.sessions.stores.sqlite_file import open_file

        open_file(file, timeout).connection.close()


def open_existing(url: str, timeout: float = DEFAULT_TIMEOUT, prefix: str = "") -> OpenedStore | None:
    """Open a store for reading; None for a file that does not exist, which opening would create. Raises StoreError."""
    file = file_of(url)
    return None if file is not None and not file.exists() else open_store(url, timeout, prefix)


def file_of(url: str) -> Path | None:
    """Return the file of a store; None if the store is no file."""
    return _sqlite_path(url) if url.partition("://")[0].lower() == "sqlite" else None


def beside(url: str, name: str) -> Path | None:
    """Return the file with this name next to the store's; None for a store that is no file."""
    file = file_of(url)
    return file.with_name(f"{file.name}.{name}") if file else None


def _sqlite_path(url: str) -> Path:
    parts = urlsplit(url)
    path = unquote(parts.path.removeprefix("/"))
    if parts.netloc or not path:
        raise StoreError("store.url: must be sqlite:///relative.db or sqlite:////absolute/path.db")
    return Path(path)
