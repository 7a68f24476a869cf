"""`python -m benchmarks.fresh [--window N ...] [--against CHECKOUT] [--save DIR]`: records of fresh sessions, judged.

Generated sessions are played through the real server, without a model that summarizes. What the last record says is
held against what is true of the session; another checkout's figures stand beside if one is named.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.fresh.judge import Verdict, judged
from benchmarks.fresh.run import played, serving
from benchmarks.fresh.sessions import KINDS, Event, session
from benchmarks.fresh.wire import play, typed

_PROCESSES = 2
_SHOWN = 12


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.fresh", description=__doc__)
    parser.add_argument("--window", type=int, nargs="+", default=[8_000, 32_000], help="windows, in tokens")
    parser.add_argument("--against", type=Path, help="another checkout, whose figures stand beside")
    parser.add_argument("--checkout", type=Path, default=Path.cwd(), help="the checkout that is measured")
    parser.add_argument("--save", type=Path, help="where each session goes with its last record")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", nargs="+", choices=list(KINDS), default=list(KINDS))
    options = parser.parse_args()
    checkouts = [each.resolve() for each in (options.checkout, options.against) if each]
    with ProcessPoolExecutor(_PROCESSES) as pool:
        jobs = {
            (window, checkout): pool.submit(_measured, checkout, window, options.kind, options.seed)
            for window in options.window
            for checkout in checkouts
        }
        results = {key: job.result() for key, job in jobs.items()}
    console = Console()
    for window in options.window:
        console.print(_table(window, {each: results[window, each] for each in checkouts}))
    for (window, checkout), verdicts in results.items():
        reasons = Counter(reason for verdict in verdicts.values() for reason, _ in verdict.false_lines)
        console.print(f"\n{checkout.name} at {window}: {dict(reasons.most_common())}", highlight=False)
        for kind, verdict in verdicts.items():
            for reason, line in verdict.false_lines[:_SHOWN]:
                console.print(f"  {kind}: {reason}: {line[:160]}", markup=False, highlight=False)
    if options.save:
        _save(options.save, results, options.seed)


def _measured(checkout: Path, window: int, kinds: list[str], seed: int) -> dict[str, Verdict]:
    verdicts = {}
    with serving(checkout, [window]) as (port, upstream):
        for name in kinds:
            events = session(KINDS[name], seed)
            wire = play(KINDS[name], events)
            verdicts[name] = judged(events, wire, played(wire, window, port, upstream), window)
    return verdicts


def _mean(verdicts: dict[str, Verdict], name: str) -> float:
    values = [each.figures[name] for each in verdicts.values() if not math.isnan(each.figures[name])]
    return sum(values) / len(values) if values else math.nan


def _table(window: int, results: dict[Path, dict[str, Verdict]]) -> Table:
    """Return means of all figures, then false lines and people's messages of each session."""
    table = Table("figure", *(each.name for each in results), title=f"window {window}")
    first = next(iter(results.values()))
    for name in next(iter(first.values())).figures:
        table.add_row(name, *(f"{_mean(each, name):.3f}" for each in results.values()))
    for part in sorted({part for each in results.values() for verdict in each.values() for part in verdict.parts}):
        sizes = [sum(v.parts.get(part, 0) for v in each.values()) / len(each) for each in results.values()]
        table.add_row(f"tokens of {part}", *(f"{size:.0f}" for size in sizes))
    table.add_section()
    for kind in first:
        told = [
            f"{each[kind].figures['false_lines_of_100']:.1f} false, people {each[kind].figures['people_present']:.2f}, "
            f"recall {each[kind].figures['recall']:.2f}"
            for each in results.values()
        ]
        table.add_row(kind, *told)
    return table


def _save(folder: Path, results: dict[tuple[int, Path], dict[str, Verdict]], seed: int) -> None:
    for (window, checkout), verdicts in results.items():
        for kind, verdict in verdicts.items():
            file = folder / f"{checkout.name}-{window}" / f"{kind}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            false = "\n".join(f"{reason}: {line}" for reason, line in verdict.false_lines)
            missing = "\n".join(verdict.missing)
            told = "\n".join(map(_readable, session(KINDS[kind], seed)))
            file.write_text(f"FALSE\n{false}\n\nMISSING\n{missing}\n\n{verdict.record}\n\nSESSION\n{told}\n")
    figures = {
        f"{checkout.name}-{window}": {kind: {**asdict(verdict), "record": ""} for kind, verdict in verdicts.items()}
        for (window, checkout), verdicts in results.items()
    }
    (folder / "figures.json").write_text(json.dumps(figures, ensure_ascii=False, indent=1))


def _readable(event: Event) -> str:
    if event.who == "call":
        return (
            f"[call {event.outcome}] {event.tool} {json.dumps(event.arguments, ensure_ascii=False)}\n{event.result}\n"
        )
    return f"[{event.who} {event.kind}] {typed(event)}\n"


if __name__ == "__main__":
    main()
