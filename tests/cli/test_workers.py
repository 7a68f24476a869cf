"""`concertina serve --workers`: several processes at one address, in front of one store."""

from __future__ import annotations

import asyncio
import errno
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from proxy.app import App
from proxy.cli import serve
from proxy.config.loading import load_text, unshared_problem
from proxy.memory import DEFAULT_BYTES
from proxy.server.peers import Peers
from tests.support.processes import COMMAND, config, event, served
from tests.support.stages import body, history, outcome
from tests.support.upstreams import CHAT, JSON, Call, always, answer, ask, chat, chunk, delta, upstream

if TYPE_CHECKING:
    pass

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="connections are spread by Linux")]

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = delta("begun")
# So many connections all come to one of two workers once in two thousand runs.
MANY = 12


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    return [*map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())]


def settings(**more: object) -> dict[str, object]:
    return {
        "store": {"url": "sqlite:///kept.db", "timeout": "10s"},
        "server": {"workers": 2, "admin_token": "t" * 24},
        **more,
    }


async def line(process: subprocess.Popen[str], name: str) -> dict[str, object]:
    return await asyncio.to_thread(event, process, name)


def fetched(port: int, path: str) -> tuple[int, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as client:
        client.request("GET", path, headers={"Authorization": "Bearer " + "t" * 24})
        found = client.getresponse()
        return found.status, found.read().decode()


def figures_of_both(port: int) -> str:
    """The metrics, once both workers serve: the second one may begin a moment later."""
    found = ""
    while 'worker="0"' not in found or 'worker="1"' not in found:
        status, found = fetched(port, "/metrics")
        assert status == 200
    return found


def test_every_worker_is_told_of_by_whichever_is_asked(tmp_path: Path) -> None:
    config(tmp_path / "config.yaml", "http://127.0.0.1:9", **settings())
    with served(tmp_path / "config.yaml") as (process, port):
        found = figures_of_both(port)
        assert found.count("# TYPE concertina_store_up gauge") == 1
        assert len(re.findall(r"^concertina_store_up\{worker=", found, re.MULTILINE)) == 2
        workers = workers_of(process)
        assert len(workers) == 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


@pytest.mark.anyio
async def test_a_worker_that_is_killed_loses_its_own_requests_alone_and_is_replaced(tmp_path: Path) -> None:
    finish = asyncio.Event()

    async def script(call: Call) -> None:
        await call.read()
        await call.send(HEAD + chunk(EVENT))
        await finish.wait()
        await call.send(chunk(b"data: [DONE]\n\n") + chunk(b""))

    async with upstream(script) as behind:
        config(tmp_path / "config.yaml", behind.address, **settings())
        with served(tmp_path / "config.yaml") as (process, port):
            await asyncio.to_thread(figures_of_both, port)
            streams = [await opened(port) for _ in range(MANY)]
            before = workers_of(process)
            os.kill(before[0], signal.SIGKILL)
            ended = await line(process, "worker_ended")
            assert (ended["pid"], ended["code"]) == (before[0], -signal.SIGKILL)
            finish.set()
            whole = [await rest(stream) for stream in streams]
            assert {True, False} == set(whole), "those of the other worker end as they should"
            while len(workers_of(process)) < 2:  # noqa: ASYNC110 - a process sets no event
                await asyncio.sleep(0)
            assert all([await rest(await opened(port)) for _ in range(MANY)])
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 30) == 0


