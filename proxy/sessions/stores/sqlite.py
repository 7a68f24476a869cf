"""The embedded store: one SQLite file, shared by the workers of one machine, that survives restarts.

One thread per store does all the work, so the event loop never waits for a disk and the connection needs no lock. A
cancelled or timed out call may still be executed, which is harmless for every operation. A file that is deleted, moved
or replaced is closed before the next operation, a damaged one after the operation that noticed. Then the file at the
path is opened or created.
"""

import asyncio
import math
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from proxy.runtime.deadlines import within
from proxy.sessions.stores.base import (
    DEFAULT_TIMEOUT,
    MAX_MEMBERS,
    EntryError,
    Facts,
    Increment,
    Member,
    RefusedError,
    StoreError,
    add_counts,
    check_size,
    check_sizes,
    kind_of,
    pack_list,
    tag_of,
    tombstone,
    unpack_list,
)
from proxy.sessions.stores.sqlite_file import HAS_TAG, INDEX, IS_MEMBER, TAG, File, identity_of, open_file

T = TypeVar("T")

# The timeout for the thread and the disk, after waiting for another process's lock. A local file needs no more.
OPERATION_TIMEOUT = 1.0
# SQLITE_MAX_VARIABLE_NUMBER was 999 before SQLite 3.32.
KEYS_PER_QUERY = 500
# Expired entries deleted with each write, which adds at most one entry. So they do not accumulate.
PURGE_ROWS = 8
# The maximum number of entries to count for operators, of all kinds.
_COUNTED = 20_000
# Reading still works.
_REFUSED = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY)
# The connection is useless, and may work if it is opened again.
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BROKEN = (*_DAMAGED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)

# One statement, so that of any number of writers exactly one wins. An expired entry counts as absent.
_PUT_NEW = """
    INSERT INTO entries (key, value, expires) VALUES (:key, :value, :expires)
    ON CONFLICT (key) DO UPDATE SET value = excluded.value, expires = excluded.expires WHERE expires <= :now
"""
_PUT = "INSERT OR REPLACE INTO entries (key, value, expires) VALUES (:key, :value, :expires)"
_LIVE = "SELECT value FROM entries WHERE key = ? AND expires > ?"
_MEMBERS = "SELECT expires, key FROM entries WHERE key >= ? AND key < ? AND expires > ? ORDER BY expires DESC LIMIT ?"
_PAGE = f"""
    SELECT expires, key FROM entries INDEXED BY entries_members
    WHERE {IS_MEMBER} AND {INDEX} = ? AND expires > ? AND (expires, key) < (?, ?)
    ORDER BY expires DESC, key DESC LIMIT ?
"""  # noqa: S608 - of constants
_DELETE_TAG = f"DELETE FROM entries INDEXED BY entries_tag WHERE {HAS_TAG} AND {TAG} = ?"  # noqa: S608 - of constants
_NEXT = "SELECT key FROM entries WHERE key >= ? ORDER BY key LIMIT 1"
_NUMBER = "SELECT count(*) FROM (SELECT 1 FROM entries WHERE key >= ? AND key < ? LIMIT ?)"
_PURGE = "DELETE FROM entries WHERE rowid IN (SELECT rowid FROM entries WHERE expires <= ? LIMIT ?)"


