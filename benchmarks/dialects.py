"""`python -m benchmarks.dialects [--quick]`: the same conversation in each dialect, in one run, beside chat.

Requests relayed, the CPU they take, how much later the first byte of a stream comes than from the upstream itself, and
what a seen history costs to be read with a new last message. Rounds take turns, and the best figure of all counts:
whatever else the machine does makes some of them worse.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks import bodies, client, decisions, servers
from tests.support.dialects import PLAIN, WRITERS, Called, Entry, Writer, model, path_of, request_body, user

_ROUNDS = 9
_RELAYED = ("1 kB", "400 kB")


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.dialects", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the time, for a first look")
    seconds = 0.2 if parser.parse_args().quick else 1.0
    table = Table("", *(writer.dialect.name for writer in WRITERS), "ratios to chat", title="one worker each")
    for name, figures in (*_relaying(seconds), *_reading()):
        ratios = ", ".join(f"{figure / figures[0]:.2f}" for figure in figures[1:])
        table.add_row(name, *(f"{figure:,.3g}" if figure < 1_000 else f"{figure:,.0f}" for figure in figures), ratios)
    Console().print(table)


def body(writer: Writer, size: int, *, stream: bool) -> bytes:
    """The conversation of all benchmarks, in one dialect."""
    system, *messages = json.loads(bodies.body(size, stream=stream))["messages"]
    items = [item for message in messages for item in writer.items(_entry(message), PLAIN)]
    fields = {**writer.fields(), "model": "gpt-4o", "stream": stream}
    request = request_body(writer.dialect, system["content"], items, fields)
    return json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode()


def _entry(message: dict[str, object]) -> Entry:
    text = str(message["content"])
    match message:
        case {"role": "tool", "tool_call_id": str(call)}:
            return Entry("tool", results=((call, text),))
        case {"tool_calls": [{"id": str(call)}]}:
            return model(text, Called(call, "read_file", f"src/module_{call}.py"))
        case _:
            return user(text)


@dataclass(frozen=True)
class _Relayed:
    """Of one load through the proxy: requests a second, CPU milliseconds each, and milliseconds to the first byte that
    the upstream alone does not take."""

    rate: float
    cpu: float
    first_byte: float


def _relaying(seconds: float) -> Iterator[tuple[str, list[float]]]:
    with ExitStack() as stack:
        direct = stack.enter_context(servers.upstream())
        proxy = stack.enter_context(servers.proxy(direct))
        workers = stack.enter_context(ProcessPoolExecutor(1))
        for name in _RELAYED:
            for stream in (False, True):
                rounds = [
                    [_relayed(direct, proxy, writer, name, workers, seconds, stream=stream) for writer in WRITERS]
                    for _ in range(_ROUNDS)
                ]
                kind = f"{name}, stream" if stream else name
                yield f"{kind}: requests/s", _best([[one.rate for one in each] for each in rounds], max)
                yield f"{kind}: CPU ms a request", _best([[one.cpu for one in each] for each in rounds])
                if stream:
                    added = _best([[one.first_byte for one in each] for each in rounds])
                    yield f"{kind}: first byte, added ms", added


def _relayed(
    direct: servers.Server,
    proxy: servers.Server,
    writer: Writer,
    name: str,
    workers: Executor,
    seconds: float,
    *,
    stream: bool,
) -> _Relayed:
    content = body(writer, bodies.SIZES[name], stream=stream)

    def run(server: servers.Server) -> client.Timings:
        load = client.Load(server.port, content, 1, seconds, path=path_of(writer.dialect))
        timings = workers.submit(client.run, load).result()
        if timings.errors:
            raise RuntimeError(f"{timings.errors} answers of {server.name} were no 200")
        return timings

    alone = run(direct)
    before = proxy.cpu_seconds()
    through = run(proxy)
    spent = proxy.cpu_seconds() - before
    done = len(through.total)
    added = statistics.median(through.first) - statistics.median(alone.first)
    return _Relayed(done / through.elapsed, 1000 * spent / (done + 20), 1000 * added)


def _reading() -> Iterator[tuple[str, list[float]]]:
    for name in ("400 kB", "4 MB"):
        contents = [(body(writer, bodies.SIZES[name], stream=False), writer.dialect) for writer in WRITERS]
        rounds = [[decisions.reading(*each) for each in contents] for _ in range(_ROUNDS)]
        yield f"{name}: reading a seen history, ms", _best(rounds)


def _best(rounds: list[list[float]], best: Callable[[Iterable[float]], float] = min) -> list[float]:
    return [best(figures) for figures in zip(*rounds, strict=True)]


if __name__ == "__main__":
    main()
