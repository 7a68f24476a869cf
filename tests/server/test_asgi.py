"""The proxy as an ASGI application, under servers that are not its own, and below a path of another application."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import hypercorn.asyncio
import hypercorn.config
import pytest
import uvicorn
from hypercorn.utils import LifespanFailureError
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

import proxy.asgi
from proxy.app import App
from proxy.asgi import Application
from proxy.callers.api_head import ApiHead
from proxy.server.error_shape import JSONErrors
from proxy.server.exchange import Exchange
from tests.support.servers import reserve_port
from tests.support.upstreams import (
    CHAT,
    CHUNKED,
    EVENTS,
    JSON,
    OK_BODY,
    Call,
    always,
    answer,
    ask,
    backends,
    chat,
    chunk,
    config_for,
    connected,
    delta,
    head,
    in_step,
    upstream,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from proxy.server.served import Receive, Scope, Send
    from tests.support.upstreams import Script, Upstream

    Served = Callable[[Application], AbstractAsyncContextManager[str]]

pytestmark = pytest.mark.anyio
anyio_backend = backends(("asyncio",))

OVERFLOW = json.dumps(
    {"error": {"message": "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens.",
               "type": "invalid_request_error", "code": "context_length_exceeded"}}
).encode()  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


@asynccontextmanager
async def by_uvicorn(app: Application) -> AsyncIterator[str]:
    port = reserve_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, lifespan="on", log_level="error", ws="none"))
    serving = asyncio.create_task(server.serve())
    await _there(port)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await serving


@asynccontextmanager
async def by_hypercorn(app: Application) -> AsyncIterator[str]:
    config = hypercorn.config.Config()
    config.bind, config.loglevel = [f"127.0.0.1:{(port := reserve_port())}"], "ERROR"
    end = asyncio.Event()
    serving = asyncio.create_task(hypercorn.asyncio.serve(app, config, shutdown_trigger=end.wait))  # type: ignore[arg-type]
    await _there(port)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        end.set()
        await serving


@asynccontextmanager
async def mounted(app: Application) -> AsyncIterator[str]:
    async with by_uvicorn(Starlette(routes=[Mount("/llm", app)])) as address:  # type: ignore[arg-type]
        yield f"{address}/llm"


async def _there(port: int) -> None:
    """Return when somebody listens."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            continue
        writer.close()
        return


@pytest.fixture(params=[by_uvicorn, by_hypercorn, mounted])
def served(request: pytest.FixtureRequest) -> Served:
    found: Served = request.param
    return found


@asynccontextmanager
async def stage(
    folder: Path, script: Script, served: Served, **more: object
) -> AsyncIterator[tuple[str, str, Upstream]]:
    """The address, and what stands in front of every path; and the upstream behind it."""
    async with upstream(script) as behind:
        app = Application(App(config_for(folder, behind.address, **more)))
        async with served(app) as address:
            root = address.partition("/llm")
            yield root[0], root[1], behind


async def test_a_chat_with_tools_is_relayed(tmp_path: Path, served: Served) -> None:
    async with stage(tmp_path, always(answer(200, OK_BODY, JSON)), served) as (address, root, behind):
        body = chat("hello", tools=TOOLS)
        reply = await ask(address, "POST", root + CHAT, [JSON], body)
        assert (reply.status, reply.body) == (200, OK_BODY)
        assert reply.header(b"x-concertina-request-id")
        (call,) = behind.calls
        assert (call.target, call.body) == (CHAT, body)


async def test_what_the_server_adds_is_there_once(tmp_path: Path, served: Served) -> None:
    script = always(answer(200, OK_BODY, JSON, (b"Date", b"Thu, 01 Jan 2026 00:00:00 GMT"), (b"Server", b"upstream")))
    async with stage(tmp_path, script, served) as (address, root, _):
        for method, path, body in (("POST", CHAT, chat("hi")), ("GET", "/v1/models", None)):
            reply = await ask(address, method, root + path, [JSON], body)
            names = [name for name, _ in reply.headers]
            assert (names.count(b"date"), names.count(b"server")) == (1, 1), path


async def test_a_stream_passes_piece_by_piece(tmp_path: Path, served: Served) -> None:
    pieces = [delta("one"), delta("two"), delta("three")]
    script, received = in_step(pieces)
    async with stage(tmp_path, script, served) as (address, root, _):
        if root:
            pytest.skip("what plays in step asks at the root")
        assert b"".join(await received(address)) == b"".join(pieces)


async def test_an_overflow_is_answered_by_compaction(tmp_path: Path, served: Served) -> None:
    talk = [{"role": role, "content": f"{number} " * 400} for number in range(20) for role in ("user", "assistant")]
    body = json.dumps({"model": "m", "messages": [*talk, {"role": "user", "content": "Go on."}]}).encode()
    sizes: list[int] = []

    async def small_window(call: Call) -> None:
        read = await call.read()
        sizes.append(len(read))
        await call.send(answer(400, OVERFLOW, JSON) if len(read) > 30_000 else answer(200, OK_BODY, JSON))

    policies = {"default": {"summarizer": {"model": "none"}}}
    async with stage(tmp_path, small_window, served, policies=policies) as (address, root, _):
        reply = await ask(address, "POST", root + CHAT, [JSON], body)
        assert (reply.status, reply.body) == (200, OK_BODY)
        assert reply.header(b"x-compaction") is not None or len(sizes) > 1
        assert sizes[-1] < 30_000 < sizes[0]


