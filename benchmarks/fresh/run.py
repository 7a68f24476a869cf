"""Sessions played through a server of a checkout, one request for each of the assistant's messages."""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fresh.upstream import Upstream
from benchmarks.fresh.wire import Play
from benchmarks.servers import process


@dataclass(frozen=True)
class Sent:
    """What the upstream received of one session, in order, and how many requests the client made."""

    bodies: list[bytes]
    requests: int
    errors: int


@contextmanager
def serving(checkout: Path, windows: list[int]) -> Iterator[tuple[int, Upstream]]:
    """Run the server of a checkout before an upstream of its own; a model `w8000` has a window of 8,000 tokens."""
    upstream = Upstream()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    models = "".join(f"  - {{match: 'w{window}', context_window: {window}}}\n" for window in windows)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(
            f"server: {{port: {port}}}\nstore: {{url: 'sqlite:///{folder}/fresh.db'}}\n"
            f"upstreams:\n  main: {{base_url: 'http://127.0.0.1:{upstream.server_port}/v1'}}\n"
            f"models:\n{models}policies: {{default: {{summarizer: {{model: none}}}}}}\n"
        )
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        with process([sys.executable, "-m", "proxy", "serve", str(config)], port, checkout, environment):
            yield port, upstream
    upstream.shutdown()


def played(play: Play, window: int, port: int, upstream: Upstream) -> Sent:
    """Send every request of a session, and return what arrived."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    bodies: list[bytes] = []
    errors = 0
    for end in play.ends:
        content = json.dumps(play.body(f"w{window}", end), ensure_ascii=False).encode()
        headers = {
            "content-type": "application/json",
            "authorization": "Bearer k",
            "x-api-key": "k",
            "anthropic-version": "2023-06-01",
        }
        connection.request("POST", play.path, content, headers)
        answer = connection.getresponse()
        answer.read()
        errors += answer.status != 200
        bodies.extend(upstream.take())
    return Sent(bodies, len(play.ends), errors)
