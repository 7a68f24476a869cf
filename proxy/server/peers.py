"""The metrics of all workers of one proxy, served by any of them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from proxy.runtime.deadlines import within

Exposition = Callable[[], Coroutine[None, None, bytes]]

# Timeout of a worker in seconds. A worker that is being replaced is left out.
_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class Peers:
    """The workers of one proxy.

    number: that of this worker. count: the number of workers.
    folder: the folder with a Unix socket for each worker.
    """

    number: int
    count: int
    folder: Path

    @asynccontextmanager
    async def sharing(self, exposition: Exposition) -> AsyncIterator[Exposition]:
        """Offer this worker's metrics to the others. Yields a function that returns those of all, with `worker`."""

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await exposition())
            writer.close()

        path = self._path(self.number)
        path.unlink(missing_ok=True)  # left by the worker that this one replaces
        async with await asyncio.start_unix_server(answer, path):
            yield lambda: self._all_workers(exposition)

    async def _all_workers(self, exposition: Exposition) -> bytes:
        expositions = (
            exposition() if number == self.number else _ask_peer(self._path(number)) for number in range(self.count)
        )
        return await asyncio.to_thread(_merge_expositions, await asyncio.gather(*expositions))

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}.sock"


async def _ask_peer(path: Path) -> bytes:
    """Return the metrics of another worker; empty if it does not respond."""
    try:
        async with within(_TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                return await reader.read()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return b""


def _merge_expositions(texts: Iterable[bytes]) -> bytes:
    registry = CollectorRegistry()
    registry.register(_MergedMetrics(texts))
    return generate_latest(registry)


class _MergedMetrics(Collector):
    """The same metrics of several workers as one."""

    def __init__(self, texts: Iterable[bytes]) -> None:
        self._texts = texts

    def collect(self) -> Iterator[Metric]:
        merged_metrics: dict[str, Metric] = {}
        for number, text in enumerate(self._texts):
            for metric in text_string_to_metric_families(text.decode()):
                merged = merged_metrics.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
                for sample in metric.samples:
                    labels = {**sample.labels, "worker": str(number)}
                    merged.add_sample(sample.name, labels, sample.value)
        return iter(merged_metrics.values())
