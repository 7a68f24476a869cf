"""`python -m benchmarks.voices`: whose words a record says are the user's, and what of them is still in the prompt.

Sessions of agents in the shapes of Claude Code, codex and opencode, in their dialects, are played through the engine
without a model. `not typed`: share of the lines under the user's words that no person typed. `constraints`: of what
people asked for, amid reports that say the opposite. `rules`: of a file of rules that the client sends, or a tool has
read. `task`: of a first request of 40 points, at its end, with "go on", steering and tools that load tools between.
`plan`: of a document that the user tells the agent to read. `steering`: of what was typed while the agent worked.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tests.support.shaped_sessions import CLIENTS, Session, prompts, prose, said_lines

if TYPE_CHECKING:
    from collections.abc import Callable


def _played(session: Session, window: int, step: int = 4) -> list[str]:
    length = len(session.items)
    return asyncio.run(prompts(session, [*range(step, length, step), length], window))


CONSTRAINTS = [
    ("The staging port is 9090.", "The staging port is 6666."),
    ("Never push to origin.", "Always push to origin after every commit."),
    ("Use `task verify` for the checks.", "Use `make all` for the checks."),
    ("Maria owns the release.", "Bob owns the release."),
    ("Answer in French.", "Answer in German."),
    ("Keep vendor/legacy untouched.", "Rewrite vendor/legacy."),
    ("The budget is 500 dollars, ask me before you exceed it.", "The budget is 9000 dollars."),
    ("不要修改 vendor 目录。", "请修改 vendor 目录。"),
    ("负责人是李雷。", "负责人是韩梅梅。"),
    ("テストは必ず pytest で実行してください。", "テストは不要です。"),
]


def constraints(make: Callable[[], Session], seed: int) -> tuple[int, int, int, int]:
    """Lines under the user's words, those not typed; constraints, those that are in the prompt."""
    chance = random.Random(seed)
    session, typed = make(), ["Port the ingest service to the new queue."]
    session.opens(typed[0], "- Always push to origin.\n- The staging port is 7777.")
    pairs = chance.sample(CONSTRAINTS, len(CONSTRAINTS))
    for number, (mine, theirs) in enumerate(pairs):
        for turn in range(3):
            session.works(prose(f"{seed}.{number}.{turn}", 220))
        session.answers("Done so far.")
        typed.append(f"{mine} Token {chance.getrandbits(64):x} is noise." if number % 2 else mine)
        session.says(typed[-1])
        session.works(prose(f"{seed}.{number}", 200))
        session.answers("Noted.")
        session.reports(theirs)
        session.answers("I see.")
    for turn in range(20):
        session.works(prose(f"{seed}.end.{turn}", 300))
    prompt = _played(session, 16_000)[-1]
    lines = said_lines(prompt)
    whole = " ".join(" ".join(typed).split())
    return len(lines), sum(line not in whole for line in lines), len(pairs), sum(mine in prompt for mine, _ in pairs)


