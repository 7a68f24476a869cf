"""`python -m benchmarks.restarts [RESTARTS] [REQUESTS]`: is a request lost while one process takes over from another?

A listening socket is kept and passed on (LISTEN_FDS). Sixteen clients ask without a pause, half of them on connections
that they keep, half of them on new ones; one request in eight is a stream. Each time a new process is up, the old one
gets SIGTERM, once its share of the requests was answered.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp

from benchmarks import servers

_WORKERS = 16
_STREAMED = 8
_SHELL = 'export LISTEN_FDS=1 LISTEN_PID=$$; exec "$@" 3<&0 </dev/null'


@contextlib.contextmanager
def _process(config: Path, listener: socket.socket) -> Iterator[subprocess.Popen[str]]:
    """A proxy on this socket, once it accepts."""
    command = ["sh", "-c", _SHELL, "sh", sys.executable, "-m", "proxy", "serve", str(config)]
    with subprocess.Popen(
        command, stdin=listener, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as started:
        try:
            assert started.stdout is not None
            started.stdout.readline()
            yield started
        finally:
            started.kill()


class _Clients:
    def __init__(self, url: str) -> None:
        self._url = url
        self._ended = False
        self.outcomes: collections.Counter[str] = collections.Counter()

    @property
    def answered(self) -> int:
        return self.outcomes.total()

    async def ask(self, number: int, *, keep: bool) -> None:
        connector = aiohttp.TCPConnector(force_close=not keep)
        kind = "kept" if keep else "new"
        async with aiohttp.ClientSession(connector=connector) as session:
            while not self._ended:
                stream = self.answered % _STREAMED == 0
                body = {"model": "gpt-4o", "stream": stream, "messages": [{"role": "user", "content": f"{number}"}]}
                try:
                    async with session.post(self._url, data=json.dumps(body)) as answer:
                        content = await answer.read()
                        whole = answer.status == 200 and (b"[DONE]" in content if stream else b"choices" in content)
                        self.outcomes["whole" if whole else f"{kind}: {answer.status} {content[-60:]!r}"] += 1
                except aiohttp.ClientError as error:
                    self.outcomes[f"{kind}: {type(error).__name__}"] += 1

    def end(self) -> None:
        self._ended = True


async def _run(config: Path, listener: socket.socket, restarts: int, requests: int) -> _Clients:
    clients = _Clients(f"http://127.0.0.1:{listener.getsockname()[1]}/v1/chat/completions")
    with contextlib.ExitStack() as opened:
        serving = opened.enter_context(_process(config, listener))
        asking = [asyncio.create_task(clients.ask(n, keep=n % 2 == 0)) for n in range(_WORKERS)]
        for number in range(restarts):
            while clients.answered < requests * (number + 1) / (restarts + 1):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.05)
            successor = await asyncio.to_thread(opened.enter_context, _process(config, listener))
            serving.send_signal(signal.SIGTERM)
            await asyncio.to_thread(serving.wait)
            serving = successor
        while clients.answered < requests:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.05)
        clients.end()
        await asyncio.gather(*asking)
    return clients


def main(restarts: int, requests: int) -> None:
    with servers.upstream() as behind, tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(
            f"store: {{url: 'sqlite:///{folder}/store.db'}}\nlogging: {{level: error}}\n"
            f"upstreams: {{main: {{base_url: 'http://127.0.0.1:{behind.port}/v1'}}}}\n"
        )
        with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
            started = time.monotonic()
            clients = asyncio.run(_run(config, listener, restarts, requests))
    print(f"{clients.answered} requests, {restarts} restarts, {time.monotonic() - started:.0f} s")
    for outcome, number in clients.outcomes.most_common():
        print(f"  {number:>7}  {outcome}")


if __name__ == "__main__":
    main(*(int(word) for word in [*sys.argv[1:], *("20", "50000")[len(sys.argv) - 1 :]]))
