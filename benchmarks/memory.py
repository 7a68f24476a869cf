"""`python -m benchmarks.memory FOLDER`: what agents need again of far back, and what of it is still in the prompt.

FOLDER holds recorded sessions in any form that `concertina replay` reads. Each is played request by request through the
engine at every window, with no model to summarize: the worst case. `carried`: the default policy; `without`: the same
without working set and recall. Beside them the newest messages of the same size, and as many as the window takes. A
name that a third of at least six sessions have is no need. `steps`: the share of answers that had all their names, in
what was sent and in the newest of a full window. `recall` is the mean of the sessions, `micro` of all needs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks.recall import Recall, RecallMeasure
from policies.record.names import names_in
from proxy.cli.common import caller_of
from proxy.cli.replay.command import find_recordings
from proxy.cli.replay.replay import replay, with_window
from proxy.config.loading import load_text
from proxy.wiring import open_apart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proxy.cli.replay.figures import PolicyRow

_MODEL = "gpt-4o"
_BASE = {"extends": "default", "summarizer": {"model": "none"}}
_POLICIES = {"carried": _BASE, "without": _BASE | {"working_set": {"budget_ratio": 0}, "recall": "off"}}
_CONFIG = {"upstreams": {"main": {"base_url": "http://127.0.0.1:9/v1"}}, "policies": _POLICIES}
# A name that so many sessions of so many have means nothing.
_COMMON = 1 / 3
_LEAST_SESSIONS = 6

_SHARES = (
    *("recall", "in_context", "newest_same_size", "newest_full_window"),
    *("steps_possible", "steps_full_window"),
)

Played = dict[str, tuple["PolicyRow", Recall | None]]


def common_names(files: Sequence[Path]) -> frozenset[str]:
    if len(files) < _LEAST_SESSIONS:
        return frozenset()
    seen: dict[str, int] = {}
    for file in files:
        for name in names_in(file.read_text("utf-8").replace("\\n", "\n").replace('\\"', '"')):
            seen[name] = seen.get(name, 0) + 1
    return frozenset(name for name, times in seen.items() if times >= math.ceil(_COMMON * len(files)))


def played(file: Path, window: int, common: frozenset[str]) -> dict[str, Played]:
    """The rows of a file's sessions by policy."""
    config = load_text("benchmark", json.dumps(_CONFIG), {})
    callers = [caller_of(config, "default", name) for name in _POLICIES]
    recordings = find_recordings(file, _MODEL, print)
    measure, config = RecallMeasure(common), with_window(config, window)
    played = asyncio.run(replay(open_apart, config, recordings, callers, lambda: None, print, answered=measure))
    return {
        session.name: {name: (row, measure.of(session.name, name)) for name, row in session.policies.items()}
        for session in played.sessions
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.memory", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--windows", type=int, nargs="+", default=[8_000, 16_000, 32_000])
    parser.add_argument("--only", type=Path, help="a file with the names of the sessions to play, one a line")
    options = parser.parse_args()
    files = sorted(options.folder.glob("*.json*"))
    common = common_names(files)
    if options.only is not None:
        names = set(options.only.read_text("utf-8").split())
        files = [file for file in files if file.stem in names]
    for window in options.windows:
        with ProcessPoolExecutor(2) as workers:
            sessions: dict[str, Played] = {}
            for rows in workers.map(partial(played, window=window, common=common), files):
                sessions |= rows
        _show(window, sessions)


def _show(window: int, sessions: dict[str, Played]) -> None:
    table = Table(title=f"window {window:,}", header_style="bold")
    columns = (
        "needs",
        "recall",
        "in context",
        "newest, same size",
        "newest, full window",
        "steps",
        "steps, full window",
        "sent",
        "compactions",
        "reuse",
    )
    table.add_column("session")
    table.add_column("policy")
    for column in columns:
        table.add_column(column, justify="right")
    for name, policies in sessions.items():
        for policy in _POLICIES:
            if policies[policy][1] is not None:
                table.add_row(name, policy, *_cells([policies[policy]]))
        table.add_section()
    for policy in _POLICIES:
        rows = [policies[policy] for policies in sessions.values()]
        table.add_row("mean of sessions", policy, *_cells(rows))
        table.add_row("of all needs", policy, *_cells(rows, by_need=True))
    Console(width=150).print(table)


def _cells(rows: Sequence[tuple[PolicyRow, Recall | None]], *, by_need: bool = False) -> list[str]:
    met = [recall for _, recall in rows if recall is not None]
    if not met:
        return ["0"]
    weights = [each.needs if by_need else 1 for each in met]

    def share(name: str) -> str:
        return f"{fmean((getattr(each, name) for each in met), weights):.3f}"

    reuse = [row.prefix_reuse for row, _ in rows if row.prefix_reuse is not None]
    return [
        str(sum(each.needs for each in met)),
        *map(share, _SHARES),
        f"{fmean(each.tokens_sent for each in met):,.0f}",
        str(sum(row.compactions_inline + row.compactions_background for row, _ in rows)),
        f"{fmean(reuse):.3f}",
    ]


if __name__ == "__main__":
    main()
