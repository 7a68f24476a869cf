"""Overviews of a proxy that nobody has used."""

from __future__ import annotations

from typing import Any

from proxy.admin.health import Health
from proxy.admin.overview import Figures, Minute, Overview

_UNUSED = Figures(
    requests=0, answered=0, kept_alive=0, passed_on=0, failed_open=0, received=0, not_sent=0, summaries=0, net=0,
    cache_share=None, waits=0, wait_p95=None, cost=None, cost_of_summaries=None, saved=None, unpriced=[],
)  # fmt: skip


def overview(**changes: Any) -> Overview:
    """An overview that has nothing to tell, but for these fields."""
    told: dict[str, Any] = {
        "health": Health("good", ["store (sqlite) up", "nothing passed on"]), "since": 0.0, "span": "24h",
        "is_whole": True, "figures": _UNUSED, "minutes": [Minute(60 * at, 0, 0, 0) for at in range(60)],
        "parts": [], "near": [], "compactions": [], "advice": [],
    }  # fmt: skip
    return Overview(**(told | changes))
