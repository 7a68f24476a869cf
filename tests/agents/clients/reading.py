"""What the clients here have in common: a tool that reads a part, and notes that it did."""

from __future__ import annotations

from pathlib import Path

TASK = "Read every part, in order. Never change a part. Call the release Heron."


def part(number: int) -> str:
    """Text of a part, which is read in the working folder."""
    with Path("journal.txt").open("a") as journal:
        journal.write(f"{number}\n")
    return Path(f"part_{number}.txt").read_text()


def said(turn: int) -> str:
    """What the user says in a turn of a session."""
    return TASK if turn == 1 else f"Go on with part {turn}."
