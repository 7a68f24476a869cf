"""The file of an embedded store: opened by one process at a time, for its user alone, and prepared."""

import errno
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from proxy.sessions.stores.base import StoreError

SCHEMA_VERSION = 1
_NOT_ALLOWED = (sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH)
# Setting WAL mode and creating the table at once from several workers takes turns.
OPEN_TIMEOUT = 5.0
# The hash tag of a key (`tag_of`).
TAG = "substr(key, instr(key, '{') + 1, instr(substr(key, instr(key, '{') + 1), '}') - 1)"
HAS_TAG = "instr(key, '{') > 0"
# The index of a member: its key up to and with the last colon.
INDEX = "rtrim(key, replace(key, ':', ''))"
IS_MEMBER = "key >= 'index:' AND key < 'index;'"
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, expires REAL NOT NULL)",
    "CREATE INDEX IF NOT EXISTS entries_expires ON entries (expires)",
    f"CREATE INDEX IF NOT EXISTS entries_tag ON entries ({TAG}) WHERE {HAS_TAG}",
    f"CREATE INDEX IF NOT EXISTS entries_members ON entries ({INDEX}, expires, key) WHERE {IS_MEMBER}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


class File(NamedTuple):
    """A connection, and which file it is to."""

    connection: sqlite3.Connection
    identity: tuple[int, int] | None


def identity_of(path: Path) -> tuple[int, int] | None:
    """Device and inode of what lies at the path; None where nothing does."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def open_file(path: Path, timeout: float) -> File:
    """The file, made where there is none; `timeout`: seconds that an operation waits for another process. Raises
    StoreError."""
    try:
        with _opening(path.parent):
            _create_private(path)
            identity = identity_of(path)
            connection = sqlite3.connect(path, timeout=OPEN_TIMEOUT, isolation_level=None, check_same_thread=False)
            try:
                _prepare(connection)
                connection.execute(f"PRAGMA busy_timeout = {int(timeout * 1000)}")
            except BaseException:
                connection.close()
                raise
    except (sqlite3.Error, OSError) as error:
        reason = "is a directory" if path.is_dir() else str(getattr(error, "strerror", None) or error)
        way_out = f"name a file in it, as in {path / 'concertina.db'}" if path.is_dir() else _way_out(error)
        raise StoreError(f"store.url: {path} cannot be used as the store ({reason}); {way_out}") from error
    return File(connection, identity)


def _way_out(error: Exception) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
        return "make room on that disk, or name another path"
    if isinstance(error, OSError) or code in _NOT_ALLOWED:
        return "let this user write there, or name another path"
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return "another program holds it: try again, or end that program"
    return "move that file away or name another path"


@contextmanager
def _opening(directory: Path) -> Iterator[None]:
    """One process at a time opens files in a directory: what one finds left over another may just have made."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _create_private(path: Path) -> None:
    """SQLite gives its -wal and -shm files the mode of the database, which holds summaries of conversations.

    A file that is there is not touched: to close it here would take away the locks of processes that have it open.
    What lies beside one that is not was left by one that was moved away, and would be taken for the new one's.
    """
    if path.exists():
        return
    for name in ("-wal", "-shm"):
        path.with_name(path.name + name).unlink(missing_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def _prepare(connection: sqlite3.Connection) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise sqlite3.NotSupportedError(f"written by a newer version, schema {version}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        for statement in _SCHEMA:
            connection.execute(statement)
