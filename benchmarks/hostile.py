"""`python -m benchmarks.hostile [WORD]`: does any single request cost others much? (promise P10 of docs/reliability.md)

Every input is sent to a real server twice: with a window that nothing fills, so that it is only read, counted and
relayed, and with one of 8,192 tokens, so that the compaction runs on it. Meanwhile another client asks /livez and
another tenant sends small chats. What is over a bound is tried again, up to three times, with other numbers in its
texts and for another tenant: the best time counts, and the most memory. WORD: only inputs with it in their name.
"""

from __future__ import annotations

import contextlib
import gc
import http.client
import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import servers
from benchmarks.hostile_inputs import INPUTS, Input
from benchmarks.servers import Server

_TRIES = 3
_STALL, _MEMORY, _CPU, _OTHERS = 0.050, 20.0, 1.0, 2.0
# Of bodies over 1 MB, up to the limit of 64 MB and compressed: times their size as sent, and MB beside that.
_LARGER_MEMORY, _LARGER_RSS, _LARGER_CPU = 4.0, 100.0, 2.0
# Below these a figure is the noise of the machine and of the allocator.
_LEAST_RSS, _LEAST_OTHERS = 8.0, 0.025
# Models of different families: what was learnt of a message under one is not found under the next.
_MODELS = ("gpt-4o", "gpt-5", "o1")
_WINDOWS = {"relay": 8_000_000, "compact": 8_192}
_BASELINE_SECONDS, _LEAST_SECONDS, _AFTER_SECONDS = 3.0, 0.4, 0.1
_SMALL = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "How are you?"}]}


@dataclass
class Probe:
    """A client that asks again and again, and notes when each answer came and how long it took."""

    port: int
    path: str
    body: bytes | None
    pause: float
    ended: threading.Event = field(default_factory=threading.Event)
    trips: list[tuple[float, float]] = field(default_factory=list)

    def run(self) -> None:
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"authorization": "Bearer sk-other", "content-type": "application/json"}
        while not self.ended.is_set():
            started = time.perf_counter()
            link.request("GET" if self.body is None else "POST", self.path, self.body, headers)
            link.getresponse().read()
            self.trips.append((time.perf_counter(), time.perf_counter() - started))
            time.sleep(self.pause)
        link.close()

    def since(self, moment: float) -> list[float]:
        """Round trips that ended after it, longest last."""
        return sorted(took for at, took in list(self.trips) if at >= moment) or [0.0]


@dataclass
class Figures:
    """Of one try, or of the best of several: seconds, megabytes."""

    status: int
    outcome: str
    took: float
    stall: float
    rss: float
    cpu: float
    others: float

    def with_another(self, other: Figures) -> Figures:
        """The best times; of memory the most, since what was freed stays with the process for the next try."""
        worse = max(self, other, key=lambda figures: figures.is_wrong)
        return Figures(
            worse.status,
            worse.outcome,
            took=min(self.took, other.took),
            stall=min(self.stall, other.stall),
            rss=max(self.rss, other.rss),
            cpu=min(self.cpu, other.cpu),
            others=min(self.others, other.others),
        )

    @property
    def is_wrong(self) -> bool:
        return self.status >= 500 or self.outcome.startswith("failed-open")


