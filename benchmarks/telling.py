"""What it costs to tell of a request: its event made, logged, folded into the tallies and kept for the pages."""

from __future__ import annotations

import asyncio
import json
import time
import timeit
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from proxy.admin.recent import Recent
from proxy.app import App
from proxy.cli.demo.serving import serving
from proxy.config.loading import load
from proxy.config.settings import Upstream
from proxy.pipeline import pipeline
from proxy.pipeline.report import ended_event
from proxy.telemetry.events import RequestEnded
from proxy.telemetry.history_entries import make_request_entry
from proxy.telemetry.hooks import Hooks
from proxy.telemetry.log import Log
from proxy.telemetry.log_lines import LogLines
from proxy.telemetry.session_history import SessionHistories
from proxy.telemetry.tallies import Tallies
from proxy.upstreams.http import UpstreamClient
from tests.support.model_server import MODELS, ModelServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy.pipeline.stages import Received

_CONFIG = 'store: {{url: "memory://"}}\nupstreams: {{main: {{base_url: "{upstream}/v1"}}}}\nlogging: {{level: error}}\n'
_BODY = json.dumps({"model": MODELS[0], "messages": [{"role": "user", "content": "Is it done?"}]}).encode()
_TIMES, _REPEATS = 5_000, 7


def measure() -> dict[str, float]:
    """Name to milliseconds a request, the best of 7."""
    received = asyncio.run(_answered())
    with Path("/dev/null").open("wb") as nowhere:
        lines, tallies = LogLines(Log("info", time.time, nowhere, "json")), Tallies(time.time)
        pages = Hooks(Recent(), SessionHistories(), fault=_fault)
        observe, event = Hooks(lines, tallies, pages, fault=_fault), ended_event(received, None)
        entry = make_request_entry(event)
        return {
            "making the event of a request": _best(lambda: ended_event(received, None)),
            "… its figures": _best(lambda: make_request_entry(event)),
            "… its line in the log": _best(lambda: lines.on_request(event, entry)),
            "… folding it into the tallies": _best(lambda: tallies.on_request(event, entry)),
            "… keeping it for the pages": _best(lambda: pages.on_request(event, entry)),
            "… all of it": _best(lambda: observe(ended_event(received, None))),
        }


def _best(work: Callable[[], object]) -> float:
    return 1000 * min(timeit.repeat(work, number=_TIMES, repeat=_REPEATS)) / _TIMES


def _fault(_: str, error: BaseException) -> None:
    raise error


async def _answered() -> Received:
    """A request that the proxy has answered."""
    kept: list[Received] = []

    def keep(received: Received, error: BaseException | None) -> RequestEnded:
        kept.append(received)
        return ended_event(received, error)

    pipeline.ended_event = keep
    try:
        with TemporaryDirectory() as directory:
            async with serving(ModelServer()) as upstream, UpstreamClient() as client:
                file = Path(directory) / "config.yaml"
                file.write_text(_CONFIG.format(upstream=upstream), encoding="utf-8")
                async with serving(App(load(file, {})), lifespan="on") as address:
                    headers = [(b"content-type", b"application/json")]
                    url = f"{address}/v1/chat/completions"
                    response = await client.send(Upstream(base_url=f"{address}/v1"), "POST", url, headers, _BODY)
                    await response.read(100_000)
    finally:
        pipeline.ended_event = ended_event
    return kept[0]


if __name__ == "__main__":
    for name, milliseconds in measure().items():
        print(f"{1000 * milliseconds:8.1f} us  {name}")
