"""`python -m benchmarks.soak [REQUESTS]`: does memory stay flat? Every request is another conversation's, of many keys.

Seven in ten are small, a quarter are compacted (without a model), one in twenty is a stream that nobody reads to its
end. Prints resident memory, threads and open files at every tenth of the way; by half of it, everything that is
remembered has reached its bound.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path

import aiohttp

from benchmarks import servers

_WORKERS = 16
_KEYS = 1_000
_STEPS = 10
_SETTINGS = """
models: [{match: '*', context_window: 4096}]
policies: {default: {summarizer: {model: none}}}
logging: {level: error}
"""


def _request(number: int) -> tuple[dict[str, object], bool]:
    """A body, and whether its answer is left half-way."""
    chance = random.Random(number)
    kind = chance.random()
    turns = 1 if kind < 0.7 else 24
    messages = [
        {"role": role, "content": f"{number}-{turn} " + " ".join(str(chance.random()) for _ in range(12))}
        for turn in range(turns)
        for role in ("user", "assistant")
    ]
    left = kind > 0.95
    return {"model": "gpt-4o", "messages": [*messages, {"role": "user", "content": "go on"}], "stream": left}, left


async def _work(session: aiohttp.ClientSession, url: str, numbers: list[int], failed: list[int]) -> None:
    while numbers:
        number = numbers.pop()
        body, left = _request(number)
        headers = {"authorization": f"Bearer sk-{number % _KEYS}", "content-type": "application/json"}
        async with session.post(url, data=json.dumps(body), headers=headers) as answer:
            if left:
                answer.close()
            else:
                await answer.read()
            if answer.status != 200:
                failed.append(number)


def _state(pid: int) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = {name: value.split()[0] for name, _, value in (line.partition(":") for line in lines) if value.strip()}
    files = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return f"{int(fields['VmRSS']) / 1024:7.1f} MB  {fields['Threads']:>3} threads  {files:>3} files"


async def _soak(port: int, pid: int, requests: int) -> None:
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    failed: list[int] = []
    async with aiohttp.ClientSession() as session:
        for step in range(_STEPS + 1):
            print(f"{step * requests // _STEPS:>8} requests  {_state(pid)}  {len(failed)} failed", flush=True)
            if step < _STEPS:
                numbers = list(range(step * requests // _STEPS, (step + 1) * requests // _STEPS))
                await asyncio.gather(*(_work(session, url, numbers, failed) for _ in range(_WORKERS)))


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with servers.upstream() as behind, servers.proxy(behind, _SETTINGS) as served:
        assert served.pid is not None
        asyncio.run(_soak(served.port, served.pid, wanted))