class Measured:
    """A server under its usual load of /livez and small chats."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.livez = Probe(server.port, "/livez", None, 0.001)
        self.chat = Probe(server.port, "/v1/chat/completions", json.dumps(_SMALL).encode(), 0.008)
        self.usual = self.usual_chat = self.usual_cpu = 0.0

    @contextlib.contextmanager
    def probed(self) -> Iterator[None]:
        threads = [threading.Thread(target=probe.run) for probe in (self.livez, self.chat)]
        for thread in threads:
            thread.start()
        try:
            time.sleep(0.5)
            started, cpu = time.perf_counter(), self.server.cpu_seconds()
            time.sleep(_BASELINE_SECONDS)
            self.usual_cpu = (self.server.cpu_seconds() - cpu) / (time.perf_counter() - started)
            self.usual = statistics.median(self.livez.since(started))
            self.usual_chat = _p99(self.chat.since(started))
            yield
        finally:
            self.livez.ended.set()
            self.chat.ended.set()
            for thread in threads:
                thread.join()

    def attempt(self, hostile: Input, number: int) -> Figures:
        headers = {"authorization": f"Bearer sk-hostile-{number}", "content-type": "application/json"}
        if hostile.coding:
            headers["content-encoding"] = hostile.coding
        body = hostile.make(number).replace(b'"gpt-4o"', b'"%s"' % _MODELS[number].encode(), 1)
        time.sleep(0.1)
        Path(f"/proc/{self.server.pid}/clear_refs").write_text("5")
        before, cpu, started = self._memory("VmRSS"), self.server.cpu_seconds(), time.perf_counter()
        status, outcome = _send(self.server.port, body, headers)
        took = time.perf_counter() - started
        time.sleep(max(_AFTER_SECONDS, _LEAST_SECONDS - took))
        elapsed = time.perf_counter() - started
        return Figures(
            status,
            outcome,
            took,
            max(0.0, self.livez.since(started)[-1] - self.usual),
            self._memory("VmHWM") - before,
            max(0.0, self.server.cpu_seconds() - cpu - self.usual_cpu * elapsed),
            _p99(self.chat.since(started)),
        )

    def _memory(self, name: str) -> float:
        lines = Path(f"/proc/{self.server.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

    def over(self, hostile: Input, figures: Figures) -> list[str]:
        """The names of the bounds that are exceeded."""
        size = (hostile.size or len(hostile.make(0))) / 1e6
        bounds = {
            "status": figures.is_wrong,
            "stall": figures.stall > _STALL,
            "memory": figures.rss > max(_LEAST_RSS, _MEMORY * size),
            "CPU": figures.cpu > _CPU,
            "others": figures.others > max(_LEAST_OTHERS, _OTHERS * self.usual_chat),
        }
        if hostile.larger or hostile.coding:
            bounds |= {"memory": figures.rss > _LARGER_MEMORY * size + _LARGER_RSS, "CPU": figures.cpu > _LARGER_CPU}
            del bounds["others"]
        return [name for name, exceeded in bounds.items() if exceeded]


def _p99(trips: list[float]) -> float:
    return trips[min(len(trips) - 1, int(0.99 * len(trips)))]


def _send(port: int, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
    """Status and outcome; a refusal may come while the body is still being sent."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        link.request("POST", "/v1/chat/completions", body, headers)
    answer = link.getresponse()
    answer.read()
    outcome = answer.headers.get("x-compaction", "")
    reason = answer.headers.get("x-compaction-reason", "")
    link.close()
    return answer.status, f"{outcome} {reason}".strip()


_SETTINGS = """
models: [{{match: '*', context_window: {window}}}]
policies: {{default: {{summarizer: {{model: none}}}}}}
logging: {{level: error}}
"""
_HEAD = (
    f"{'input':<44}{'window':<8}{'kB':>7}{'status':>7}{'stall ms':>9}{'RSS MB':>8}{'x body':>7}{'CPU s':>7}"
    f"{'others ms':>10}{'x':>6}{'ms':>7} tries  over, outcome"
)


def _line(measured: Measured, window: str, hostile: Input, figures: Figures, tries: int, over: list[str]) -> str:
    size = (hostile.size or len(hostile.make(0))) / 1e6
    return (
        f"{hostile.name:<44}{window:<8}{1000 * size:>7,.0f}{figures.status:>7}{1000 * figures.stall:>9.0f}"
        f"{figures.rss:>8.1f}{figures.rss / size:>7.1f}{figures.cpu:>7.2f}{1000 * figures.others:>10.1f}"
        f"{figures.others / measured.usual_chat:>6.1f}{1000 * figures.took:>7.0f} {tries:>5}  "
        f"{', '.join(over).upper()} {figures.outcome}".rstrip()
    )


def _measure(measured: Measured, window: str, hostile: Input) -> list[str]:
    """One line, and which bounds were exceeded at the best try."""
    figures, tries = measured.attempt(hostile, 0), 1
    while (over := measured.over(hostile, figures)) and tries < _TRIES:
        figures = figures.with_another(measured.attempt(hostile, tries))
        tries += 1
    print(_line(measured, window, hostile, figures, tries, over), flush=True)
    return over


def main(word: str) -> None:
    inputs = [hostile for hostile in INPUTS if word in hostile.name]
    exceeded: list[str] = []
    larger: list[str] = []
    started = time.perf_counter()
    gc.disable()
    with servers.upstream() as behind:
        for window, tokens in _WINDOWS.items():
            with servers.proxy(behind, _SETTINGS.format(window=tokens)) as server:
                measured = Measured(server)
                with measured.probed():
                    print(
                        f"\nwindow of {tokens:,} tokens; usual: /livez {1000 * measured.usual:.1f} ms,"
                        f" small chats p99 {1000 * measured.usual_chat:.1f} ms, {measured.usual_cpu:.2f} s CPU a second"
                    )
                    print(_HEAD)
                    for hostile in inputs:
                        over = _measure(measured, window, hostile)
                        (larger if hostile.larger else exceeded).extend([f"{window} {hostile.name}"] if over else [])
    asked = len(_WINDOWS) * sum(not hostile.larger for hostile in inputs)
    print(
        f"\n{len(exceeded)} of {asked} over a bound, {len(larger)} of the larger ones;"
        f" {time.perf_counter() - started:.0f} s; bounds: stall {1000 * _STALL:.0f} ms,"
        f" memory {_MEMORY:.0f} x body and at least {_LEAST_RSS:.0f} MB, CPU {_CPU:.0f} s,"
        f" others' p99 {_OTHERS:.0f} x and at least {1000 * _LEAST_OTHERS:.0f} ms"
    )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
