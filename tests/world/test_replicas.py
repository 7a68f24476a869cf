"""Replicas as processes of their own on one store: killed, stopped, and of two builds at once."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import yaml
from redis.asyncio import Redis

from proxy.callers.tenants import Tenants
from proxy.config.loading import load
from tests.support.dialects import WRITERS
from tests.support.fleet import WINDOW as SMALL
from tests.support.fleet import Canaries, Fleet
from tests.support.long_conversations import SMALL_WINDOW, SUMMARY, bearer, is_summary, sent
from tests.support.oracle import SUMMARIZER, Oracle, Session
from tests.support.servers import serve
from tests.support.upstreams import JSON, OK_BODY, Call, Upstream, answer, upstream

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
ROUNDS = 1 + int(os.environ.get("CONCERTINA_CHAOS", "0")) // 4
STEPS = 30


@asynccontextmanager
async def process(config: Path, build: Path = ROOT) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A replica of this build, and its address."""
    env = {name: text for name, text in os.environ.items() if not name.startswith(("CONCERTINA_", "OPENAI_"))}
    command = (sys.executable, "-m", "proxy", "serve", str(config), "--port", "0")
    pipe, devnull = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    started = await asyncio.create_subprocess_exec(*command, cwd=build, env=env, stdout=pipe, stderr=devnull)
    try:
        assert started.stdout is not None
        async with asyncio.timeout(60):
            first = (await started.stdout.readline()).decode()
        yield started, "http://127.0.0.1:" + first.partition(",")[0].rpartition(":")[2]
    finally:
        if started.returncode is None:
            started.send_signal(signal.SIGCONT)
            started.kill()
        await started.wait()


def configured(directory: Path, address: str, store: str, **more: object) -> Path:
    file = directory / "config.yaml"
    settings = {
        "store": {"url": store, "secret": "shared", "timeout": "2s"},
        "upstreams": {"main": {"base_url": f"{address}/v1"}},
        "policies": {"default": {"summarizer": {"timeout": "1s"}}},
        **more,
    }
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return file


class Held:
    """An upstream whose first summary is held back until it is let go."""

    def __init__(self) -> None:
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()
        self.behind: Upstream | None = None

    async def __call__(self, call: Call) -> None:
        await call.read()
        if is_summary(call) and not self.asked.is_set():
            self.asked.set()
            await self.go_on.wait()
        await call.send(answer(200, SUMMARY if is_summary(call) else OK_BODY, JSON))

    def summaries(self) -> int:
        assert self.behind is not None
        return sum(is_summary(call) for call in self.behind.calls)

    def chats(self) -> list[bytes]:
        assert self.behind is not None
        return [call.body for call in self.behind.calls if not is_summary(call)]


@asynccontextmanager
async def two(directory: Path, store: str) -> AsyncIterator[tuple[Held, list[asyncio.subprocess.Process], list[str]]]:
    held = Held()
    async with AsyncExitStack() as opened:
        held.behind = await opened.enter_async_context(upstream(held))
        file = configured(directory, held.behind.address, store, **SMALL_WINDOW)
        started = [await opened.enter_async_context(process(file)) for _ in range(2)]
        yield held, [one for one, _ in started], [address for _, address in started]


async def test_a_replica_that_is_killed_over_a_summary_is_replaced_by_another(tmp_path: Path, valkey_url: str) -> None:
    caller = bearer(secrets.token_hex(8))
    async with two(tmp_path, valkey_url) as (held, processes, addresses):
        waiting = asyncio.create_task(sent(addresses[0], caller))
        await held.asked.wait()
        processes[0].kill()
        await asyncio.wait([waiting])
        assert isinstance(waiting.exception(), Exception), "its client is told by the end of the connection"
        assert (await sent(addresses[1], caller)).header(b"x-compaction") == b"applied"
        assert held.summaries() == 2
        held.go_on.set()


async def test_a_replica_that_was_stopped_over_a_summary_uses_the_one_made_meanwhile(
    tmp_path: Path, valkey_url: str
) -> None:
    caller = bearer(secrets.token_hex(8))
    async with two(tmp_path, valkey_url) as (held, processes, addresses), Redis.from_url(valkey_url) as redis:
        await redis.flushdb()
        waiting = asyncio.create_task(sent(addresses[0], caller))
        await held.asked.wait()
        processes[0].send_signal(signal.SIGSTOP)
        assert (await sent(addresses[1], caller)).header(b"x-compaction") == b"applied"
        records = {key: await redis.get(key) async for key in redis.scan_iter("cp:*")}
        assert len(records) == 1
        held.go_on.set()
        processes[0].send_signal(signal.SIGCONT)
        assert (await waiting).header(b"x-compaction") == b"applied"
        assert {key: await redis.get(key) async for key in redis.scan_iter("cp:*")} == records
        assert held.summaries() == 2
        first, second = held.chats()
        assert first == second, "both send the same bytes"


def later_build(directory: Path, module: str, version: str) -> Path:
    """This source, but that it writes another version of something. What is compiled of the rest stays valid."""
    for package in ("policies", "proxy"):
        shutil.copytree(ROOT / package, directory / package)
    file = directory / module
    text = file.read_text("utf-8")
    number = int(version.rpartition(" ")[2])
    assert text.count(f"\n{version}\n") == 1
    file.write_text(text.replace(f"\n{version}\n", f"\n{version.removesuffix(str(number))}{number + 1}\n"), "utf-8")
    return directory


@pytest.mark.parametrize(
    ("module", "version"),
    [("policies/record/record.py", "VERSION = 2"), ("proxy/sessions/stores/sealing.py", "VERSION = 1")],
)
async def test_two_builds_share_a_store_and_neither_is_wrong_nor_fails(
    tmp_path: Path, valkey_url: str, module: str, version: str
) -> None:
    oracle, chance, tenants = Oracle(SMALL), random.Random(1), ("acme", "bolt", "core")
    later = later_build(tmp_path / "later", module, version)
    async with AsyncExitStack() as opened, Redis.from_url(valkey_url) as redis:
        await redis.flushdb()
        behind = await opened.enter_async_context(serve(oracle.model))
        models = [
            {"match": SUMMARIZER, "context_window": 1_000_000},
            {"match": "*", "context_window": SMALL, "encoding": "o200k_base"},
        ]
        policies = {"default": {"summarizer": {"model": SUMMARIZER}}}
        file = configured(tmp_path, behind, valkey_url, models=models, policies=policies)
        old, new = [[(await opened.enter_async_context(process(file, build)))[1]] for build in (ROOT, later)]
        played = Fleet(oracle, [], Tenants(load(file, {})), Canaries(tenants), chance)
        sealed: set[int] = set()
        # Before, during and after an upgrade, and rolled back.
        for number in range(ROUNDS):
            played.sessions = [
                Session(tenant, f"one{number}", writer) for tenant, writer in zip(tenants, WRITERS, strict=True)
            ]
            for played.addresses in (old, old + new, new, old + new, old):
                await played.play(STEPS)
                sealed |= {int((await redis.get(key))[0]) async for key in redis.scan_iter("cp:*")}
        versions = {key.split(b":")[2] async for key in redis.scan_iter("cp:*")}
    assert (played.failed, oracle.wrong) == ([], [])
    assert oracle.signed.total() > oracle.judged.total() // 4
    assert len(versions if module == "policies/record/record.py" else sealed) == 2, "both builds stored theirs"
