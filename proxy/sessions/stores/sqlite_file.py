"""The file of an embedded store: opened by one process at a time, private to its user, with its schema."""

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
# Several workers that set WAL mode and create the table at once wait for each other.
OPEN_TIMEOUT = 5.0
# The hash tag of a key (`tag_of`).
TAG = "substr(key, instr(key, '{') + 1, instr(substr(key, instr(key, '{') + 1), '}') - 1)"
HAS_TAG = "instr(key, '{') > 0"
# The index of a member: its key up to and including the last colon.
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
    """A connection, and the identity of its file."""

    connection: sqlite3.Connection
    identity: tuple[int, int] | None


def identity_of(path: Path) -> tuple[int, int] | None:
    """Return device and inode of the file at the path; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def open_file(path: Path, timeout: float) -> File:
    """Open the file, or create it. Raises StoreError.

    timeout: seconds that an operation waits for another process.
    """
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
        way_out = f"choose a file in it, as in {path / 'concertina.db'}" if path.is_dir() else _way_out(error)
        raise StoreError(f"store.url: {path} cannot be used as the store ({reason}); {way_out}") from error
    return File(connection, identity)


def _way_out(error: Exception) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
        return "free space on this disk, or choose another path"
    if isinstance(error, OSError) or code in _NOT_ALLOWED:
        return "let this user write there, or choose another path"
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return "another program has locked it: try again, or stop that program"
    return "move this file away or choose another path"


@contextmanager
def _opening(directory: Path) -> Iterator[None]:
    """Let one process at a time open files in a directory: leftovers may be of a process that is just creating them."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _create_private(path: Path) -> None:
    """Create the file for its user only. SQLite gives its -wal and -shm files the mode of the database.

    An existing file is not touched: closing it here would release the locks of processes that have it open. -wal and
    -shm files without a database belong to one that was moved away, and would be used for the new one.
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
