"""A SQLite file that is deleted, moved, replaced or damaged while it is in use."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import sqlite3
import stat
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from proxy.sessions.stores import StoreError, sqlite_file
from proxy.sessions.stores.sqlite import SqliteStore
from tests.support.long_conversations import bearer, outcome, summarizing
from tests.support.operating import LABEL, OPERATED, enrolled, erased, listed
from tests.support.upstreams import config_for, serving, upstream

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.anyio

TTL = 600.0
BESIDE = ("-wal", "-shm")


def beside(path: Path, name: str) -> Path:
    return path.with_name(path.name + name)


def delete(path: Path) -> None:
    path.unlink()


def delete_all(path: Path) -> None:
    for name in ("", *BESIDE):
        beside(path, name).unlink(missing_ok=True)


def move(path: Path) -> None:
    path.rename(path.with_name("away.db"))


def move_the_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("away"))


def replace_by_another(path: Path) -> None:
    other = path.with_name("other.db")
    asyncio.run(_with_one_entry(other))
    delete_all(path)
    other.rename(path)


async def _with_one_entry(path: Path) -> None:
    store = SqliteStore(path)
    await store.put("other", b"v", TTL)
    await store.close()


async def answers(store: SqliteStore, other: SqliteStore) -> None:
    """Both see what either stores."""
    for number, (one, two) in enumerate(((store, other), (other, store))):
        assert await one.put(f"new {number}", b"v", TTL, only_new=True) is None
        assert await two.get_many([f"new {number}"]) == [b"v"]


@pytest.mark.parametrize("harm", [delete, delete_all, move, move_the_folder, replace_by_another])
async def test_a_file_that_went_away_is_let_go_of_at_once(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    path = tmp_path / "var" / "store.db"
    store, other = SqliteStore(path), SqliteStore(path)
    await store.put("key", b"v", TTL)
    assert await other.get_many(["key"]) == [b"v"]
    await asyncio.to_thread(harm, path)
    assert await store.get_many(["key", "other"]) == [None, b"v" if harm is replace_by_another else None]
    await answers(store, other)
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    await store.close()
    await other.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert not any(beside(path, name).exists() for name in BESIDE)


def pages_of_noise(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(100)
        file.write(random.Random(1).randbytes(max(size - 100, 0)))


def no_database(path: Path) -> None:
    path.write_bytes(b"this is a text, and was never a database " * 400)


def half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("code", "way_out"),
    [
        (sqlite3.SQLITE_FULL, "free space on this disk, or choose another path"),
        (sqlite3.SQLITE_READONLY, "let this user write there, or choose another path"),
        (sqlite3.SQLITE_CANTOPEN, "let this user write there, or choose another path"),
        (sqlite3.SQLITE_NOTADB, "move this file away or choose another path"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_with_the_way_out_of_its_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, way_out: str
) -> None:
    def fail(_: object) -> None:
        error = sqlite3.OperationalError("as SQLite says it")
        error.sqlite_errorcode = code
        raise error

    monkeypatch.setattr(sqlite_file, "_prepare", fail)
    with pytest.raises(StoreError) as refused:
        sqlite_file.open_file(tmp_path / "s.db", 1.0)
    assert str(refused.value).endswith(f"(as SQLite says it); {way_out}")


@pytest.mark.parametrize(
    ("number", "way_out"), [(errno.ENOSPC, "free space"), (errno.EDQUOT, "free space"), (errno.EACCES, "let this user")]
)
def test_a_file_that_cannot_be_made_is_told_with_the_way_out_of_its_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, way_out: str
) -> None:
    def fail(_: object) -> None:
        raise OSError(number, "as the system says it")

    monkeypatch.setattr(sqlite_file, "_create_private", fail)
    with pytest.raises(StoreError, match=f"; {way_out}"):
        sqlite_file.open_file(tmp_path / "s.db", 1.0)


@pytest.mark.parametrize("harm", [pages_of_noise, no_database, half])
async def test_a_damaged_file_is_down_until_it_is_moved_away(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    path = tmp_path / "store.db"
    first = SqliteStore(path)
    for number in range(500):
        await first.put(f"key {number}", b"v" * 500, TTL)
    await first.close()  # which leaves all of it in the file
    store, other = SqliteStore(path), SqliteStore(path)
    harm(path)
    for _ in range(3):
        for one in (store, other):
            with pytest.raises(StoreError):
                await one.get_many([f"key {number}" for number in range(500)])
    with pytest.raises(StoreError, match="move this file away"):
        await store.get_many(["key 1"])
    path.rename(tmp_path / "away.db")
    assert await store.get_many(["key 1"]) == [None]
    await answers(store, other)
    await store.close()
    await other.close()


async def test_many_stores_agree_on_a_file_that_is_deleted_over_and_over(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    stores = [SqliteStore(path, timeout=5) for _ in range(4)]
    for number in range(30):
        await asyncio.gather(*(store.put(f"{number} {i}", b"v", TTL) for i, store in enumerate(stores)))
        for store in stores:
            assert await store.get_many([f"{number} {i}" for i in range(4)]) == [b"v"] * 4
        (delete if number % 2 else delete_all)(path)
    for store in stores:
        await store.close()


@pytest.mark.usefixtures("one_replica")
async def test_what_a_lost_file_held_is_erased_where_it_is_remembered(tmp_path: Path) -> None:
    path, caller = tmp_path / "store.db", bearer("one")
    async with (
        upstream(summarizing) as behind,
        serving(config_for(tmp_path, behind.address, store={"url": f"sqlite:///{path}"}, **OPERATED)) as address,
    ):
        assert await outcome(address, caller, LABEL) == b"applied"
        (session,) = await enrolled(address, 1)
        delete_all(path)
        assert await listed(address) == [session]
        assert await outcome(address, caller, LABEL) == b"applied", "its epoch is lost"
        assert (await erased(address, "the%20deploy")).status == 200
        assert await listed(address) == []
        assert await outcome(address, caller, LABEL) == b"applied"
        assert path.exists()
