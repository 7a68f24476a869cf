"""Sessions of screenshots behind a server that takes so much: `python -m benchmarks.pictures`.

For each session, of one more picture a request: errors that its client got, refusals by the upstream, how often the
beginning of a request was another than that of the one before, and which share of all bytes a provider's cache could
serve; beside keeping the newest three, and keeping all, which no server takes. Then what one body of many pictures
costs, and how long small requests take beside such.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks import servers
from benchmarks.viewers import paced
from tests.support.model_server import ModelServer
from tests.support.pictures import FORMS, Limit, picture, pictures_in
from tests.support.stages import stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.conversations import Json

_MB = 1_000_000
_ENDLESS = 100_000_000
# Pictures of a session, bytes of each, and what its server takes.
_SESSIONS = (
    (60, _MB, {"bytes": 32 * _MB}),
    (150, 300_000, {"bytes": 20 * _MB}),
    (300, 100_000, {"pictures": 100}),
)
_WORDS = {
    "bytes": (413, "Request payload size exceeds the limit: {limit} bytes."),
    "pictures": (400, "Too many images: at most {limit} images."),
}
_KEPT = 3
_PICTURES = 80
_LARGE = 6


class _Played:
    """What became of a session: pictures of each request that was taken, errors to the client, refusals."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, ...]] = []
        self.errors = self.refused = 0


async def _session(directory: Path, form: str, rounds: int, size: int, most: dict[str, int]) -> _Played:
    played, kind = _Played(), FORMS[form]
    ((axis, stated),) = most.items()
    status, words = _WORDS[axis]
    limit = Limit(status, words.format(limit=stated), **most)  # type: ignore[arg-type]
    messages: list[Json] = [{"role": "user", "content": "Click until the light is green."}]
    models = [{"match": "pictures", "context_window": _ENDLESS}]
    async with stage(directory, ModelServer(window=_ENDLESS, script=limit), models=models) as play:
        for number in range(rounds):
            data = picture(number, size)
            messages += kind.round_of(data, number)
            reply = await play.send(kind.body(messages), path=kind.path)
            shown = pictures_in(play.sent[-1].body)
            played.errors += reply.status != 200 or data not in shown
            played.shown.append(tuple(one[-64:] for one in shown))
            play.model.received.clear()
    played.refused = limit.refused
    return played


def _breaks(shown: Sequence[tuple[str, ...]]) -> int:
    return sum(now[: len(before)] != before for before, now in pairwise(shown))


def _reads(shown: Sequence[tuple[str, ...]]) -> float:
    """Pictures alone count: all else weighs next to nothing."""
    read = sum(
        sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(before, now, strict=False)))
        for before, now in pairwise(shown)
    )
    return read / sum(map(len, shown))


async def _sessions(console: Console, form: str) -> None:
    table = Table(
        "pictures", "of bytes", "server takes", "errors", "refused", "breaks", "from cache", "keep 3", "keep all"
    )
    for rounds, size, most in _SESSIONS:
        with tempfile.TemporaryDirectory() as directory:
            played = await _session(Path(directory), form, rounds, size, most)
        everything = [tuple(map(str, range(n + 1))) for n in range(rounds)]
        newest = [one[-_KEPT:] for one in everything]
        table.add_row(
            f"{rounds}", f"{size:,}", ", ".join(f"{most[key]:,} {key}" for key in most), f"{played.errors}",
            f"{played.refused}", f"{_breaks(played.shown)}", f"{_reads(played.shown):.2f}",
            f"{_breaks(newest)}, {_reads(newest):.2f}", f"{_breaks(everything)}, {_reads(everything):.2f}",
        )  # fmt: skip
    console.print(form, table)


def _large(port: int) -> list[tuple[str, float]]:
    """Send a session of 80 pictures, of which nothing was known, and more of it, known but for its last round; what was
    sent, with our own milliseconds."""
    kind, told = FORMS["chat, user"], list[tuple[str, float]]()
    messages: list[Json] = [{"role": "user", "content": "Click."}]
    for number in range(_PICTURES):
        messages += kind.round_of(picture(number, _MB), number)
    for number in range(_LARGE):
        messages += kind.round_of(picture(number, 100_000), _PICTURES + number)
        body = kind.body(messages)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", kind.path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        own = float(answer.headers["x-compaction-overhead-ms"])
        told.append((f"{len(body) / _MB:.0f} MB, {answer.status}, {answer.headers['x-compaction-media']}", own))
        connection.close()
    return told


def _one_body(console: Console) -> None:
    """Small requests at a steady pace, alone and beside large ones."""
    settings = f"models: [{{match: '*', context_window: {_ENDLESS}, max_pictures: {_PICTURES // 2}}}]\n"
    with (
        servers.upstream() as target,
        servers.proxy(target, settings, store="memory://") as server,
        ProcessPoolExecutor(2) as pool,
    ):
        alone = pool.submit(paced, server.port).result()
        beside, large = pool.submit(paced, server.port), pool.submit(_large, server.port)
        told, taken = large.result(), beside.result()
    table = Table("large", "own ms")
    for name, own in told:
        table.add_row(name, f"{own:.0f}")
    console.print(table)
    table = Table("small requests", "p50 ms", "p95", "p99", "most")
    for name, seconds in (("alone", alone), ("beside large ones", taken)):
        cuts = statistics.quantiles(seconds, n=100)
        table.add_row(name, *(f"{1_000 * one:.1f}" for one in (cuts[49], cuts[94], cuts[98], max(seconds))))
    console.print(table)


async def _main(forms: Sequence[str]) -> None:
    console = Console(width=140)
    for form in forms:
        await _sessions(console, form)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--form", action="append", choices=[*FORMS], help="unset: all")
    asyncio.run(_main(parser.parse_args().form or [*FORMS]))
    _one_body(Console(width=140))
