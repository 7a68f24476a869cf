"""A SQLite store is copied while the proxy runs, as docs/deploy.md says, and put back elsewhere."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stages import DUE, ours, stage

OPERATIONS = (Path(__file__).parents[2] / "docs/deploy.md").read_text("utf-8")
SQLITE3 = f"""#!{sys.executable}
import sqlite3, sys
sqlite3.connect(sys.argv[1]).execute(sys.argv[2])
"""


async def outcome(folder: Path) -> str:
    """What is done with a request that is due, over the store of this folder."""
    async with stage(folder, store={"url": f"sqlite:///{folder}/concertina.db"}) as play:
        reply = await play.send(DUE)
        await play.settled()
        return ours(reply)[""]


async def backed_up(folder: Path) -> list[Path]:
    """Let a session be compacted, and copy the store twice while the proxy runs."""
    section = OPERATIONS.partition("## Back up")[2]
    commands = section.partition("```sh\n")[2].partition("```")[0]
    (store := folder / "var").mkdir()
    (tool := folder / "bin/sqlite3").parent.mkdir()
    tool.write_text(SQLITE3)
    tool.chmod(0o755)
    environment = {"PATH": f"{tool.parent}:{os.environ['PATH']}"}
    async with stage(store, store={"url": f"sqlite:///{store}/concertina.db"}) as play:
        await play.send(DUE)
        await play.settled()
        for _ in range(2):
            words = ["sh", "-ec", commands]
            await asyncio.to_thread(subprocess.run, words, cwd=folder, env=environment, check=True)
    return sorted((folder / "backup").iterdir())


@pytest.mark.parametrize(("secret", "found"), [(True, True), (False, False)])
def test_a_backup_with_its_secret_is_the_store_again_and_without_it_sessions_start_anew(
    tmp_path: Path, secret: bool, found: bool
) -> None:
    backups = asyncio.run(backed_up(tmp_path))
    assert len(backups) == 2
    for backup in backups:
        assert {file.name: file.stat().st_mode & 0o777 for file in backup.iterdir()} == {
            "concertina.db": 0o600,
            "concertina.db.admin-token": 0o600,
            "concertina.db.secret": 0o600,
        }
        if not secret:
            (backup / "concertina.db.secret").unlink()
        assert (asyncio.run(outcome(backup)) == "reused") is found
