"""`python -m benchmarks.price FOLDER`: what sessions cost under policies, beside an agent's own compaction.

FOLDER holds recorded sessions in any form that `concertina replay` reads. Each is played once per policy, its summaries
written by a stand-in; then every prompt is priced at each provider's list price (`policies.price`), with the cache warm
(every request comes while the cache holds the one before it) and cold (none does). Compactions that are made since they
pay (`economy`) are decided by one price list for all (`--decides`). Answers cost the same everywhere and are left out.
The baseline, 0 %: the agent itself summarises at 95 % of the window, is asked with the cache it has, writes 3,000
tokens and reads 10,000 of its files again. recall: of the names that answers needed of more than 20,000 tokens back.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING
from unittest.mock import patch

from rich.console import Console
from rich.table import Table

from benchmarks.memory import common_names
from benchmarks.recall import RecallMeasure
from policies.price import Price, Tokens, continued_prompt
from proxy.cli.common import caller_of
from proxy.cli.replay.command import find_recordings
from proxy.cli.replay.figures import LEAST_CACHED, NO_PROXY
from proxy.cli.replay.replay import replay, with_window
from proxy.config.loading import load_text
from proxy.models.table import ModelTable
from proxy.wiring import open_apart

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MODEL = "gpt-4o"
PROVIDERS = ("claude-sonnet-4-5", "gpt-5", "deepseek-chat", "gpt-4o")
_PRESETS = ("default", "coding-agent", "chat", "cost")
# An agent's own compaction: what its summary has, what it reads again, and what it asks with.
_OWN_SUMMARY, _OWN_READ, _OWN_QUESTION = 3_000, 10_000, 500
_OWN_SHARES = (0.95, 0.8)
# Tokens between a name and its need: the same in every window, so that curves of two compare.
_FAR = 20_000


@dataclass
class Played:
    """One session: the prompts of every policy in order, tokens of tools and head, and what was recalled."""

    name: str
    fixed: int
    calls: dict[str, list[Tokens]] = field(default_factory=dict)
    summaries: dict[str, int] = field(default_factory=dict)
    recall: dict[str, float | None] = field(default_factory=dict)


class _PricedAs(ModelTable):
    """The table of models, in which each has the price of one of them."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self._model = model

    def price(self, model: str) -> Price | None:  # noqa: ARG002 - all have the price of one
        return super().price(self._model)


def played(file: Path, window: int, points: dict[str, object], common: frozenset[str], decides: str) -> list[Played]:
    config = load_text(
        "benchmark",
        json.dumps({"upstreams": {"main": {"base_url": "http://127.0.0.1:9/v1"}}, "policies": points}),
        {},
    )
    callers = [caller_of(config, "default", name) for name in points]
    sessions = []
    for recording in find_recordings(file, _MODEL, print):
        calls: dict[str, list[Tokens]] = {}
        summaries: dict[str, int] = {}

        def paid(policy: str, call: Tokens, *, is_summary: bool) -> None:
            calls.setdefault(policy, []).append(call)  # noqa: B023 - used up within this turn of the loop
            summaries[policy] = summaries.get(policy, 0) + is_summary  # noqa: B023

        measure = RecallMeasure(common, _FAR)
        playing = replay(
            open_apart,
            with_window(config, window),
            [recording],
            callers,
            lambda: None,
            print,
            paid=paid,
            answered=measure,
        )
        with patch("proxy.wiring.ModelTable", partial(_PricedAs, decides)):
            (session,) = asyncio.run(playing).sessions
        met = {name: measure.of(recording.name, name) for name in session.policies}
        recall = {name: each.recall if each else None for name, each in met.items()}
        sessions.append(Played(recording.name, calls[NO_PROXY][0].prompt, calls, summaries, recall))
    return sessions


