"""`python -m benchmarks.file_changes`: what a record says that 60 calls of many agents' tools did to files.

A call is right if the record names just its files with just what was done to them (`benchmarks/work/changes.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks.work.changes import HELD_OUT, TUNED, Change
from policies.transcript import ToolCall, Utterance
from tests.support.records import made

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.work.changes import Case


def told(case: Case) -> set[Change]:
    """The files that a record has after the calls."""
    said = [Utterance(0, "user", "Go on.")]
    for number, (tool, arguments, result) in enumerate(case.calls):
        call = ToolCall(tool, arguments, f"c{number}")
        said += [
            Utterance(2 * number + 1, "assistant", "", (call,)),
            Utterance(2 * number + 2, "tool", result, answers=call.id, tool=tool),
        ]
    files = made(said, written=None).files
    return {Change(f.path, f.action, getattr(f, "other", "") if f.action == "renamed" else "") for f in files}


def main() -> None:
    table = Table(title="file changes of calls", header_style="bold")
    for column in ("half", "calls", "right", "share"):
        table.add_column(column, justify="left" if column == "half" else "right")
    for name, cases in (("tuned on", TUNED), ("held out", HELD_OUT)):
        right = _right(cases)
        table.add_row(name, str(len(cases)), str(right), f"{right / len(cases):.3f}")
    Console(width=100).print(table)


def _right(cases: Sequence[Case]) -> int:
    return sum(told(case) == set(case.files) for case in cases)


if __name__ == "__main__":
    main()