async def test_pages_readiness_and_unknown_paths_are_served(tmp_path: Path, served: Served) -> None:
    async with stage(tmp_path, always(answer(404, b"{}", JSON)), served) as (address, root, _):
        for path, status in (
            ("/readyz", 200),
            ("/livez", 200),
            ("/openapi.json", 200),
            ("/admin/", 403),
            ("/v1/models", 404),
        ):
            reply = await ask(address, "GET", root + path, [(b"Accept", b"text/html")])
            assert reply.status == status, path


async def test_a_body_over_the_limit_is_refused(tmp_path: Path, served: Served) -> None:
    limits = {"server": {"max_body_bytes": 2_000}}
    async with stage(tmp_path, always(answer(200, OK_BODY, JSON)), served, **limits) as (address, root, behind):
        reply = await ask(address, "POST", root + CHAT, [JSON], chat("x" * 5_000))
        assert (reply.status, behind.calls) == (413, [])


async def test_a_stream_that_breaks_off_does_not_look_complete(tmp_path: Path, served: Served) -> None:
    async def broken(call: Call) -> None:
        await call.read()
        await call.send(head(200, EVENTS, CHUNKED) + chunk(delta("one")))
        call.close()

    async with stage(tmp_path, broken, served) as (address, root, _), connected(address) as client:
        await client.send(_asking(root))
        assert await client.head() == 200
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            _ = [piece async for piece in client.chunks()]


async def test_a_client_that_leaves_ends_the_call_upstream(tmp_path: Path, served: Served) -> None:
    gone = asyncio.Event()

    async def endless(call: Call) -> None:
        await call.read()
        await call.send(head(200, EVENTS, CHUNKED) + chunk(delta("one")))
        await call.gone()
        gone.set()

    async with stage(tmp_path, endless, served) as (address, root, _):
        async with connected(address) as client:
            await client.send(_asking(root))
            assert await client.head() == 200
        await asyncio.wait_for(gone.wait(), 20)


def _asking(root: str) -> bytes:
    body = chat("hello", stream=True)
    length = b"content-length: %d\r\n" % len(body)
    line = f"POST {root}{CHAT} HTTP/1.1\r\nhost: proxy\r\ncontent-type: application/json\r\n".encode()
    return line + length + b"\r\n" + body


async def test_a_writer_that_waits_goes_on_when_the_server_says_that_the_client_has_left() -> None:
    async def refused(*_: object) -> None:
        await asyncio.sleep(0)
        raise OSError

    exchange = Exchange(ApiHead("POST", CHAT, []), refused, refused, JSONErrors())  # type: ignore[arg-type]
    exchange.begin(200, [EVENTS])
    assert not exchange.put(b"x" * 100_000, more=True)
    async with asyncio.timeout(30):
        await exchange.wait_for_room()
        await exchange.finish()
    assert exchange.disconnected


def test_the_test_client_of_starlette_reaches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the module's own `app`, with the config that a variable names."""
    file = tmp_path / "asgi.yaml"
    file.write_text("upstreams: {main: {base_url: 'http://127.0.0.1:9/v1'}}\nstore: {url: 'memory://'}\n")
    monkeypatch.setenv("CONCERTINA_CONFIG", str(file))
    with TestClient(proxy.asgi.app) as client:  # type: ignore[arg-type]
        assert client.get("/readyz").status_code == 200
        reply = client.post(CHAT, json={"model": "m", "messages": [{"role": "user", "content": "Hi"}]})
        assert (reply.status_code, reply.json()["error"]["code"]) == (502, "upstream_unreachable")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("closed: maybe\nworkers: 3", "asgi.yaml:1: closed: must be true or false\n"),
        ("store: {url: 'sqlite:///asgi.yaml'}", "store.url: asgi.yaml cannot be used as the store ("),
    ],
)
async def test_a_server_ends_at_its_start_if_the_config_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, content: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "asgi.yaml").write_text(content)
    monkeypatch.setenv("CONCERTINA_CONFIG", "asgi.yaml")
    server = uvicorn.Server(uvicorn.Config(Application(), port=reserve_port(), log_config=None))
    async with asyncio.timeout(30):
        with pytest.raises(SystemExit):
            await server.serve()
    assert (said in caplog.text, "Traceback" in caplog.text) == (True, False)
    config = hypercorn.config.Config()
    config.bind = [f"127.0.0.1:{reserve_port()}"]
    async with asyncio.timeout(30):
        with pytest.raises(LifespanFailureError) as failed:
            await hypercorn.asyncio.serve(Application(), config, shutdown_trigger=asyncio.Event().wait)  # type: ignore[arg-type]
    assert said in str(failed.value)


async def test_a_config_that_is_wrong_keeps_it_from_being_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONCERTINA_CONFIG", "/nowhere/config.yaml")
    scope: Scope = {"type": "http", "method": "GET", "path": "/readyz", "headers": []}

    async def never(*_: object) -> None:
        raise AssertionError

    receive: Receive = never  # type: ignore[assignment]
    send: Send = never
    with pytest.raises(Exception, match="nowhere"):
        await Application()(scope, receive, send)
