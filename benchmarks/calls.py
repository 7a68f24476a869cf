"""`python -m benchmarks.calls [--requests N] [--top N]`: Python calls that one relayed request of 1 kB makes.

One connection, every request with a new last message, before an upstream in a process of its own. Calls of Python
functions on the event loop's thread are counted, those of functions in C are not.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

import uvloop

from benchmarks import bodies, servers
from tests.support.servers import configured
from tests.support.servers import proxy as serving

_WARM = 50


class _CallCounter:
    """Counts calls by function while it is on."""

    def __init__(self) -> None:
        self.calls: Counter[CodeType] = Counter()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            self.calls[frame.f_code] += 1


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.calls", description=__doc__)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--top", type=int, default=0, help="functions to list, the most often called first")
    parser.add_argument("--stream", action="store_true", help="with an answer of 64 chunks")
    options = parser.parse_args()
    with servers.upstream("benchmarks.plain_upstream") as direct:
        calls = uvloop.run(_count_calls(direct.port, options.requests, stream=options.stream))
    print(f"{calls.total() / options.requests:.0f} Python calls a request")
    for code, number in calls.most_common(options.top):
        print(
            f"{number / options.requests:6.1f}  {code.co_qualname}  {Path(code.co_filename).name}:{code.co_firstlineno}"
        )


async def _count_calls(upstream: int, requests: int, *, stream: bool) -> Counter[CodeType]:
    counter = _CallCounter()
    body = bodies.body(bodies.SIZES["1 kB"], stream=stream)
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "store": {"url": f"sqlite:///{folder}/bench.db"},
            "upstreams": {"main": {"base_url": f"http://127.0.0.1:{upstream}/v1"}},
            "models": [{"match": "*", "context_window": 8_000_000}],
            "logging": {"level": "info", "format": "json"},
        }
        async with serving(configured(Path(folder), settings)) as address:
            port = int(address.rpartition(":")[2])
            await asyncio.to_thread(_send, port, body, _WARM)
            sys.setprofile(counter)
            try:
                await asyncio.to_thread(_send, port, body, requests)
            finally:
                sys.setprofile(None)
    return counter.calls


def _send(port: int, body: bytes, requests: int) -> None:
    """Send so many requests over one connection, one after the other."""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer sk-bench\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode()
    began = time.time_ns() // 1_000_000
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for number in range(requests):
            text = body.replace(bodies.SEQUENCE.encode(), b"SEQ%08d" % ((began + number) % 10**8))
            connection.sendall(head + text)
            answer = b""
            while not _is_complete(answer):
                answer += connection.recv(1 << 18)


def _is_complete(answer: bytes) -> bool:
    head, separator, rest = answer.partition(b"\r\n\r\n")
    if not separator:
        return False
    if b"transfer-encoding: chunked" in head.lower():
        return rest.endswith(b"0\r\n\r\n")
    return len(rest) >= int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])


if __name__ == "__main__":
    main()
