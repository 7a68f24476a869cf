"""What Prometheus is told: the tallies, and what other parts count themselves, rendered off the event loop.

No content, no keys, no sessions, and a bounded number of series: at most about 6,000 lines.
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

# Several scrapers, or one that asks again, get the same.
_KEPT_SECONDS = 1.0
_SET = ("tenant", "upstream", "model")
_MODEL = ("upstream", "model")
# Of each set of tenant, upstream and model.
_SUMS: Mapping[str, tuple[str, str]] = {
    "received": ("received_tokens", "Tokens of prompts as clients wrote them, of requests that were answered"),
    "sent": ("sent_tokens", "Tokens of the same prompts as they went upstream"),
    "billed": ("billed_input_tokens", "Tokens of prompts as upstreams reported them"),
    "cached": ("cached_input_tokens", "Those of them that upstreams served from a cache"),
    "cached_of": ("cache_reported_input_tokens", "Those of them whose upstream tells what its cache served"),
    "cache_written": ("cache_write_input_tokens", "Those of them that upstreams wrote to a cache"),
    "output": ("output_tokens", "Tokens of answers as upstreams reported them"),
    "kept_alive": ("kept_alive", "Requests larger than the model's window that were answered"),
    "summary_in": ("summary_input_tokens", "Tokens of the prompts of summarizers"),
    "summary_out": ("summary_output_tokens", "Tokens of the answers of summarizers, useless ones too"),
}
_COUNTERS: Mapping[str, tuple[str, Labels]] = {
    "requests": ("Requests that have ended", (*_SET, "wire", "end", "status")),
    "outcomes": ("What became of requests of conversations", ("tenant", "model", "outcome", "reason")),
    "overflows": ("Requests that upstreams refused for their size", (*_MODEL, "result")),
    "compactions": ("Compactions", ("tenant", "model", "trigger", "level", "result")),
    "summarizer_calls": ("Calls of summarizers", (*_MODEL, "result")),
    "upstream_failures": ("Requests that failed since an upstream could not be reached or went away",
                          ("upstream", "cause")),
    "refusals": ("Errors that the proxy answered itself", ("code",)),
    "prompts_cut_off": ("Prompts of which the upstream read less than half, without an error", _SET),
    "copies_refused": ("Compacted requests that were refused where the client's own was taken", _SET),
    "thinking_removed": ("Requests refused for thinking bound to another prompt, and sent again without any", _SET),
    "media_received": ("Pictures and papers of requests, where limits of them are known", _MODEL),
    "media_sent": ("Those of them that went upstream", _MODEL),
    "media_received_bytes": ("What the received ones weighed", _MODEL),
    "media_left_out": ("Those that gave way to notes, with every request that they were left out of", (*_MODEL, "why")),
    "media_refusals": ("Requests that upstreams refused for their pictures and papers", (*_MODEL, "what")),
    "results": ("Results of tools, with every request: shortened without loss, put back, or pointing to nothing",
                (*_MODEL, "what")),
    "items": ("Compaction items of clients", (*_SET, "what")),
    "recalled": ("Messages of users that got quotations of what a summary covers in front of them", _SET),
    "recalled_tokens": ("Tokens of these quotations, each counted once", _SET),
    "config_reloads": ("Times that the config was read again, and taken or refused", ("result",)),
}  # fmt: skip
_HISTOGRAMS: Mapping[str, tuple[str, Labels]] = {
    "request_duration_seconds": ("From the request's head to the answer's end", _MODEL),
    "time_to_first_byte_seconds": ("From the request's head to the first byte of the upstream's answer", _MODEL),
    "overhead_seconds": ("Until a request was first sent, without waits for summaries", ("stage",)),
    "summary_wait_seconds": ("What requests waited for summaries, of those that did", ("result",)),
    "window_used_ratio": ("Tokens sent, for each token of the model's window", _MODEL),
    "estimate_ratio": ("Tokens that the upstream billed for a prompt, for each token of our estimate", _MODEL),
    "summarizer_call_duration_seconds": ("Calls of summarizers", _MODEL),
    "compaction_duration_seconds": ("Compactions, with all that they waited for", ("algorithm",)),
    "compaction_ratio": ("Share of a request's tokens that a compaction left", ("algorithm",)),
    "bisect_depth": ("How often a span was halved to fit the summarizer", ("algorithm",)),
    "event_loop_lag_seconds": ("How late a timer of the event loop fires", ()),
}
Render = Callable[[CollectorRegistry], bytes]
Samples = Callable[[], Iterable[tuple[Labels, float]]]


class Metrics:
    """One registry a process."""

    def __init__(self, tallies: Tallies, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` tells seconds that only go forward."""
        self._clock = clock
        self._tallies = tallies
        self._rendering = asyncio.Lock()
        self._rendered: dict[Render, tuple[float, bytes]] = {}
        self._registry = CollectorRegistry()
        self._registry.register(_Folded(tallies))
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self.gauge("build_info", "What runs here", ("version", "python"), _build)

    def gauge(self, name: str, documentation: str, labels: Labels, samples: Samples) -> None:
        """Tell what `samples` says when it is asked, in another thread: values by their labels."""
        self._registry.register(_Watched(GaugeMetricFamily, name, documentation, labels, samples))

    def counter(self, name: str, documentation: str, labels: Labels, samples: Samples) -> None:
        """The same of what only grows."""
        self._registry.register(_Watched(CounterMetricFamily, name, documentation, labels, samples))

    def histogram(self, name: str, documentation: str, labels: Labels, histograms: Histograms) -> None:
        self._registry.register(_Measured(name, documentation, labels, histograms))

    async def exposition(self) -> bytes:
        """Everything, in Prometheus' text format, as it was within the last second; rendered in a thread."""
        return await self._exposition(generate_latest)

    async def openmetrics(self) -> bytes:
        """The same in OpenMetrics' format."""
        return await self._exposition(generate_openmetrics)

    async def _exposition(self, render: Render) -> bytes:
        async with self._rendering:
            now = self._clock()
            rendered = self._rendered.get(render)
            if rendered is None or now - rendered[0] >= _KEPT_SECONDS:
                self._tallies.fold()  # here, since nothing is counted in other threads
                rendered = self._rendered[render] = (now, await asyncio.to_thread(render, self._registry))
            return rendered[1]


