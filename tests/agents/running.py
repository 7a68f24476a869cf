"""Running an agent as a user does, with its work before it: no network but this machine, and a home of its own."""

from __future__ import annotations

import asyncio
import os
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from starlette.types import Receive

SECONDS = 120


async def run(
    command: Sequence[str], env: Mapping[str, str], work: Path, home: Path, seconds: float = SECONDS
) -> tuple[int | None, str]:
    """Its exit code, and what it said; it is ended after so many seconds."""
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
        said, _ = await asyncio.wait_for(running.communicate(), seconds)
    except TimeoutError:
        os.killpg(running.pid, 9)
        said, _ = await running.communicate()
    return running.returncode, said.decode("utf-8", "replace")


def lines_of(text: str) -> list[str]:
    """The log's lines."""
    return [line for line in text.splitlines() if line.startswith("{")]


def parts(folder: Path, rounds: int, characters: int) -> None:
    """Files to be read, each with an end of its own."""
    made = random.Random(1)
    for number in range(1, rounds + 1):
        lines = [f"part {number}:"]
        while sum(map(len, lines)) < characters:
            lines.append(f"record {made.randrange(10**6)} is kept in the store under digest {made.randrange(10**6)}")
        (folder / f"part_{number}.txt").write_text("\n".join([*lines, ended(number), ""]))


def ended(number: int) -> str:
    return f"end of part {number}."


async def received(receive: Receive) -> bytes:
    """The whole body of a request."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body
