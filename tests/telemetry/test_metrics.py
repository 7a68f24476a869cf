"""Figures are rendered off the event loop, one at a time, and kept for a second."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from policies.price import Price
from proxy.telemetry import metrics as module
from proxy.telemetry.events import note
from proxy.telemetry.metrics import Metrics, by_name
from proxy.telemetry.pricing import Pricing
from proxy.telemetry.tallies import MOST_FURTHER, Tallies
from tests.support.clock import Clock
from tests.support.events import answered, called, compacted

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

PRICE = Price(prompt=2.5e-6, completion=1e-5, cached=1.25e-6, written=2.5e-6, written_long=2.5e-6)
pytestmark = pytest.mark.anyio


def over(tallies: Tallies | None = None, clock: Clock | None = None) -> Metrics:
    return Metrics(tallies or Tallies(Clock(1e9)), clock or Clock())


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
    metrics = over(clock=clock)
    pages = await asyncio.gather(*(metrics.exposition() for _ in range(20)))
    assert len(renderer.threads) == 1
    assert threading.get_ident() not in renderer.threads
    assert len(set(pages)) == 1


async def test_figures_are_kept_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    renderer, clock, tallies = Renderer(monkeypatch), Clock(), Tallies(Clock(1e9))
    metrics = over(tallies, clock)
    before = await metrics.exposition()
    tallies(note("config_reloaded"))
    clock.now += 0.9
    assert await metrics.exposition() == before
    clock.now += 0.2
    after = await metrics.exposition()
    assert b'concertina_config_reloads_total{result="success"} 1.0' in after
    assert len(renderer.threads) == 2


async def test_a_scrape_that_is_given_up_leaves_the_next_one_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    Renderer(monkeypatch)
    metrics = over()
    given_up = asyncio.create_task(metrics.exposition())
    await asyncio.sleep(0)
    given_up.cancel()
    assert b"concertina_config_reloads_total" in await metrics.exposition()


async def test_figures_may_change_while_they_are_rendered() -> None:
    errors: dict[str, int] = {}
    clock = Clock()
    metrics = over(clock=clock)
    metrics.counter("store_errors", "Operations", ("operation",), lambda: by_name(errors))
    for number in range(200):
        errors.update({f"operation {number} {i}": 1 for i in range(50)})
        rendering = asyncio.create_task(metrics.exposition())
        await asyncio.sleep(0)
        for i in range(200):
            errors[f"{number} {i}"] = 1
        assert b"concertina_store_errors_total" in await rendering
        errors.clear()
        clock.now += 2


async def told(tallies: Tallies) -> list[str]:
    text = (await over(tallies).exposition()).decode()
    return [line for line in text.splitlines() if line.startswith("concertina_")]


async def test_sums_and_costs_are_told_by_tenant_upstream_and_model() -> None:
    tallies = Tallies(Clock(1e9))
    pricing = Pricing({"gpt-4o": PRICE}.get, tallies)
    for event in (answered(cached=300, window=899), answered(), called()):
        pricing(event)
    lines = await told(tallies)
    where = 'model="gpt-4o",tenant="acme",upstream="main"'
    for name, value in {
        "received_tokens": 1800, "sent_tokens": 800, "billed_input_tokens": 820, "cached_input_tokens": 300,
        "cache_reported_input_tokens": 410, "output_tokens": 40, "kept_alive": 1, "summary_input_tokens": 700,
        "summary_output_tokens": 60,
    }.items():  # fmt: skip
        assert f"concertina_{name}_total{{{where}}} {float(value)}" in lines
    of_costs = [line for line in lines if line.startswith("concertina_cost_usd_total{")]
    costs = {line.split('purpose="')[1].split('"')[0]: float(line.split()[-1]) for line in of_costs}
    assert costs == {
        "answer": pytest.approx(520 * 2.5e-6 + 300 * 1.25e-6 + 40 * 1e-5),
        "summary": pytest.approx(700 * 2.5e-6 + 60 * 1e-5),
    }
    (received,) = [line for line in lines if line.startswith("concertina_received_cost_usd_total{")]
    assert float(received.split()[-1]) > costs["answer"]


async def test_what_was_never_reported_has_no_series() -> None:
    tallies = Tallies(Clock(1e9))
    tallies(answered(billed=None, output=None, model="nobody-knows"))
    lines = await told(tallies)
    absent = ("billed_input", "cached_input", "cache_write", "output_tokens", "kept_alive", "summary_", "cost_usd")
    assert not [line for line in lines if line.startswith(tuple(f"concertina_{name}" for name in absent))]


async def test_histograms_count_what_is_at_or_below_each_bound() -> None:
    tallies = Tallies(Clock(1e9))
    for ms in (50.0, 51.0, 700_000.0):
        tallies(answered(ms=ms))
    lines = await told(tallies)
    where = 'model="gpt-4o",upstream="main"'
    name = "concertina_request_duration_seconds"
    for bound, number in (("0.05", 1), ("0.2", 2), ("600.0", 2), ("+Inf", 3)):
        assert f'{name}_bucket{{le="{bound}",{where}}} {float(number)}' in lines
    assert f"{name}_count{{{where}}} 3.0" in lines
    assert f"{name}_sum{{{where}}} 700.101" in lines


async def test_whatever_clients_and_upstreams_say_there_are_six_thousand_lines_at_most() -> None:
    tallies = Tallies(Clock(1e9))
    for number in range(3 * MOST_FURTHER):
        tallies(answered(model=f"m{number}", cached=1, cache_written=1, window=100, usd=1.0, usd_received=2.0))
        tallies(called(model=f"m{number}", usd=1.0))
        tallies(compacted(result=f"r{number % 15}"))
    metrics = Metrics(tallies, Clock())
    lines = (await metrics.exposition()).decode().splitlines()
    assert len([line for line in lines if not line.startswith("#")]) <= 6_000


async def test_openmetrics_is_the_same_in_other_words() -> None:
    tallies = Tallies(Clock(1e9))
    tallies(answered())
    text = (await over(tallies).openmetrics()).decode()
    assert text.endswith("# EOF\n")
    assert 'concertina_sent_tokens_total{model="gpt-4o",tenant="acme",upstream="main"} 400.0' in text
    assert "_created" not in text
