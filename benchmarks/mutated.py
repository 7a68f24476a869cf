"""Large bodies that are nearly right: `python -m benchmarks.mutated [--number N] [--seed S]`.

Sessions of pictures of 1 to 127 MB, each damaged in up to four places: bytes, quotes, escapes, holes, repeats. All
go to a real server that ages pictures. Told: statuses and outcomes, faults of ours (5xx that the upstream has not said,
`failed-open`), how late the event loop was, and the most memory.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import random
import re
import socket
from collections import Counter
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks import servers
from tests.support.pictures import FORMS, picture

if TYPE_CHECKING:
    from tests.support.conversations import Json

_MB = 1_000_000
_ROUNDS = (1, 1, 2, 3, 5, 10, 25, 40, 80, 120, 127)
_SETTINGS = "models: [{match: '*', context_window: 100000000, max_pictures: 50, max_request_bytes: 64000000}]\n"
_INSERTED = (b'"', b"\\", b'\\"', b"\n", b";base64,", b'"data":"', b"{", b"]", b"\xff", b"\\/", b"\\ud83d")
_FILLED = (b"A", b" ", b'"a",', b"[", b"\\n")
_LAG = re.compile(r'concertina_event_loop_lag_seconds_bucket\{le="([^"]+)"\} (\S+)')


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.mutated", description=__doc__)
    parser.add_argument("--number", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    noise = random.Random(options.seed)
    outcomes, faults, sizes = Counter[tuple[int, str, str]](), list[str](), list[int]()
    with (
        servers.upstream("benchmarks.plain_upstream") as target,
        servers.proxy(target, _SETTINGS, store="memory://") as server,
    ):
        for number in range(options.number):
            path, body = _session(noise)
            body = _damaged(body, noise)
            sizes.append(len(body))
            status, headers = _answer(server.port, path, body)
            outcome = headers.get("x-compaction", ""), headers.get("x-compaction-reason", "")
            outcomes[status, *outcome] += 1
            if status >= 500 or outcome[0] == "failed-open":
                faults.append(f"{number}: {len(body)} bytes, {status} {outcome}")
        metrics = _metrics(server.port)
        memory = server.peak_mb()
    table = Table("status", "outcome", "reason", "bodies")
    for (status, *outcome), often in outcomes.most_common():
        table.add_row(str(status), *outcome, str(often))
    console = Console(width=120)
    console.print(table)
    lags = [(float(bound), int(float(often))) for bound, often in _LAG.findall(metrics) if bound != "+Inf"]
    total = int(float(next(often for bound, often in _LAG.findall(metrics) if bound == "+Inf")))
    console.print("event loop late by more than", {f"{1000 * bound:.0f} ms": total - often for bound, often in lags})
    console.print(f"{sum(sizes) / _MB:,.0f} MB in {len(sizes)} bodies, at most {memory:,.0f} MB of memory at once")
    console.print("faults:", *(faults or ["none"]), sep="\n")


def _session(noise: random.Random) -> tuple[str, bytes]:
    """A path, and a body of so many rounds with a picture of 1 MB each; some pictures are small."""
    kind = FORMS[noise.choice([*FORMS])]
    messages: list[Json] = [{"role": "user", "content": "go"}]
    for number in range(noise.choice(_ROUNDS)):
        data = picture(noise.randrange(16), _MB)
        messages += kind.round_of(data if noise.random() < 0.9 else data[: noise.randrange(40, 40_000)], number)
    return kind.path, kind.body(messages)


def _damaged(body: bytes, noise: random.Random) -> bytes:
    changed = bytearray(body)
    for _ in range(noise.randrange(5)):
        at = noise.randrange(len(changed))
        match noise.randrange(7):
            case 0:
                changed[at] = noise.randrange(256)
            case 1:
                changed[at:at] = noise.choice(_INSERTED)
            case 2:
                del changed[at : at + noise.randrange(1, 200_000)]
            case 3:
                del changed[at:]
            case 4:
                changed[at:at] = changed[: noise.randrange(1, 100_000)]
            case 5:
                quote = changed.find(b'"', at)
                changed[quote : quote + (quote >= 0)] = noise.choice((b"", b'\\"', b'" ', b"'"))
            case _:
                changed[at:at] = noise.choice(_FILLED) * noise.randrange(1, 300_000)
        changed = changed or bytearray(b"{}")
    return bytes(changed)


def _answer(port: int, path: str, body: bytes) -> tuple[int, dict[str, str]]:
    """One that is refused before it is sent whole is read all the same."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request("POST", path, body, {"content-type": "application/json", "authorization": "Bearer sk-x"})
        answer = http.client.HTTPResponse(connection.sock or socket.socket(), method="POST")
        answer.begin()
        answer.read()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


def _metrics(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    return connection.getresponse().read().decode()


if __name__ == "__main__":
    main()
