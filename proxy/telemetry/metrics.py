"""Metrics for Prometheus: the tallies and other parts' own counts, rendered off the event loop.

They contain no content, keys or sessions, and a bounded number of series: at most about 6,000 lines.
"""

import asyncio
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from proxy.telemetry import figures
from proxy.telemetry.histograms import Histograms, Labels
from proxy.telemetry.tallies import Tallies
from proxy.telemetry.tally import Tally

# Scrapes within this time get the same text.
_KEPT_SECONDS = 1.0
_SET = ("tenant", "upstream", "model")
_MODEL = ("upstream", "model")
# Counters by tenant, upstream and model.
_SUMS: Mapping[str, tuple[str, str]] = {
    "received": ("received_tokens", "Tokens of clients' prompts, of answered requests"),
    "sent": ("sent_tokens", "Tokens of the same prompts as sent upstream"),
    "billed": ("billed_input_tokens", "Prompt tokens reported by upstreams"),
    "cached": ("cached_input_tokens", "Billed input tokens that upstreams read from a cache"),
    "cached_of": ("cache_reported_input_tokens", "Billed input tokens of upstreams that report cached tokens"),
    "cache_written": ("cache_write_input_tokens", "Billed input tokens that upstreams wrote to a cache"),
    "output": ("output_tokens", "Output tokens reported by upstreams"),
    "kept_alive": ("kept_alive", "Requests larger than the model's window that were answered"),
    "summary_in": ("summary_input_tokens", "Prompt tokens of summarizers"),
    "summary_out": ("summary_output_tokens", "Output tokens of summarizers, including rejected summaries"),
}
_COUNTERS: Mapping[str, tuple[str, Labels]] = {
    "requests": ("Finished requests", (*_SET, "wire", "end", "status")),
    "outcomes": ("Requests of conversations by outcome and reason", ("tenant", "model", "outcome", "reason")),
    "overflows": ("Requests that upstreams refused for their size", (*_MODEL, "result")),
    "compactions": ("Compactions", ("tenant", "model", "trigger", "level", "result")),
    "summarizer_calls": ("Calls of summarizers", (*_MODEL, "result")),
    "upstream_failures": ("Requests that failed because an upstream was unreachable or disconnected",
                          ("upstream", "cause")),
    "refusals": ("Errors that the proxy itself returned", ("code",)),
    "prompts_cut_off": ("Prompts of which the upstream read less than half, without an error", _SET),
    "copies_refused": ("Compacted requests that were refused while the client's own was accepted", _SET),
    "thinking_removed": ("Requests refused for thinking of another prompt, and sent again without thinking", _SET),
    "media_received": ("Pictures and documents of requests, if limits are known", _MODEL),
    "media_sent": ("Pictures and documents that were sent upstream", _MODEL),
    "media_received_bytes": ("Bytes of received pictures and documents", _MODEL),
    "media_left_out": ("Pictures and documents replaced by notes, counted in every request", (*_MODEL, "why")),
    "media_refusals": ("Requests that upstreams refused for their pictures and documents", (*_MODEL, "what")),
    "results": ("Tool results in every request: shortened without loss, restored, or pointing to nothing",
                (*_MODEL, "what")),
    "items": ("Compaction items of clients", (*_SET, "what")),
    "recalled": ("User messages with quotations of covered messages before them", _SET),
    "recalled_tokens": ("Tokens of these quotations, each counted once", _SET),
    "config_reloads": ("Reloads of the config by result", ("result",)),
}  # fmt: skip
_HISTOGRAMS: Mapping[str, tuple[str, Labels]] = {
    "request_duration_seconds": ("Time from the request's header block to the end of the response", _MODEL),
    "time_to_first_byte_seconds": (
        "Time from the request's header block to the first byte of the upstream's response",
        _MODEL,
    ),
    "overhead_seconds": ("Time until a request was first sent, without waits for summaries", ("stage",)),
    "summary_wait_seconds": ("Time that requests waited for summaries, if they did", ("result",)),
    "window_used_ratio": ("Sent tokens divided by the model's window", _MODEL),
    "estimate_ratio": ("Billed tokens of a prompt divided by the estimate", _MODEL),
    "summarizer_call_duration_seconds": ("Duration of summarizer calls", _MODEL),
    "compaction_duration_seconds": ("Duration of compactions, including waits", ("algorithm",)),
    "compaction_ratio": ("Tokens of a request after a compaction divided by those before", ("algorithm",)),
    "bisect_depth": ("Number of times that a span was halved to fit the summarizer", ("algorithm",)),
    "event_loop_lag_seconds": ("Delay of a timer of the event loop", ()),
}
Render = Callable[[CollectorRegistry], bytes]
Samples = Callable[[], Iterable[tuple[Labels, float]]]


