"""`benchmarks.memory`: what answers need of far back, and what of it is still sent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from benchmarks.memory import played
from tests.support.conversations import Json, assistant, tool, user

if TYPE_CHECKING:
    from pathlib import Path

WINDOW = 8_000
FILLER = "the parser reads every line of it and nothing else happens here "


def session(rounds: int) -> list[Json]:
    """An agent that in the end needs a name of its first round, one of its last, and one that nobody has said."""
    messages = [user("Port the ingest service."), assistant("", "c0", arguments='{"command": "cat src/ingest.py"}')]
    messages.append(tool("c0", "12: def load_rows(path, dialect_name):\n" + FILLER * 5))
    for number in range(1, rounds):
        messages.append(assistant(FILLER * 3, f"c{number}", arguments=f'{{"command": "make step-{number}"}}'))
        messages.append(tool(f"c{number}", FILLER * 20 + f"step_{number}_done"))
    return [*messages, assistant(f"Call load_rows after step_{rounds - 1}_done, then never_said."), user("Go on.")]


def test_it_counts_what_is_needed_of_far_back_and_what_of_it_is_sent(tmp_path: Path) -> None:
    (tmp_path / "session.json").write_text(json.dumps(session(60)), "utf-8")
    (policies,) = played(tmp_path / "session.json", WINDOW, frozenset()).values()
    carried, without = policies["carried"][1], policies["without"][1]
    assert policies["no proxy"][1] is None
    assert carried is not None
    assert without is not None
    assert (carried.needs, carried.recall, carried.in_context, carried.steps_possible) == (1, 1.0, 1.0, 1.0)
    assert (without.needs, without.recall, without.in_context) == (1, 0.0, 0.0)
    assert without.steps_possible < 1.0
    assert carried.newest_same_size == carried.newest_full_window == 0.0
