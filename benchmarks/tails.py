"""`python -m benchmarks.tails [FOLDER]`: which share of the room stays word for word when a conversation is compacted.

No model summarizes. `little`: rounds of words that name nothing, so that the record has little to say; `names`: an
agent whose results are full of paths, identifiers and numbers. FOLDER: recorded sessions in any form that `concertina
replay` reads. Shares are of M (the window less answer, tools and head), after each compaction: mean, and the least.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from proxy.callers.api_head import ApiHead
from proxy.callers.tenants import Tenants
from proxy.cli.replay.command import find_recordings
from proxy.compaction.plan_input import plan_input_of
from proxy.config.loading import load_text
from proxy.dialects.table import CHAT
from proxy.sessions.stores.memory import MemoryStore
from proxy.telemetry.log import Log
from proxy.upstreams.http import UpstreamClient
from proxy.wiring import open_engine

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from proxy.dialects.base import Dialect

_WINDOWS = (8_192, 16_384, 32_768, 65_536, 131_072)
# Windows of history that a session has.
_LENGTH = 3
_WORDS = (
    "the",
    "tide",
    "came",
    "in",
    "and",
    "we",
    "sat",
    "by",
    "an",
    "old",
    "wall",
    "to",
    "talk",
    "of",
    "bread",
    "rain",
)


def rounds(window: int, *, names: bool) -> Iterator[tuple[Dialect, bytes]]:
    """The requests of an agent, one after each round of tools."""
    chance = random.Random(f"{window} {names}")
    messages: list[object] = [{"role": "user", "content": "Please go through everything, step by step."}]
    tokens = number = 0
    while tokens < _LENGTH * window:
        size = chance.randint(120, 700)
        said = " ".join(
            _named(chance) if names and chance.random() < 0.3 else chance.choice(_WORDS) for _ in range(size)
        )
        call = {"name": "look", "arguments": json.dumps({"at": _named(chance) if names else "it"})}
        messages.append(
            {"role": "assistant", "tool_calls": [{"id": f"c{number}", "type": "function", "function": call}]}
        )
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": said})
        tokens += size * (3 if names else 1)
        number += 1
        yield CHAT, json.dumps({"model": "any", "messages": messages}).encode()


def _named(chance: random.Random) -> str:
    one, other = chance.choice(_WORDS), chance.choice(_WORDS)
    return chance.choice((f"src/{one}/{other}{chance.randint(1, 99)}.py", f"{one}_{other}_{chance.randint(1, 999)}"))


async def shares(requests: Iterable[tuple[Dialect, bytes]], window: int) -> list[float]:
    """Of M, what stayed of the conversation after each compaction."""
    config = load_text("measured", _config(window), {})
    seen: set[str] = set()
    tails = []
    with ThreadPoolExecutor(1) as workers:
        log = Log("error", time.time, io.BytesIO())
        engine = await open_engine(config, MemoryStore(), UpstreamClient(), workers, log)
        router, caller = engine.router(config), Tenants(config).identify(None)
        for dialect, body in requests:
            request = await engine.reader.read(body, caller.scope, router.encoding, dialect)
            if request is None:
                continue
            head = ApiHead("POST", "/", []).asking(dialect)
            case = await engine.prompt_builder.place(plan_input_of(head, router, caller, "on", request))
            prompt = await engine.prompt_builder.build_first(case)
            if prompt.record is not None and prompt.record.digest not in seen:
                seen.add(prompt.record.digest)
                kept = prompt.tokens - prompt.record.text_tokens - case.conversation.fixed_tokens
                tails.append(kept / case.limits.budget.movable)
    return tails


def _config(window: int) -> str:
    return json.dumps(
        {
            "upstreams": {"main": {"base_url": "http://127.0.0.1:9/v1"}},
            "models": [{"match": "*", "context_window": window}],
            "policies": {"default": {"summarizer": {"model": "none"}}},
        }
    )


def _recorded(folder: Path) -> Iterator[list[tuple[Dialect, bytes]]]:
    for recording in find_recordings(folder, "any", print):
        yield [(recording.dialect, body) for body in recording.bodies()]


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.tails", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    options = parser.parse_args()
    table = Table("sessions", "window", "compactions", "tail, mean", "least", header_style="bold")
    for window in _WINDOWS:
        kinds = {kind: [[*rounds(window, names=kind == "names")]] for kind in ("little", "names")}
        if options.folder:
            kinds["recorded"] = [*_recorded(options.folder)]
        for kind, sessions in kinds.items():
            tails = [share for session in sessions for share in asyncio.run(shares(session, window))]
            if tails:
                table.add_row(kind, f"{window:,}", str(len(tails)), f"{fmean(tails):.2f}", f"{min(tails):.2f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
