"""A process that may open few files serves as many requests as fit, and says what it lacks where they do not."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import socket
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from proxy.config.loading import notes
from proxy.runtime import descriptors
from tests.support.processes import config, event, served
from tests.support.servers import configured
from tests.support.upstreams import CHAT, JSON, OK_BODY, Call, Reply, answer, ask, upstream

if TYPE_CHECKING:
    import subprocess

    from tests.support.upstreams import Upstream

pytestmark = pytest.mark.anyio

PLAIN = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}]}).encode()


class Held:
    """An upstream that answers nobody until it is told to."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.came = asyncio.Semaphore(0)

    async def __call__(self, call: Call) -> None:
        await call.read()
        self.came.release()
        await self.go_on.wait()
        await call.send(answer(200, OK_BODY, JSON))


async def asked_once(port: int) -> Reply | None:
    """What a client gets; None where its connection was closed."""
    try:
        return await ask(f"http://127.0.0.1:{port}", "POST", CHAT, [JSON], PLAIN)
    except (OSError, EOFError):
        return None


async def asked(port: int, number: int) -> list[Reply | None]:
    """What so many clients get at once."""
    return list(await asyncio.gather(*(asked_once(port) for _ in range(number))))


def codes(replies: list[Reply | None]) -> Counter[str]:
    """Statuses, and codes of errors."""
    return Counter(
        "closed"
        if reply is None
        else "ok"
        if reply.status == 200
        else f"{reply.status} {reply.json()['error']['code']}"
        for reply in replies
    )


def soft_limit(process: subprocess.Popen[str]) -> int:
    lines = Path(f"/proc/{process.pid}/limits").read_text().splitlines()
    return next(int(line.split()[3]) for line in lines if line.startswith("Max open files"))


async def ended(process: subprocess.Popen[str], behind: Upstream) -> None:
    """Returns once the process has let go of the upstream."""
    process.terminate()
    await asyncio.to_thread(process.wait)
    for call in behind.calls:
        await call.closed.wait()


async def test_the_soft_limit_is_raised_and_requests_are_as_many_as_fit(tmp_path: Path) -> None:
    held = Held()
    async with upstream(held) as behind:
        config(tmp_path / "config.yaml", behind.address)
        with served(tmp_path / "config.yaml", "ulimit -Sn 64; ulimit -Hn 250") as (process, port):
            assert soft_limit(process) == 250
            replies = [asyncio.create_task(asked_once(port)) for _ in range(120)]
            async with asyncio.timeout(30):
                for _ in range(50):
                    await held.came.acquire()
                for refused in itertools.islice(asyncio.as_completed(replies), 70):
                    await refused
            held.go_on.set()
            assert codes(await asyncio.gather(*replies)) == {"ok": 50, "503 server_overloaded": 70}
            await ended(process, behind)


async def test_where_no_file_is_left_it_is_said_and_it_passes(tmp_path: Path) -> None:
    held = Held()
    async with upstream(held) as behind:
        config(tmp_path / "config.yaml", behind.address, server={"max_requests": 1_000})
        with served(tmp_path / "config.yaml", "ulimit -n 120") as (process, port):
            replies = asyncio.create_task(asked(port, 80))
            assert (await asyncio.to_thread(event, process, "request"))["code"] == "too_many_open_files"
            idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
            held.go_on.set()
            for client in idle:
                client.close()
            found = await replies
            assert set(codes(found)) <= {"ok", "503 too_many_open_files", "closed"}
            assert codes(found)["ok"] >= 20
            refused = next(reply for reply in found if reply is not None and reply.status == 503)
            assert (refused.header(b"retry-after"), refused.header(b"x-should-retry")) == (b"1", b"true")
            async with asyncio.timeout(30):  # until the server has seen that the idle clients are gone
                while codes(await asked(port, 10)) != {"ok": 10}:
                    pass
            await ended(process, behind)


@pytest.mark.parametrize(
    ("limit", "fit", "most"),
    [((1_024, 1_048_576), 349_492, 1_000), ((256, 1_024), 308, 308), ((64, 64), 1, 1), ((1_024, -1), None, 1_000)],
)
def test_the_default_comes_from_the_hard_limit(
    monkeypatch: pytest.MonkeyPatch, limit: tuple[int, int], fit: int | None, most: int
) -> None:
    monkeypatch.setattr(descriptors, "_limits", lambda: limit)
    assert (descriptors.requests_that_fit(), descriptors.most_requests(None)) == (fit, most)
    assert descriptors.most_requests(500) == 500


@pytest.mark.parametrize(("wanted", "noted"), [(308, False), (309, True), (None, False)])
def test_a_setting_that_cannot_be_kept_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: int | None, noted: bool
) -> None:
    monkeypatch.setattr(descriptors, "_limits", lambda: (256, 1_024))
    server = {} if wanted is None else {"max_requests": wanted}
    found = notes(configured(tmp_path, {"server": server}))
    assert any(note.startswith("server.max_requests: 309, but") for note in found) == noted


@pytest.mark.parametrize(
    ("number", "used_up"), [(errno.EMFILE, True), (errno.ENFILE, True), (errno.ECONNREFUSED, False)]
)
def test_an_error_says_whether_files_are_used_up(number: int, used_up: bool) -> None:
    assert descriptors.are_used_up(OSError(number, "")) == used_up


def test_nothing_is_raised_where_the_system_does_not_grant_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "_limits", lambda: (0, 1 << 62))
    descriptors.raise_limit()
    monkeypatch.setattr(descriptors, "_limits", lambda: None)
    descriptors.raise_limit()
    assert descriptors.requests_that_fit() is None
