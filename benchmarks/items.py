"""What compaction items cost: `python -m benchmarks.items`.

Made without a model from an agent's histories of several sizes, and opened anew and again: milliseconds, of five the
fastest; how long an item is, how many tokens it expands into, and which share of what asked for it.
"""

from __future__ import annotations

import asyncio
import io
import json
import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from proxy.callers.api_head import ApiHead
from proxy.callers.tenants import Tenants
from proxy.compaction.plan_input import plan_input_of
from proxy.compaction.provider.sealed_items import ItemSealer
from proxy.dialects.table import RESPONSES
from proxy.memory import Cache, Memory
from proxy.sessions.stores.memory import MemoryStore
from proxy.sessions.stores.sealing import Sealer
from proxy.telemetry.log import Log
from proxy.upstreams.http import UpstreamClient
from proxy.wiring import open_engine
from tests.support.items import HEAD, TRIGGER, asked, said
from tests.support.servers import configured

if TYPE_CHECKING:
    from proxy.compaction.engine import Engine
    from proxy.compaction.provider.making import MadeItem
    from proxy.config.loading import Config
    from tests.support.conversations import Json

_SIZES = (10_000, 36_000, 100_000, 200_000)
_TIMES = 5
_KEY = b"benchmark" * 4


def history(tokens: int) -> list[Json]:
    """An agent at work: files are read and changed, tests run; now and then the user says something."""
    draw, items = random.Random(3), [HEAD, said("Port the importer. Never touch legacy/.")]
    number = size = 0
    while size < tokens:
        name = f"services/{draw.choice('abcdef')}/module_{draw.randrange(400)}.py"
        lines = [
            f"def handle_{draw.randrange(9_999)}(record_{draw.randrange(999)}):" for _ in range(draw.randrange(5, 80))
        ]
        call = {
            "type": "function_call",
            "call_id": f"c{number}",
            "name": "read",
            "arguments": json.dumps({"path": name}),
        }
        items += [call, {"type": "function_call_output", "call_id": f"c{number}", "output": "\n".join(lines)}]
        number, size = number + 1, size + 14 * len(lines)
        if number % 20 == 0:
            items += [
                {"role": "assistant", "content": f"Part {number} is done."},
                said(f"Keep handle_{number} as it is."),
            ]
    return [*items, TRIGGER]


async def _made(engine: Engine, config: Config, items: list[Json]) -> tuple[MadeItem, int, float]:
    caller, router = Tenants(config).identify(None), engine.router(config)
    raw = await engine.reader.read(asked(items), caller.scope, router.encoding, RESPONSES)
    assert raw is not None
    settled = engine.clients.expander.settle(raw, caller.tenant, is_ours=True)
    request = await engine.reader.read(settled.body, caller.scope, router.encoding, RESPONSES)
    assert request is not None
    case = plan_input_of(ApiHead("POST", "/", []).asking(RESPONSES), router, caller, "on", request)
    began = time.perf_counter()
    made = await engine.clients.maker.make(case, settled.covers)
    return made, case.conversation.tokens_from[0], time.perf_counter() - began


def _opened(sealed: str, tenant: str) -> tuple[float, float]:
    """Seconds anew, and remembered."""
    anew, again = [], []
    for _ in range(_TIMES):
        items = ItemSealer(Sealer(None), Cache(Memory(), "items"))
        for taken in (anew, again):
            began = time.perf_counter()
            assert not isinstance(items.open(tenant, sealed), str)
            taken.append(time.perf_counter() - began)
    return min(anew), min(again)


def main() -> None:
    table = Table("tokens", "made, ms", "opened, ms", "again, ms", "characters", "a token", "expands into", "share")
    with ThreadPoolExecutor(1) as workers, tempfile.TemporaryDirectory() as folder:
        rule = {"match": "*", "context_window": 1_000_000, "encoding": "o200k_base"}
        policies = {"default": {"summarizer": {"model": "none"}}}
        config = configured(Path(folder), {"models": [rule], "policies": policies})
        for size in _SIZES:
            items, runs = history(size), []
            for _ in range(_TIMES):
                log = Log("error", time.time, io.BytesIO())
                engine = asyncio.run(open_engine(config, MemoryStore(), UpstreamClient(), workers, log))
                runs.append(asyncio.run(_made(engine, config, items)))
            made, tokens, seconds = min(runs, key=lambda run: run[2])
            anew, again = _opened(made.sealed, "default")
            figures = (f"{1000 * each:.2f}" for each in (seconds, anew, again))
            length, into = len(made.sealed), made.tokens
            share = (f"{length:,}", f"{length / into:.1f}", f"{into:,}", f"{into / tokens:.2f}")
            table.add_row(f"{tokens:,}", *figures, *share)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
