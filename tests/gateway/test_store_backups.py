"""A SQLite store is copied while the proxy runs, as docs/operations.md says, and put back elsewhere."""

from __future__ import annotations

import asyncio
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.stages import DUE, ours, stage

OPERATIONS = (Path(__file__).parents[2] / "docs/operations.md").read_text("utf-8")


async def outcome(directory: Path) -> str:
    """What is done with a request that is due, over the store of this directory."""
    async with stage(directory, store={"url": f"sqlite:///{directory}/concertina.db"}) as play:
        reply = await play.send(DUE)
        await play.settled()
        return ours(reply)[""]


async def backed_up(directory: Path, statement: str) -> None:
    """Let a session be compacted, and copy the store while the proxy runs."""
    async with stage(directory, store={"url": f"sqlite:///{directory}/concertina.db"}) as play:
        await play.send(DUE)
        await play.settled()
        with closing(sqlite3.connect(directory / "concertina.db")) as connection:
            connection.execute(statement)


@pytest.mark.parametrize(("secret", "found"), [(True, True), (False, False)])
def test_a_backup_with_its_secret_is_the_store_again_and_without_it_sessions_start_anew(
    tmp_path: Path, secret: bool, found: bool
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for directory in (here, there):
        directory.mkdir()
    (statement,) = re.findall(r'sqlite3 var/concertina\.db "(VACUUM INTO .+)"', OPERATIONS)
    asyncio.run(backed_up(here, statement.replace("backup/", f"{there}/")))
    if secret:
        shutil.copy(here / "concertina.db.secret", there)
    assert (asyncio.run(outcome(there)) == "reused") is found
