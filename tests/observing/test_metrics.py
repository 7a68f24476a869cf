"""Figures are rendered off the event loop, one at a time, and kept for a second."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from proxy.memory import Cache, Memory
from proxy.observing import metrics as module
from proxy.observing.events import ConfigReloaded
from proxy.observing.metrics import Metrics
from tests.support.clock import Clock

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

pytestmark = pytest.mark.anyio


class Renderer:
    """Renders as the real one does, and remembers on which threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[int] = []
        self._render = module.generate_latest
        monkeypatch.setattr(module, "generate_latest", self)

    def __call__(self, registry: CollectorRegistry) -> bytes:
        self.threads.append(threading.get_ident())
        return self._render(registry)


async def test_many_scrapes_render_once_and_not_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    renderer, clock = Renderer(monkeypatch), Clock()
    metrics = Metrics(clock)
    pages = await asyncio.gather(*(metrics.exposition() for _ in range(20)))
    assert len(renderer.threads) == 1
    assert threading.get_ident() not in renderer.threads
    assert len(set(pages)) == 1


async def test_figures_are_kept_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    renderer, clock = Renderer(monkeypatch), Clock()
    metrics = Metrics(clock)
    before = await metrics.exposition()
    metrics(ConfigReloaded(is_taken=True))
    clock.now += 0.9
    assert await metrics.exposition() == before
    clock.now += 0.2
    after = await metrics.exposition()
    assert b'concertina_config_reloads_total{result="success"} 1.0' in after
    assert len(renderer.threads) == 2


async def test_a_scrape_that_is_given_up_leaves_the_next_one_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    Renderer(monkeypatch)
    metrics = Metrics(Clock())
    given_up = asyncio.create_task(metrics.exposition())
    await asyncio.sleep(0)
    given_up.cancel()
    assert b"concertina_config_reloads_total" in await metrics.exposition()


async def test_what_is_remembered_is_told_by_cache_with_its_bound() -> None:
    metrics, memory = Metrics(Clock()), Memory(1_000)
    metrics.watch_memory(memory.held, lambda: memory.most)
    Cache[str, int](memory, "records").keep("a", 1, 100)
    told = await metrics.exposition()
    assert b'concertina_memory_bytes{cache="records"} 300.0' in told
    assert b"concertina_memory_limit_bytes 1000.0" in told


async def test_figures_may_change_while_they_are_rendered() -> None:
    errors: dict[str, int] = {}
    clock = Clock()
    metrics = Metrics(clock)
    metrics.watch_store(lambda: True, errors, lambda: 0)
    for number in range(200):
        errors.update({f"operation {number} {i}": 1 for i in range(50)})
        rendering = asyncio.create_task(metrics.exposition())
        await asyncio.sleep(0)
        for i in range(200):
            errors[f"{number} {i}"] = 1
        assert b"concertina_store_errors_total" in await rendering
        errors.clear()
        clock.now += 2
