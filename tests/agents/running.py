"""Running an agent as a user does, alone with the proxy: no network but this machine, and a home of its own."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

SECONDS = 120


async def run(command: Sequence[str], env: Mapping[str, str], work: Path, home: Path) -> tuple[int | None, str]:
    """Its exit code, and what it said."""
    running = await asyncio.create_subprocess_exec(
        *command,
        cwd=work,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "NO_COLOR": "1", **env},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        said, _ = await asyncio.wait_for(running.communicate(), SECONDS)
    except TimeoutError:
        os.killpg(running.pid, 9)
        said, _ = await running.communicate()
    return running.returncode, said.decode("utf-8", "replace")


def lines_of(text: str) -> list[str]:
    """The log's lines."""
    return [line for line in text.splitlines() if line.startswith("{")]
