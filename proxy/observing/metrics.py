"""What is counted for Prometheus; no content, no keys, no sessions, and a bounded number of series."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from policies.experience import MIN_CALIBRATION_TOKENS
from proxy.observing.events import ConfigReloaded, CopyRefused, Event, PromptBilled, Recalled, Searched, ThinkingRemoved

# Models are named by clients: beyond this many series they share one.
_MOST_SERIES = 300
_OTHER = "other"
_LABELS = ("tenant", "upstream", "model")
_RESULTS = ("success", "failed")
# Rendering takes a tenth of a second with 300 models; several scrapers, or one that asks again, get the same.
_KEPT_SECONDS = 1.0


class Metrics:
    """One registry a process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` tells seconds that only go forward."""
        self._clock = clock
        self._rendering = asyncio.Lock()
        self._rendered: tuple[float, bytes] | None = None
        self._registry = CollectorRegistry()
        self._series: set[tuple[str, str, str]] = set()
        self._estimates = Histogram(
            "concertina_estimate_ratio",
            "Tokens that the upstream billed for a prompt, for each token of our estimate",
            _LABELS,
            buckets=(0.5, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0),
            registry=self._registry,
        )
        self._cut_off = self._counter(
            "concertina_prompts_cut_off", "Prompts of which the upstream read less than half, without an error"
        )
        self._refused = self._counter(
            "concertina_copies_refused", "Compacted requests that were refused where the client's own was taken"
        )
        self._thinking = self._counter(
            "concertina_thinking_removed",
            "Requests that were refused for thinking bound to another prompt, and sent again without any",
        )
        self._recalled = self._counter(
            "concertina_recalled", "Messages of users that got quotations of what a summary covers in front of them"
        )
        self._recalled_tokens = self._counter(
            "concertina_recalled_tokens", "Tokens of these quotations, each counted once"
        )
        self._searches = self._counter(
            "concertina_searches", "Searches of models in their conversation, with the tool of ours"
        )
        self._reloads = Counter(
            "concertina_config_reloads_total",
            "Times that the config was read again, and taken or refused",
            ("result",),
            registry=self._registry,
        )
        for result in _RESULTS:
            self._reloads.labels(result)

    def _counter(self, name: str, documentation: str) -> Counter:
        """One by tenant, upstream and model."""
        return Counter(name, documentation, _LABELS, registry=self._registry)

    def __call__(self, event: Event) -> None:
        match event:
            case PromptBilled():
                series = self._named(event.tenant, event.upstream, event.model)
                if event.estimated >= MIN_CALIBRATION_TOKENS:
                    self._estimates.labels(*series).observe(event.billed / event.estimated)
                if event.cut_off:
                    self._cut_off.labels(*series).inc()
            case CopyRefused():
                self._refused.labels(*self._named(event.tenant, event.upstream, event.model)).inc()
            case ThinkingRemoved():
                self._thinking.labels(*self._named(event.tenant, event.upstream, event.model)).inc()
            case Recalled():
                series = self._named(event.tenant, event.upstream, event.model)
                self._recalled.labels(*series).inc()
                self._recalled_tokens.labels(*series).inc(event.tokens)
            case Searched():
                self._searches.labels(*self._named(event.tenant, event.upstream, event.model)).inc(event.searches)
            case ConfigReloaded():
                self._reloads.labels(_RESULTS[0] if event.is_taken else _RESULTS[1]).inc()
            case _:
                pass

    def watch_store(
        self, available: Callable[[], bool], errors: Mapping[str, int], unreadable: Callable[[], int]
    ) -> None:
        """Tell what these say when they are asked: the store's state, failed operations by name, and useless values."""
        self._registry.register(_StoreFigures(available, errors, unreadable))

    def watch_memory(self, held: Mapping[str, int], most: Callable[[], int]) -> None:
        """Tell what is remembered: bytes by cache, and the bound for all of them."""
        self._registry.register(_MemoryFigures(held, most))

    async def exposition(self) -> bytes:
        """Everything, in Prometheus' text format, as it was within the last second; rendered in a thread."""
        async with self._rendering:
            now = self._clock()
            if self._rendered is None or now - self._rendered[0] >= _KEPT_SECONDS:
                self._rendered = (now, await asyncio.to_thread(generate_latest, self._registry))
            return self._rendered[1]

    def _named(self, tenant: str, upstream: str, model: str) -> tuple[str, str, str]:
        series = (tenant, upstream, model)
        if series not in self._series:
            if len(self._series) >= _MOST_SERIES:
                return tenant, upstream, _OTHER
            self._series.add(series)
        return series


class _StoreFigures(Collector):
    """What the store's guard and the sealer count themselves."""

    def __init__(self, available: Callable[[], bool], errors: Mapping[str, int], unreadable: Callable[[], int]) -> None:
        self._available = available
        self._errors = errors
        self._unreadable = unreadable

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("concertina_store_up", "Whether the store does all it is asked to", self._available())
        failed = CounterMetricFamily(
            "concertina_store_errors", "Operations that the store did not carry out", labels=["operation"]
        )
        for name, number in sorted(dict(self._errors).items()):  # a copy: the loop goes on counting
            failed.add_metric([name], number)
        yield failed
        yield CounterMetricFamily(
            "concertina_store_unreadable",
            "Values in the store that were damaged, or not sealed for their place with a key known here",
            self._unreadable(),
        )


class _MemoryFigures(Collector):
    """What is remembered, by cache."""

    def __init__(self, held: Mapping[str, int], most: Callable[[], int]) -> None:
        self._held = held
        self._most = most

    def collect(self) -> Iterator[Metric]:
        held = GaugeMetricFamily(
            "concertina_memory_bytes", "Bytes, about, of what is remembered to save work", labels=["cache"]
        )
        for name, size in sorted(dict(self._held).items()):
            held.add_metric([name], size)
        yield held
        yield GaugeMetricFamily("concertina_memory_limit_bytes", "The most they may take together", self._most())
