"""The embedded store: one SQLite file, shared by the workers of one machine, that survives restarts.

One thread per store does all the work, so the event loop never waits on a disk and the connection needs no lock.
A call that is cancelled or timed out may still be carried out; every operation here is harmless when it is.
A file that is deleted, moved or replaced under us is let go of before the next operation, one that is damaged after the
operation that found out; then what lies at the path is opened, or made.
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

# Waiting for the thread and the disk, beyond waiting for another process's lock: a local file has no excuse.
PATIENCE = 1.0
# SQLITE_MAX_VARIABLE_NUMBER was 999 before SQLite 3.32.
KEYS_PER_QUERY = 500
# Expired entries that are deleted with each write, which adds one entry at most: so they are not amassed.
PURGE_ROWS = 8
# Entries that are counted for operators, whatever their kinds.
_COUNTED = 20_000
# Reading goes on.
_REFUSED = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY)
# The connection is of no more use, and may be if it is opened anew.
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BROKEN = (*_DAMAGED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)

# One statement, so that of any number of writers exactly one wins; an expired entry counts as absent.
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
    """Opens the file at once, so that a wrong path or a foreign file is an error at start (`StoreError`)."""

    def __init__(self, path: Path, *, timeout: float = DEFAULT_TIMEOUT, clock: Callable[[], float] = time.time) -> None:
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
        return await self._run(lambda: self._select(keys)) if keys else []

    async def put(self, key: str, value: bytes, ttl: float, *, only_new: bool = False) -> bytes | None:
        check_size(value)
        store = self._insert if only_new else self._replace
        return await self._run(lambda: store(key, value, ttl))

    async def touch(self, keys: Sequence[str], ttl: float) -> None:
        if keys:
            await self._run(lambda: self._extend(keys, ttl))

    async def items(self, key: str, added: Sequence[bytes] = (), *, limit: int = 0, ttl: float = 0) -> list[bytes]:
        if not added:
            return await self._run(lambda: unpack_list(self._select([key])[0]))
        check_sizes(added)
        await self._run(lambda: self._extend_list(key, added, limit, ttl))
        return []

    async def members(self, index: str, limit: int | None = None, before: Member | None = None) -> list[Member]:
        return await self._run(lambda: self._members(f"{index}:", limit, before or Member(math.inf, "")))

    async def enrolled(self, index: str, members: Sequence[str]) -> list[bool]:
        found = await self._run(lambda: self._select([f"{index}:{member}" for member in members]))
        return [value is not None for value in found]

    async def enroll(self, index: str, member: str, ttl: float) -> None:
        key = f"{index}:{member}"
        await self._run(lambda: self._replace(key, b"", ttl) if ttl else self._delete(key, b""))

    async def count(self, increments: Sequence[Increment]) -> list[dict[str, int] | None]:
        return await self._run(lambda: self._count(increments)) if increments else []

    async def lock(self, key: str, token: str, ttl: float) -> bool:
        if ttl:
            return await self.put(key, token.encode(), ttl, only_new=True) is None
        return await self._run(lambda: self._delete(key, token.encode()))

    async def erase(self, tag: str, mark: bytes, ttl: float) -> bytes | None:
        return await self._run(lambda: self._put_tombstones(tag, mark, ttl))

    async def facts(self) -> Facts:
        return await self._run(self._facts)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True  # before the file is let go of: what comes later would open it again
        try:
            async with within(PATIENCE):
                await asyncio.get_running_loop().run_in_executor(self._thread, self._let_go)
        except TimeoutError as error:
            raise StoreError(f"{self._path}: no answer within {PATIENCE} s") from error
        finally:
            self._thread.shutdown(wait=False)

    async def _run(self, work: Callable[[], T]) -> T:
        """Run the work on the store's thread and the file that is there; every way to fail becomes a `StoreError`."""
        if self._closed:
            raise StoreError(f"{self._path}: the store is closed")
        try:
            async with within(PATIENCE):
                return await asyncio.get_running_loop().run_in_executor(self._thread, self._on_file, work)
        except sqlite3.Error as error:
            kind = RefusedError if _code(error) in _REFUSED else StoreError
            raise kind(f"{self._path}: {error}{_advice(error)}") from error
        except UnicodeEncodeError as error:
            raise EntryError("a key is not valid Unicode") from error
        except TimeoutError as error:
            raise StoreError(f"{self._path}: no answer within {PATIENCE} s") from error

    # What follows runs on the store's thread.

    @property
    def _connection(self) -> sqlite3.Connection:
        assert self._file is not None  # noqa: S101 - work is done by `_on_file` alone
        return self._file.connection

    def _on_file(self, work: Callable[[], T]) -> T:
        if self._file is None or self._file.identity is None or self._file.identity != identity_of(self._path):
            self._reopen()
        try:
            return work()
        except sqlite3.Error as error:
            moved = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_READONLY_DBMOVED
            if _code(error) in _BROKEN or moved:
                self._let_go()
            raise

    def _reopen(self) -> None:
        self._let_go()
        self._file = open_file(self._path, self._timeout)

    def _let_go(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(sqlite3.Error):  # of a file that is no longer ours
                file.connection.close()

    def _select(self, keys: Sequence[str]) -> list[bytes | None]:
        now = self._clock()
        found: dict[str, bytes] = {}
        for start in range(0, len(keys), KEYS_PER_QUERY):
            chunk = keys[start : start + KEYS_PER_QUERY]
            marks = ",".join("?" * len(chunk))
            # Only question marks are put into the statement.
            query = f"SELECT key, value FROM entries WHERE expires > ? AND key IN ({marks})"  # noqa: S608
            found.update(self._connection.execute(query, (now, *chunk)))
        return [found.get(key) for key in keys]

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
                kept = [*unpack_list(self._select([key])[0]), *items]
                self._connection.execute(_PUT, {"key": key, "value": pack_list(kept[-limit:]), "expires": now + ttl})

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
            there = self._connection.execute(_LIVE, (grave, now)).fetchone()
            mark = there[0] if there else mark
            self._connection.execute(_DELETE_TAG, (tag,))
            self._connection.execute(_PUT, {"key": grave, "value": mark, "expires": now + ttl})
        return mark

    def _is_erased(self, key: str, now: float) -> bool:
        tag = tag_of(key)
        return tag is not None and self._connection.execute(_LIVE, (tombstone(tag), now)).fetchone() is not None

    def _members(self, prefix: str, limit: int | None, before: Member) -> list[Member]:
        now = self._clock()
        if limit is None:
            found = self._connection.execute(_MEMBERS, (prefix, f"{prefix}\U0010ffff", now, MAX_MEMBERS))
        else:
            found = self._connection.execute(_PAGE, (prefix, now, before.expires, f"{prefix}{before.name}", limit))
        return [Member(expires, key.removeprefix(prefix)) for expires, key in found]

    def _extend(self, keys: Sequence[str], ttl: float) -> None:
        now = self._clock()
        update = "UPDATE entries SET expires = ? WHERE key = ? AND expires > ?"
        with self._transaction():
            self._connection.executemany(update, [(now + ttl, key, now) for key in keys])

    def _facts(self) -> Facts:
        """Entries are counted kind by kind; a store with too many of them reports no numbers."""
        (pages,), (page,) = (self._connection.execute(f"PRAGMA page_{name}").fetchone() for name in ("count", "size"))
        entries: dict[str, int] = {}
        start, left = "", _COUNTED + 1
        while left > 0 and (following := self._connection.execute(_NEXT, (start,)).fetchone()) is not None:
            kind = kind_of(following[0])
            start = f"{kind};"  # follows the colon
            (entries[kind],) = self._connection.execute(_NUMBER, (kind, start, left)).fetchone()
            left -= entries[kind]
        return Facts(entries=entries if left > 0 else None, size=pages * page)

    def _delete(self, key: str, value: bytes) -> bool:
        """Whether the entry was there, with this value."""
        with self._transaction():
            return (
                self._connection.execute("DELETE FROM entries WHERE key = ? AND value = ?", (key, value)).rowcount > 0
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """IMMEDIATE takes the write lock first: a read that turns into a write fails at once when another got there."""
        self._connection.execute("BEGIN IMMEDIATE")
        with self._connection:
            self._connection.execute(_PURGE, (self._clock(), PURGE_ROWS))
            yield


def _advice(error: sqlite3.Error) -> str:
    if _code(error) in _DAMAGED:
        return "; move that file away, and a new one is made"
    return "; make room on that disk" if _code(error) == sqlite3.SQLITE_FULL else ""


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; 0 for what Python's module finds out by itself."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