class SqliteStore:
    """A store that opens the file at once, so that a wrong path or a foreign file is an error at the start."""

    def __init__(self, path: Path, *, timeout: float = DEFAULT_TIMEOUT, clock: Callable[[], float] = time.time) -> None:
        """Open the file. Raises StoreError."""
        self._path = path
        self._timeout = timeout
        self._clock = clock
        self._closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sqlite-store")
        self._file: File | None = None
        try:
            self._thread.submit(self._reopen).result()
        except BaseException:
            self._thread.shutdown()
            raise

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of these keys."""
        return await self._run(lambda: self._select(keys)) if keys else []

    async def put(self, key: str, value: bytes, ttl: float, *, only_new: bool = False) -> bytes | None:
        """Store a value."""
        check_size(value)
        store = self._insert if only_new else self._replace
        return await self._run(lambda: store(key, value, ttl))

    async def touch(self, keys: Sequence[str], ttl: float) -> None:
        """Extend the lifetime of entries."""
        if keys:
            await self._run(lambda: self._extend(keys, ttl))

    async def items(self, key: str, added: Sequence[bytes] = (), *, limit: int = 0, ttl: float = 0) -> list[bytes]:
        """Return a list, or append to it."""
        if not added:
            return await self._run(lambda: unpack_list(self._select([key])[0]))
        check_sizes(added)
        await self._run(lambda: self._extend_list(key, added, limit, ttl))
        return []

    async def members(self, index: str, limit: int | None = None, before: Member | None = None) -> list[Member]:
        """Return the members of an index."""
        return await self._run(lambda: self._members(f"{index}:", limit, before or Member(math.inf, "")))

    async def enrolled(self, index: str, members: Sequence[str]) -> list[bool]:
        """Return for each name if it is a member."""
        values = await self._run(lambda: self._select([f"{index}:{member}" for member in members]))
        return [value is not None for value in values]

    async def enroll(self, index: str, member: str, ttl: float) -> None:
        """Add a member, or remove it."""
        key = f"{index}:{member}"
        await self._run(lambda: self._replace(key, b"", ttl) if ttl else self._delete(key, b""))

    async def count(self, increments: Sequence[Increment]) -> list[dict[str, int] | None]:
        """Add to counters."""
        return await self._run(lambda: self._count(increments)) if increments else []

    async def lock(self, key: str, token: str, ttl: float) -> bool:
        """Take a lock, or release it."""
        if ttl:
            return await self.put(key, token.encode(), ttl, only_new=True) is None
        return await self._run(lambda: self._delete(key, token.encode()))

    async def erase(self, tag: str, mark: bytes, ttl: float) -> bytes | None:
        """Remove the entries under a tag."""
        return await self._run(lambda: self._put_tombstones(tag, mark, ttl))

    async def facts(self) -> Facts:
        """Return the numbers and sizes of entries."""
        return await self._run(self._facts)

    async def close(self) -> None:
        """Close the file and the thread."""
        if self._closed:
            return
        self._closed = True  # before the file is closed: a later operation would open it again
        try:
            async with within(OPERATION_TIMEOUT):
                await asyncio.get_running_loop().run_in_executor(self._thread, self._close_file)
        except TimeoutError as error:
            raise StoreError(f"{self._path}: no response within {OPERATION_TIMEOUT} s") from error
        finally:
            self._thread.shutdown(wait=False)

    async def _run(self, work: Callable[[], T]) -> T:
        """Run the work on the store's thread and the current file. Raises only StoreError."""
        if self._closed:
            raise StoreError(f"{self._path}: the store is closed")
        try:
            async with within(OPERATION_TIMEOUT):
                return await asyncio.get_running_loop().run_in_executor(self._thread, self._on_file, work)
        except sqlite3.Error as error:
            kind = RefusedError if _code(error) in _REFUSED else StoreError
            raise kind(f"{self._path}: {error}{_advice(error)}") from error
        except UnicodeEncodeError as error:
            raise EntryError("a key is not valid Unicode") from error
        except TimeoutError as error:
            raise StoreError(f"{self._path}: no response within {OPERATION_TIMEOUT} s") from error

    # The following methods run on the store's thread.

    @property
    def _connection(self) -> sqlite3.Connection:
        assert self._file is not None  # noqa: S101 - only `_on_file` does work
        return self._file.connection

    def _on_file(self, work: Callable[[], T]) -> T:
        if self._file is None or self._file.identity is None or self._file.identity != identity_of(self._path):
            self._reopen()
        try:
            return work()
        except sqlite3.Error as error:
            moved = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_READONLY_DBMOVED
            if _code(error) in _BROKEN or moved:
                self._close_file()
            raise

    def _reopen(self) -> None:
        self._close_file()
        self._file = open_file(self._path, self._timeout)

    def _close_file(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(sqlite3.Error):  # the file may be replaced
                file.connection.close()

    def _select(self, keys: Sequence[str]) -> list[bytes | None]:
        now = self._clock()
        values: dict[str, bytes] = {}
        for start in range(0, len(keys), KEYS_PER_QUERY):
            chunk = keys[start : start + KEYS_PER_QUERY]
            marks = ",".join("?" * len(chunk))
            # Only question marks are put into the statement.
            query = f"SELECT key, value FROM entries WHERE expires > ? AND key IN ({marks})"  # noqa: S608
            values.update(self._connection.execute(query, (now, *chunk)))
        return [values.get(key) for key in keys]

    def _insert(self, key: str, value: bytes, ttl: float) -> bytes | None:
        now = self._clock()
        row = {"key": key, "value": value, "expires": now + ttl, "now": now}
        with self._transaction():
            if self._is_erased(key, now) or self._connection.execute(_PUT_NEW, row).rowcount:
                return None
            winner = self._connection.execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchone()
            return winner[0] if winner else None

    def _replace(self, key: str, value: bytes, ttl: float) -> None:
        now = self._clock()
        with self._transaction():
            if not self._is_erased(key, now):
                self._connection.execute(_PUT, {"key": key, "value": value, "expires": now + ttl})

    def _extend_list(self, key: str, items: Sequence[bytes], limit: int, ttl: float) -> None:
        now = self._clock()
        with self._transaction():
            if not self._is_erased(key, now):
                extended = [*unpack_list(self._select([key])[0]), *items]
                self._connection.execute(
                    _PUT, {"key": key, "value": pack_list(extended[-limit:]), "expires": now + ttl}
                )

    def _count(self, increments: Sequence[Increment]) -> list[dict[str, int] | None]:
        now = self._clock()
        counted: list[dict[str, int] | None] = []
        with self._transaction():
            for key, added, ttl in increments:
                counted.append(counts := add_counts(self._select([key])[0], added))
                self._connection.execute(_PUT, {"key": key, "value": msgspec.json.encode(counts), "expires": now + ttl})
        return counted

    def _put_tombstones(self, tag: str, mark: bytes, ttl: float) -> bytes:
        grave, now = tombstone(tag), self._clock()
        with self._transaction():
            existing = self._connection.execute(_LIVE, (grave, now)).fetchone()
            mark = existing[0] if existing else mark
            self._connection.execute(_DELETE_TAG, (tag,))
            self._connection.execute(_PUT, {"key": grave, "value": mark, "expires": now + ttl})
        return mark

    def _is_erased(self, key: str, now: float) -> bool:
        tag = tag_of(key)
        return tag is not None and self._connection.execute(_LIVE, (tombstone(tag), now)).fetchone() is not None

    def _members(self, prefix: str, limit: int | None, before: Member) -> list[Member]:
        now = self._clock()
        if limit is None:
            rows = self._connection.execute(_MEMBERS, (prefix, f"{prefix}\U0010ffff", now, MAX_MEMBERS))
        else:
            rows = self._connection.execute(_PAGE, (prefix, now, before.expires, f"{prefix}{before.name}", limit))
        return [Member(expires, key.removeprefix(prefix)) for expires, key in rows]

    def _extend(self, keys: Sequence[str], ttl: float) -> None:
        now = self._clock()
        update = "UPDATE entries SET expires = ? WHERE key = ? AND expires > ?"
        with self._transaction():
            self._connection.executemany(update, [(now + ttl, key, now) for key in keys])

    def _facts(self) -> Facts:
        """Return the size and the entries by kind. A store with too many entries reports no numbers."""
        (pages,), (page,) = (self._connection.execute(f"PRAGMA page_{name}").fetchone() for name in ("count", "size"))
        entries: dict[str, int] = {}
        start, remaining = "", _COUNTED + 1
        while remaining > 0 and (following := self._connection.execute(_NEXT, (start,)).fetchone()) is not None:
            kind = kind_of(following[0])
            start = f"{kind};"  # follows the colon
            (entries[kind],) = self._connection.execute(_NUMBER, (kind, start, remaining)).fetchone()
            remaining -= entries[kind]
        return Facts(entries=entries if remaining > 0 else None, size=pages * page)

    def _delete(self, key: str, value: bytes) -> bool:
        """Delete an entry. Return True if it existed with this value."""
        with self._transaction():
            return (
                self._connection.execute("DELETE FROM entries WHERE key = ? AND value = ?", (key, value)).rowcount > 0
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run a transaction. IMMEDIATE takes the write lock first: a read that becomes a write would fail in a race."""
        self._connection.execute("BEGIN IMMEDIATE")
        with self._connection:
            self._connection.execute(_PURGE, (self._clock(), PURGE_ROWS))
            yield


def _advice(error: sqlite3.Error) -> str:
    if _code(error) in _DAMAGED:
        return "; move this file away, and a new one is created"
    return "; free space on this disk" if _code(error) == sqlite3.SQLITE_FULL else ""


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code; 0 for errors of Python's module."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