def own_compaction(calls: Iterable[Tokens], fixed: int, window: int, share: float) -> list[Tokens]:
    """The prompts of an agent that summarises at this share of its window by itself."""
    gone, before = 0, 0
    found: list[Tokens] = []
    for call in calls:
        prompt = call.prompt - gone
        if prompt > share * window:
            # What came last is read too: an agent asks for its summary with all that it has.
            found.append(Tokens(min(prompt, window) + _OWN_QUESTION, _OWN_SUMMARY, min(before, window)))
            short = min(prompt, fixed + _OWN_SUMMARY + _OWN_READ)
            found.append(Tokens(short, 0, fixed if fixed >= LEAST_CACHED else 0))
            gone, before = gone + prompt - short, short
            continue
        # A client that changes its history breaks the cache either way.
        cached = min(before, max(0, call.cached - gone))
        cached = cached if cached >= LEAST_CACHED else 0
        found.append(Tokens(prompt, 0, cached))
        before = prompt
    return found


def cost(calls: Sequence[Tokens], price: Price, *, warm: bool) -> float:
    """US dollars: what the cache does not hold is written into it, where the provider bills that."""
    billed = (
        continued_prompt(call.cached, call.prompt, price=price, caches=call.prompt >= LEAST_CACHED, is_warm=warm)
        for call in calls
    )
    return sum(price.of(each.with_answer(call.output)) for each, call in zip(billed, calls, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.price", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--window", type=int, default=200_000)
    parser.add_argument("--policies", nargs="*", default=list(_PRESETS), help="presets to play")
    parser.add_argument(
        "--point", action="append", default=[], help="NAME={JSON of settings}: a policy of one's own; may be repeated"
    )
    parser.add_argument("--decides", default=PROVIDERS[0], help="model by whose price a compaction pays")
    options = parser.parse_args()
    points: dict[str, object] = {f"as-{name}": {"extends": name} for name in options.policies}
    points |= {name: json.loads(settings) for name, _, settings in (each.partition("=") for each in options.point)}
    files = sorted(options.folder.glob("*.json*"))
    play = partial(played, window=options.window, points=points, common=common_names(files), decides=options.decides)
    with ProcessPoolExecutor(2) as workers:
        sessions = [each for some in workers.map(play, files) for each in some]
    _show(sessions, [*points], options.window)


def _show(sessions: Sequence[Played], policies: Sequence[str], window: int) -> None:
    prices = {name: price for name in PROVIDERS if (price := ModelTable().price(name)) is not None}
    table = Table(title=f"window {window:,}, {len(sessions)} sessions: mean, worst", header_style="bold")
    table.add_column("policy")
    for name in prices:
        table.add_column(f"{name.removesuffix('-chat').removesuffix('-4-5')}, warm", justify="right")
        table.add_column("cold", justify="right")
    table.add_column("recall", justify="right")
    table.add_column("summaries", justify="right")
    for share in _OWN_SHARES[1:]:
        rows = [own_compaction(each.calls[NO_PROXY], each.fixed, window, share) for each in sessions]
        table.add_row(f"agent's own at {share:.0%}", *_cells(sessions, rows, prices, window), "", "")
    for policy in (NO_PROXY, *policies):
        rows = [each.calls[policy] for each in sessions]
        recalled = [value for each in sessions if (value := each.recall.get(policy)) is not None]
        summaries = sum(each.summaries.get(policy, 0) for each in sessions)
        told = f"{fmean(recalled):.3f}" if recalled else ""
        table.add_row(policy, *_cells(sessions, rows, prices, window), told, str(summaries))
    Console(width=200).print(table)


def _cells(
    sessions: Sequence[Played], rows: Sequence[Sequence[Tokens]], prices: dict[str, Price], window: int
) -> list[str]:
    cells = []
    for price in prices.values():
        for warm in (True, False):
            shares = []
            for session, calls in zip(sessions, rows, strict=True):
                own = own_compaction(session.calls[NO_PROXY], session.fixed, window, _OWN_SHARES[0])
                shares.append(cost(calls, price, warm=warm) / cost(own, price, warm=warm) - 1)
            cells.append(f"{fmean(shares):+.0%}, {max(shares):+.0%}")
    return cells


if __name__ == "__main__":
    main()