@pytest.mark.anyio
async def test_nothing_waits_for_a_worker_that_has_died(tmp_path: Path) -> None:
    async with upstream(always(answer(200, chat("ok")))) as behind:
        config(tmp_path / "config.yaml", behind.address, **settings())
        with served(tmp_path / "config.yaml") as (process, port):
            pause = 0.0
            while pause < 5:
                while len(workers_of(process)) < 2:  # noqa: ASYNC110 - a process sets no event
                    await asyncio.sleep(0.01)
                os.kill(workers_of(process)[-1], signal.SIGKILL)
                pause = float(str((await line(process, "worker_ended"))["replaced_in_s"]))
            replies = await asyncio.gather(*(ask(f"127.0.0.1:{port}", "GET", "/readyz") for _ in range(MANY)))
            assert {reply.status for reply in replies} == {200}
            assert len(workers_of(process)) == 1, "the dead one's place was still empty"


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def opened(port: int) -> Stream:
    """A stream that has begun."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    content = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "a"}]}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    writer.write(head % len(content) + content)
    await reader.readuntil(b"begun")
    return reader, writer


async def rest(stream: Stream) -> bool:
    """Whether a stream comes to its end."""
    reader, writer = stream
    with closing(writer), suppress(ConnectionError):
        return b"[DONE]" in await reader.read()
    return False


@pytest.mark.anyio
async def test_what_a_running_proxy_has_learned_by_a_clients_own_key_is_shown(tmp_path: Path) -> None:
    message = "This model's maximum context length is 5000 tokens. However, your messages resulted in 9000 tokens."
    refusal = json.dumps({"error": {"message": message, "code": "context_length_exceeded"}}).encode()
    alone = {**settings(), "server": {"admin_token": "t" * 24}}
    async with upstream(always(answer(400, refusal, JSON))) as behind:
        config(tmp_path / "config.yaml", behind.address, **alone)
        with served(tmp_path / "config.yaml") as (_, port):
            key = (b"Authorization", b"Bearer sk-of-a-client")
            await ask(f"127.0.0.1:{port}", "POST", CHAT, [JSON, key], body(history(0.9)))
            words = [COMMAND, "models", "gpt-4o", "--config", tmp_path / "config.yaml", "--json"]
            done = await asyncio.to_thread(subprocess.run, words, capture_output=True, check=True, cwd=tmp_path)
    assert [one["learned"] for one in json.loads(done.stdout)] == [5_000]


@pytest.mark.anyio
async def test_workers_go_on_from_each_others_records_in_one_file(tmp_path: Path) -> None:
    more = {
        "models": [{"match": "*", "context_window": 8_000}],
        "policies": {"default": {"summarizer": {"model": "none"}}},
    }

    async with upstream(always(answer(200, chat("ok")))) as behind:
        config(tmp_path / "config.yaml", behind.address, **settings(**more))
        with served(tmp_path / "config.yaml") as (process, port):
            while len(workers_of(process)) < 2:  # noqa: ASYNC110 - a process sets no event
                await asyncio.sleep(0)
            said = body(history(0.95))
            replies = [await ask(f"http://127.0.0.1:{port}", "POST", CHAT, [JSON], said) for _ in range(MANY)]
            assert [outcome(reply)[0] for reply in replies] == ["applied"] + ["reused"] * (MANY - 1)


def test_workers_end_with_their_supervisor(tmp_path: Path) -> None:
    config(tmp_path / "config.yaml", "http://127.0.0.1:9", **settings())
    with served(tmp_path / "config.yaml") as (process, _):
        workers = workers_of(process)
        process.kill()
        process.wait(30)
        for pid in workers:
            while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
                pass


def test_what_workers_could_not_share_is_refused() -> None:
    start = "upstreams: {main: {base_url: 'http://127.0.0.1:9/v1'}}\n"
    problem = unshared_problem(load_text("c", start + "server: {workers: 2}\nstore: {url: 'memory://'}", {}))
    assert problem is not None
    assert problem.startswith("server.workers: 2, but store.url is memory://")
    assert unshared_problem(load_text("c", start + "server: {workers: 2}", {})) is None
    assert unshared_problem(load_text("c", start + "store: {url: 'memory://'}", {})) is None


@pytest.mark.anyio
async def test_workers_share_what_the_config_allows(tmp_path: Path) -> None:
    server = "{max_requests: 10, max_buffered_bytes: 800000, max_body_bytes: 50000}"
    config = load_text("c", f"server: {server}\nstore: {{url: 'sqlite:///{tmp_path}/s.db'}}", {})
    app = App(config, peers=Peers(0, 4, tmp_path))
    async with app.open():
        active = app._pipeline.active
        assert (active.max_requests, active.max_buffered_bytes) == (3, 200_000)
        assert app._opened is not None
        assert app._opened.engine.memory.most == DEFAULT_BYTES // 4


def test_a_worker_that_cannot_begin_ends_them_all(tmp_path: Path) -> None:
    (tmp_path / "kept.db").write_text("no database, but long enough to be none", encoding="utf-8")
    config(tmp_path / "config.yaml", "http://127.0.0.1:9", **settings())
    command = [COMMAND, "serve", "config.yaml", "--port", "0"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "cannot be used as the store" in ended.stderr


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("d" * 120, "is too long for the workers' sockets; set TMPDIR to a shorter one\n"),
        (None, "workers need a directory for temporary files: No usable temporary directory"),
    ],
)
def test_where_workers_can_have_no_sockets_is_told_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: str | None, said: str
) -> None:
    if folder is None:
        monkeypatch.setattr(serve, "TemporaryDirectory", nowhere)
    else:
        (tmp_path / folder).mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / folder))
    with pytest.raises(SystemExit) as ended, serve._shared_folder():
        pass
    assert ended.value.code == 1
    assert said in capsys.readouterr().err


def nowhere(**_: object) -> object:
    raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")


def test_a_port_that_another_process_has_is_refused_to_workers_too(tmp_path: Path) -> None:
    config(tmp_path / "config.yaml", "http://127.0.0.1:9", **settings())
    with served(tmp_path / "config.yaml") as (_, port):
        command = [COMMAND, "serve", "config.yaml", "--port", str(port)]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "Address already in use" in ended.stderr


@pytest.mark.anyio
async def test_a_worker_that_does_not_answer_is_left_out(tmp_path: Path) -> None:
    async def counted() -> bytes:
        return b"# TYPE c counter\nc_total 1.0\n"

    async with Peers(0, 3, tmp_path).sharing(counted) as told, Peers(2, 3, tmp_path).sharing(counted):
        lines = (await told()).decode().splitlines()
        assert [each for each in lines if not each.startswith("#")] == [
            'c_total{worker="0"} 1.0',
            'c_total{worker="2"} 1.0',
        ]
