"""`python -m benchmarks.plans`: items of an agent's plan that a record still has, after each of 60 rounds of work.

Each agent makes a plan with its own tool, works and reads files in between, and changes the plan. A record is made
behind every round, each upon the one before. `items`: word for word, in order, in the record's
text; `status`: with what is done told apart from what is open.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks.work.plans import AGENTS, HELD_OUT, rounds
from policies.budget import budget_of
from policies.transcript import ToolCall, Utterance
from tests.support.records import made

if TYPE_CHECKING:
    from benchmarks.work.plans import Item, Round, Say
    from policies.record.record import Record

_ROUNDS = 60
_WINDOW = 16_000


def _work(position: int, step: Round, number: int) -> list[Utterance]:
    """The calls of the plan's tool, and what is done beside them."""
    read = ToolCall("read_file", json.dumps({"path": f"src/module_{number}.py"}), f"r{position}")
    calls = [(ToolCall(tool, text, f"p{position}.{at}"), said) for at, (tool, text, said) in enumerate(step.calls)]
    body = "\n".join(f"def function_{number}_{line}(value): return value + {line}" for line in range(30))
    return [
        Utterance(position, "assistant", "", tuple(call for call, _ in calls)),
        *(Utterance(position + 1, "tool", said, answers=call.id, tool=call.name) for call, said in calls),
        Utterance(position + 2, "assistant", "I read on.", (read,)),
        Utterance(position + 3, "tool", body, answers=read.id, tool=read.name),
    ]


def played(say: Say) -> tuple[float, float]:
    """Shares of the items, and of those whose status is told, over all records of a session."""
    record: Record | None = None
    span = [Utterance(0, "user", "Port the service to the new API, step by step.")]
    items = kept = stated = position = 0
    for number, step in enumerate(rounds(say, _ROUNDS)):
        span += _work(position := position + 4, step, number)
        record = made(span, record, None, budget=budget_of(_WINDOW, _WINDOW * 9 // 10))
        span = []
        items += len(step.plan)
        found, told = _found(record.text, step.plan)
        kept, stated = kept + found, stated + told
    return kept / items, stated / items


def _found(text: str, plan: list[Item]) -> tuple[int, int]:
    lines = [line for line in text.splitlines() if line.lstrip("> ").startswith("- [")]
    kept = stated = at = 0
    for item in plan:
        here = next((index for index in range(at, len(lines)) if item.text in lines[index]), None)
        if here is not None:
            at = here + 1
            kept += 1
            stated += ("[x]" in lines[here]) == (item.status == "completed")
    return kept, stated


def main() -> None:
    table = Table(title=f"plans after {_ROUNDS} rounds, window {_WINDOW:,}", header_style="bold")
    for column in ("half", "agent", "items", "status"):
        table.add_column(column, justify="right" if column in ("items", "status") else "left")
    for half, agents in (("tuned on", AGENTS), ("held out", HELD_OUT)):
        for name, say in agents.items():
            table.add_row(half, name, *(f"{share:.2f}" for share in played(say)))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