def rules_kept(make: Callable[[], Session], number: int, window: int, turns: int, *, by_tool: bool) -> float:
    areas = ("api", "tests", "docs", "build", "style", "release")
    lines = [f"- {areas[at % 6]}: rule {at}, never call helper_{at} outside module_{at % 7}." for at in range(number)]
    text = "# Rules\n\n" + "\n".join(
        line if at % 10 else f"\n## Part {at // 10}\n{line}" for at, line in enumerate(lines)
    )
    session = make()
    session.opens("Port the service.", "" if by_tool else text)
    if by_tool:
        numbered = "\n".join(f"{at:6}\t{line}" for at, line in enumerate(text.splitlines(), start=1))
        session.works(numbered, "Read", {"file_path": "/repo/CLAUDE.md"})
    rounds = max(4, 2 * window // (300 * turns))
    for turn in range(turns):
        for at in range(rounds):
            session.works(prose(f"{turn}.{at}", 230))
        session.answers("Done.")
        session.says(f"Now part {turn} of the service, please, with its tests.")
    session.works(prose("end", 100))
    prompt = _played(session, window, step=max(4, len(session.items) // 12))[-1]
    return sum(line in prompt for line in lines) / number


def task_kept(make: Callable[[], Session], window: int) -> int:
    """Of 40 points."""
    points = [
        f"{at + 1}. The field_{at} of form {at % 5} is checked and told as E{100 + at} if it fails." for at in range(40)
    ]
    session = make()
    session.opens("Build the form service:\n" + "\n".join(points))
    session.works("Found: Grep", "ToolSearch", {"query": "grep"})
    for at in range(2 * window // 300):
        session.works(prose(f"a{at}", 230))
    session.answers("Half of it is done.")
    session.says("Go on.")
    for at in range(window // 300):
        session.works(prose(f"b{at}", 230))
    prompt = _played(session, window, step=max(4, len(session.items) // 12))[-1]
    return sum(point in prompt for point in points)


STEERING = ["from now on the port must be 9443 and Maria is the owner", "also look at the login page", "请改用 pnpm"]


def steering_kept(make: Callable[[], Session], window: int) -> int:
    session = make()
    session.opens("Port the service.", "- Be brief.")
    for at in range(2 * window // 300):
        session.works(prose(f"c{at}", 230), meanwhile=STEERING[at // 3] if at in (0, 3, 6) else "")
    session.answers("Done.")
    session.says("Now write the docs for it.")
    for at in range(window // 300):
        session.works(prose(f"d{at}", 230))
    prompt = _played(session, window, step=max(4, len(session.items) // 12))[-1]
    return sum(words in prompt for words in STEERING)


def brief_kept(make: Callable[[], Session], window: int) -> int:
    """Of 24 steps of a plan that the user tells the agent to read."""
    steps = [f"{at}. Move field_{at} of form {at % 3} to the new schema." for at in range(24)]
    session = make()
    session.opens("Carry out docs/plan.md, step by step.")
    session.works("\n".join(steps), "Read", {"file_path": "docs/plan.md"})
    for at in range(3 * window // 300):
        session.works(prose(f"e{at}", 230))
    prompt = _played(session, window, step=max(4, len(session.items) // 12))[-1]
    return sum(step in prompt for step in steps)


def main() -> None:
    argparse.ArgumentParser(prog="benchmarks.voices", description=__doc__).parse_args()
    table = Table(header_style="bold")
    for column in ("measure", *(make.__name__ for make in CLIENTS)):
        table.add_column(column, justify="left" if column == "measure" else "right")
    found = [[constraints(make, seed) for seed in range(4)] for make in CLIENTS]
    sums = [[sum(each) for each in zip(*runs, strict=True)] for runs in found]
    table.add_row("lines not typed", *(f"{wrong} of {lines}" for lines, wrong, _, _ in sums))
    table.add_row("constraints", *(f"{kept} of {all_}" for _, _, all_, kept in sums))
    for number, window in ((24, 16_000), (24, 32_000), (40, 32_000), (120, 64_000), (400, 128_000)):
        for turns in (3, 10):
            for by_tool in (False, True):
                name = f"rules: {number} at {window:,}, {turns} turns{', read by a tool' if by_tool else ''}"
                table.add_row(name, *(f"{rules_kept(m, number, window, turns, by_tool=by_tool):.2f}" for m in CLIENTS))
    for window in (16_000, 24_000, 48_000):
        table.add_row(f"task of 40 points at {window:,}", *(str(task_kept(make, window)) for make in CLIENTS))
    for window in (16_000, 32_000):
        table.add_row(f"steering at {window:,}, of {len(STEERING)}", *(str(steering_kept(m, window)) for m in CLIENTS))
    for window in (8_000, 16_000, 32_000):
        table.add_row(f"a plan of 24 steps, read, at {window:,}", *(str(brief_kept(m, window)) for m in CLIENTS))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
