"""A real Prometheus on this machine, and the queries of a dashboard as it can be asked them."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from tests.support.servers import reserve_port
from tests.support.upstreams import ask

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

METRIC = re.compile(r"\bconcertina_[a-z_]+")
_CONFIG = """\
global: {{scrape_interval: 500ms, scrape_timeout: 400ms, evaluation_interval: 1s}}
scrape_configs:
  - job_name: concertina
    authorization: {{credentials: "{token}"}}
    static_configs: [{{targets: ["{target}"]}}]
"""
_VALUES = {"$__rate_interval": "20s", "$__range": "60s", "$tenant": ".*", "$upstream": ".*", "$model": ".*"}


def queries(dashboard: dict[str, object]) -> list[str]:
    """Every query of every panel, with its variables filled in."""
    panels = dashboard["panels"]
    assert isinstance(panels, list)
    found = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    for name, value in _VALUES.items():
        found = [expr.replace(name, value) for expr in found]
    return found


@asynccontextmanager
async def prometheus(directory: Path, address: str, token: str) -> AsyncIterator[str]:
    """The address of a Prometheus that scrapes a proxy twice a second."""
    config, port = directory / "prometheus.yml", reserve_port()
    config.write_text(_CONFIG.format(token=token, target=address.removeprefix("http://")), "utf-8")
    process = await asyncio.create_subprocess_exec(
        "prometheus", f"--config.file={config}", f"--storage.tsdb.path={directory}/tsdb",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
    )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


async def asked(address: str, query: str) -> list[object] | None:
    """The samples that a query gives now; None where Prometheus is not there yet. Raises ValueError for a bad query."""
    try:
        reply = await ask(address, "GET", f"/api/v1/query?{urlencode({'query': query})}")
    except OSError:
        return None
    answer = json.loads(reply.body)
    if answer["status"] != "success":
        raise ValueError(f"{query}: {answer}")
    samples: list[object] = answer["data"]["result"]
    return samples