class Metrics:
    """The metrics. One registry per process."""

    def __init__(self, tallies: Tallies, clock: Callable[[], float] = time.monotonic) -> None:
        """Create the metrics. `clock` returns monotonic seconds."""
        self._clock = clock
        self._tallies = tallies
        self._rendering = asyncio.Lock()
        self._rendered: dict[Render, tuple[float, bytes]] = {}
        self._registry = CollectorRegistry()
        self._registry.register(_Folded(tallies))
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self.gauge("build_info", "Versions of Concertina and Python", ("version", "python"), _build)

    def gauge(self, name: str, documentation: str, labels: Labels, samples: Samples) -> None:
        """Add a gauge. `samples` returns values by labels, in another thread."""
        self._registry.register(_Watched(GaugeMetricFamily, name, documentation, labels, samples))

    def counter(self, name: str, documentation: str, labels: Labels, samples: Samples) -> None:
        """Add a counter. `samples` returns values by labels, in another thread."""
        self._registry.register(_Watched(CounterMetricFamily, name, documentation, labels, samples))

    def histogram(self, name: str, documentation: str, labels: Labels, histograms: Histograms) -> None:
        """Add a histogram of another part."""
        self._registry.register(_Measured(name, documentation, labels, histograms))

    async def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format, at most a second old. They are rendered in a thread."""
        return await self._exposition(generate_latest)

    async def openmetrics(self) -> bytes:
        """Return all metrics in OpenMetrics' format, at most a second old."""
        return await self._exposition(generate_openmetrics)

    async def _exposition(self, render: Render) -> bytes:
        async with self._rendering:
            now = self._clock()
            rendered = self._rendered.get(render)
            if rendered is None or now - rendered[0] >= _KEPT_SECONDS:
                self._tallies.fold()  # here, since other threads do not count
                rendered = self._rendered[render] = (now, await asyncio.to_thread(render, self._registry))
            return rendered[1]


class _Watched(Collector):
    """A metric of another part."""

    def __init__(
        self,
        kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
        name: str,
        documentation: str,
        labels: Labels,
        samples: Samples,
    ) -> None:
        self._kind = kind
        self._about = (f"concertina_{name}", documentation)
        self._labels = labels
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        metric = self._kind(*self._about, labels=self._labels)
        for labels, value in sorted(self._samples()):
            metric.add_metric(labels, value)
        yield metric


class _Measured(Collector):
    """A histogram of another part."""

    def __init__(self, name: str, documentation: str, labels: Labels, histograms: Histograms) -> None:
        self._about = (name, documentation, labels)
        self._histograms = histograms

    def collect(self) -> Iterator[Metric]:
        yield _histogram(*self._about, self._histograms)


class _Folded(Collector):
    """The tallies. Each copy is atomic, since the event loop continues to count."""

    def __init__(self, tallies: Tallies) -> None:
        self._tallies = tallies

    def collect(self) -> Iterator[Metric]:
        tallies = self._tallies
        sets = sorted(tallies.sets.copy().items())
        for field, (name, documentation) in _SUMS.items():
            yield _sums(sets, field, name, documentation)
        yield from self._costs(sets)
        for name, (documentation, labels) in _COUNTERS.items():
            counter = CounterMetricFamily(f"concertina_{name}", documentation, labels=labels)
            for values, number in sorted(tallies.counts.of.get(name, {}).copy().items()):
                counter.add_metric(values, number)
            yield counter
        yield CounterMetricFamily(
            "concertina_keepalive_comments", "Keepalive comments sent to waiting clients", tallies.comments
        )
        windows = GaugeMetricFamily(
            "concertina_window_tokens", "Context window of the model in tokens, by source", labels=(*_MODEL, "source")
        )
        for where, (tokens, source) in sorted(tallies.windows.copy().items()):
            windows.add_metric((*where, source), tokens)
        yield windows
        for name, (documentation, labels) in _HISTOGRAMS.items():
            yield _histogram(name, documentation, labels, tallies.histograms[name])

    def _costs(self, sets: Sequence[tuple[Labels, Tally]]) -> Iterator[Metric]:
        cost = CounterMetricFamily(
            "concertina_cost_usd", "US dollars at list price, if it is known", labels=(*_SET, "purpose")
        )
        for labels, tally in sets:
            answers, summaries = figures.cost_of_answers(tally), figures.cost_of_summaries(tally)
            for purpose, usd in (("answer", answers), ("summary", summaries)):
                if usd:
                    cost.add_metric((*labels, purpose), usd)
        yield cost
        received = CounterMetricFamily(
            "concertina_received_cost_usd",
            "Estimated US dollars of the answered requests without the proxy",
            labels=_SET,
        )
        for labels, tally in sets:
            if tally.cost_received:
                received.add_metric(labels, figures.cost_as_received(tally))
        yield received


def _sums(sets: Sequence[tuple[Labels, Tally]], field: str, name: str, documentation: str) -> Metric:
    """Return one sum over all sets of labels, without those that are 0."""
    metric = CounterMetricFamily(f"concertina_{name}", documentation, labels=_SET)
    for labels, tally in sets:
        if number := getattr(tally, field):
            metric.add_metric(labels, number)
    return metric


def _histogram(name: str, documentation: str, labels: Labels, histograms: Histograms) -> Metric:
    metric = HistogramMetricFamily(f"concertina_{name}", documentation, labels=labels)
    bounds = (*map(str, histograms.bounds), "+Inf")
    for values, histogram in sorted(histograms.of.copy().items()):
        buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
        cumulated, exemplars = 0, histogram.exemplars.copy()
        for index, (bound, number) in enumerate(zip(bounds, histogram.counts.copy(), strict=True)):
            cumulated += number
            if (traced := exemplars.get(index)) is not None:
                buckets.append((bound, cumulated, Exemplar({"trace_id": traced.trace_id}, traced.value, traced.at)))
            else:
                buckets.append((bound, cumulated))
        metric.add_metric(values, buckets, histogram.sum)
    return metric


def by_name(values: Mapping[str, float]) -> list[tuple[Labels, float]]:
    """Return samples with one label. The copy is needed, since the event loop continues to count."""
    return [((name,), value) for name, value in dict(values).items()]


def _build() -> Iterable[tuple[Labels, float]]:
    return [((version("concertina"), platform.python_version()), 1)]
