"""`python -m benchmarks.outcomes`: what a record says became of 200 calls, against what did.

Results in twelve languages of shells, test runners, compilers, editors and services (`benchmarks/work/results.py`). A
wrong `ok` counts apart: it is what a reader trusts. Rules were changed for both halves, so the figures say only that
nothing got worse.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks.work.results import EDIT, FIRST, READ, SECOND, SHELL, WRITE
from policies.transcript import ToolCall, Utterance
from tests.support.records import made

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.work.results import Row

_PATHS = {READ, EDIT, WRITE, "Edit", "Write", "str_replace_editor", "apply_diff", "move_file"}
_SHELLS = {SHELL, "exec_command", "terminal", "run_shell_command", "shell", "Bash", "powershell"}


def told(row: Row) -> str:
    """What the record without a model says of the call: in the words of a row."""
    _, tool, argument, error, text, _ = row
    key = "path" if tool in _PATHS else "command" if tool in _SHELLS else "query"
    arguments: object = {"commands": [argument]} if tool == "run_commands" else {key: argument}
    call = ToolCall(tool, json.dumps(arguments), "c1")
    result = Utterance(2, "tool", text, answers="c1", tool=tool, **({} if error is None else {"error": error}))
    record = made([Utterance(0, "user", "Go on."), Utterance(1, "assistant", "", (call,)), result], written=None)
    return record.actions[-1].outcome


def main() -> None:
    table = Table(title="outcomes of calls", header_style="bold")
    for column in ("half", "results", "right", "share", "wrong ok", "failed called ok"):
        table.add_column(column, justify="left" if column == "half" else "right")
    for name, rows in (("first", FIRST), ("second", SECOND)):
        table.add_row(name, *_figures(rows))
    Console(width=100).print(table)


def _figures(rows: Sequence[Row]) -> list[str]:
    found = Counter((row[-1], told(row)) for row in rows)
    right = sum(times for (expected, said), times in found.items() if expected == said)
    wrong = sum(times for (expected, said), times in found.items() if said == "ok" != expected)
    return [str(len(rows)), str(right), f"{right / len(rows):.3f}", str(wrong), str(found["failed", "ok"])]


if __name__ == "__main__":
    main()
