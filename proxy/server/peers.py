"""The metrics of all workers of one proxy, whichever of them is asked."""

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

# Seconds that a worker may take; one that is just being replaced is left out.
_PATIENCE = 1.0


@dataclass(frozen=True, slots=True)
class Peers:
    """The workers of one proxy: this one's number among so many, and the folder in which each has a Unix socket."""

    number: int
    count: int
    folder: Path

    @asynccontextmanager
    async def sharing(self, exposition: Exposition) -> AsyncIterator[Exposition]:
        """Offer this worker's counts to the others. Yield what returns the counts of all, with `worker`."""

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await exposition())
            writer.close()

        path = self._path(self.number)
        path.unlink(missing_ok=True)  # of the worker that this one replaces
        async with await asyncio.start_unix_server(answer, path):
            yield lambda: self._everybody(exposition)

    async def _everybody(self, exposition: Exposition) -> bytes:
        asked = (exposition() if each == self.number else _ask_peer(self._path(each)) for each in range(self.count))
        return await asyncio.to_thread(_merge_expositions, await asyncio.gather(*asked))

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}.sock"


async def _ask_peer(path: Path) -> bytes:
    """Return the counts of another worker, nothing if it does not respond."""
    try:
        async with within(_PATIENCE):
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
        found: dict[str, Metric] = {}
        for number, text in enumerate(self._texts):
            for metric in text_string_to_metric_families(text.decode()):
                merged = found.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
                for sample in metric.samples:
                    labels = {**sample.labels, "worker": str(number)}
                    merged.add_sample(sample.name, labels, sample.value)
        return iter(found.values())