class _Watched(Collector):
    """One metric that another part keeps."""

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
    """One histogram that another part keeps."""

    def __init__(self, name: str, documentation: str, labels: Labels, histograms: Histograms) -> None:
        self._about = (name, documentation, labels)
        self._histograms = histograms

    def collect(self) -> Iterator[Metric]:
        yield _histogram(*self._about, self._histograms)


class _Folded(Collector):
    """The tallies. What is copied at once is whole: the event loop goes on counting meanwhile."""

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
            "concertina_keepalive_comments", "Signs of life that waiting clients were sent", tallies.comments
        )
        windows = GaugeMetricFamily(
            "concertina_window_tokens", "Tokens of the model's window, and who says so", labels=(*_MODEL, "source")
        )
        for where, (tokens, source) in sorted(tallies.windows.copy().items()):
            windows.add_metric((*where, source), tokens)
        yield windows
        for name, (documentation, labels) in _HISTOGRAMS.items():
            yield _histogram(name, documentation, labels, tallies.histograms[name])

    def _costs(self, sets: Sequence[tuple[Labels, Tally]]) -> Iterator[Metric]:
        cost = CounterMetricFamily(
            "concertina_cost_usd", "US dollars at list price, where one is known", labels=(*_SET, "purpose")
        )
        for labels, tally in sets:
            answers, summaries = figures.cost_of_answers(tally), figures.cost_of_summaries(tally)
            for purpose, usd in (("answer", answers), ("summary", summaries)):
                if usd:
                    cost.add_metric((*labels, purpose), usd)
        yield cost
        received = CounterMetricFamily(
            "concertina_received_cost_usd",
            "US dollars that the answered requests would have cost as they came, an estimate",
            labels=_SET,
        )
        for labels, tally in sets:
            if tally.cost_received:
                received.add_metric(labels, figures.cost_as_received(tally))
        yield received


def _sums(sets: Sequence[tuple[Labels, Tally]], field: str, name: str, documentation: str) -> Metric:
    """One sum over all sets of labels; of what is never reported nothing is told."""
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
        below, exemplars = 0, histogram.exemplars.copy()
        for place, (bound, number) in enumerate(zip(bounds, histogram.counts.copy(), strict=True)):
            below += number
            if (traced := exemplars.get(place)) is not None:
                buckets.append((bound, below, Exemplar({"trace_id": traced.trace_id}, traced.value, traced.at)))
            else:
                buckets.append((bound, below))
        metric.add_metric(values, buckets, histogram.sum)
    return metric


def by_name(values: Mapping[str, float]) -> list[tuple[Labels, float]]:
    """Samples with one label; a copy, as the event loop goes on counting."""
    return [((name,), value) for name, value in dict(values).items()]


def _build() -> Iterable[tuple[Labels, float]]:
    return [((version("concertina"), platform.python_version()), 1)]
