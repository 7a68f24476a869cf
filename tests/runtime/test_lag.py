"""How late the event loop is."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from proxy.runtime import lag

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio


async def test_what_holds_up_the_loop_is_told_and_nothing_after_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "_EVERY", 0.001)
    told: asyncio.Queue[float] = asyncio.Queue()
    tell: Callable[[float], None] = told.put_nowait
    with lag.monitor_loop_lag(tell):
        await told.get()
        time.sleep(0.05)  # noqa: ASYNC251 - holds up the loop, as it is to be noticed
        while await told.get() < 0.04:
            pass
    left = told.qsize()
    await asyncio.sleep(0.01)
    assert told.qsize() == left
