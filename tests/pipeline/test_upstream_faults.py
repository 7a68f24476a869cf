"""Upstreams that fail before they answer: one exact error each, one attempt, and no other host is ever asked."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.servers import reserve_port
from tests.support.stages import stage
from tests.support.upstreams import (
    CHAT,
    CHUNKED,
    HOST,
    JSON,
    OK_BODY,
    WAYS,
    Call,
    Script,
    Upstream,
    always,
    answer,
    ask,
    backends,
    chat,
    chunk,
    config_for,
    connected,
    head,
    proxied,
    request,
    serving,
    upstream,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.redis_servers import Certificates

pytestmark = pytest.mark.anyio

OK = answer(200, OK_BODY, JSON)
UNRESOLVED = "The name of the upstream cannot be resolved; is its base_url right, and does DNS work?"
REFUSED = "The upstream refuses connections; is its server running, and the port in its base_url right?"
UNTRUSTED = "The upstream's TLS certificate is not valid for it; is its base_url right, and its issuer trusted?"
NO_TLS = "The upstream does not speak a common version of TLS; should its base_url begin with http://?"
RESET = "The upstream reset the connection before it responded."
CLOSED = "The upstream closed the connection before it responded."
INVALID = "The upstream's response is not valid HTTP."


anyio_backend = backends(WAYS)


async def refused(address: str, path: str) -> dict[str, object]:
    """The error that a request comes to; the connection goes on to work after it, or says that it is closed."""
    async with connected(address) as client, asyncio.timeout(30):
        reply = await client.ask("POST", path, [JSON], chat("hi"))
        if reply.header(b"connection") == b"close":
            await client.gone()
        else:
            assert (await client.ask("GET", "/livez")).status == 200
    assert reply.header(b"content-type") == b"application/json"
    assert reply.header(b"x-should-retry") == b"true"
    return {"status": reply.status, **reply.json()}


def error(status: int, message: str, code: str = "upstream_unreachable") -> dict[str, object]:
    return {"status": status, "error": {"message": message, "type": "server_error", "param": None, "code": code}}


@pytest.mark.parametrize("path", [CHAT, "/v1/models"])
@pytest.mark.parametrize(("host", "message"), [("127.0.0.1", REFUSED), ("no-such-host.invalid", UNRESOLVED)])
async def test_an_upstream_that_is_not_there(tmp_path: Path, host: str, message: str, path: str) -> None:
    async with serving(config_for(tmp_path, f"http://{host}:{reserve_port()}")) as address:
        assert await refused(address, path) == error(502, message)


@pytest.mark.parametrize("path", [CHAT, "/v1/models"])
async def test_an_upstream_whose_certificate_nobody_vouches_for(
    tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    context = certificates.context(clients=False)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    async with server, serving(config_for(tmp_path, f"https://127.0.0.1:{port}")) as address:
        assert await refused(address, path) == error(502, UNTRUSTED)


@pytest.mark.parametrize("path", [CHAT, "/v1/models"])
async def test_an_upstream_that_speaks_no_tls(tmp_path: Path, path: str) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, serving(config_for(tmp_path, f"https://127.0.0.1:{port}")) as address:
        assert await refused(address, path) == error(502, NO_TLS)


@pytest.mark.parametrize(
    ("base_url", "cause"),
    [("http://no-such-host.invalid/v1", "dns"), ("http://127.0.0.1:{}/v1", "refused")],
)
async def test_the_log_says_why_in_one_word(tmp_path: Path, base_url: str, cause: str) -> None:
    upstreams = {"main": {"base_url": base_url.format(reserve_port())}}
    async with stage(tmp_path, upstreams=upstreams) as play:
        await play.send(chat("a"))
        assert [line["cause"] for line in play.logged("request")] == [cause]


async def silent(call: Call) -> None:
    await call.read()
    await call.gone()


async def resets(call: Call) -> None:
    await call.read()
    call.reset()


async def closes(call: Call) -> None:
    await call.read()
    call.close()


async def babbles(call: Call) -> None:
    await call.read()
    await call.send(b"220 mail.example.com ESMTP\r\n\r\n")


async def resets_in_the_middle(call: Call) -> None:
    await call.read()
    await call.send(head(200, (b"content-type", b"text/plain"), CHUNKED) + chunk(b"a" * 500))
    call.reset()


async def stops_in_the_middle(call: Call) -> None:
    await call.read()
    await call.send(head(200, (b"content-type", b"text/plain"), CHUNKED) + chunk(b"a" * 500))
    await call.gone()


@pytest.mark.parametrize(
    ("script", "settings", "ended"),
    [
        (silent, {"idle_timeout": 0.1}, ("refused", "idle_timeout")),
        (silent, {"total_timeout": 0.1}, ("refused", "total_timeout")),
        (resets, {}, ("refused", "reset")),
        (closes, {}, ("refused", "closed")),
        (babbles, {}, ("refused", "not_http")),
        (resets_in_the_middle, {}, ("truncated", "reset")),
        (stops_in_the_middle, {"idle_timeout": 0.5}, ("truncated", "idle_timeout")),
        (stops_in_the_middle, {"total_timeout": 0.5}, ("truncated", "total_timeout")),
    ],
)
async def test_the_log_says_how_an_upstream_failed_that_was_reached(
    tmp_path: Path, script: Script, settings: dict[str, object], ended: tuple[str, str]
) -> None:
    async with upstream(script) as behind:
        main = {"base_url": f"{behind.address}/v1", **settings}
        async with (
            stage(tmp_path, upstreams={"main": main}) as play,
            connected(play.address) as client,
            asyncio.timeout(30),
        ):
            await client.send(request("POST", "/v1/embeddings", [HOST, JSON], chat("a")))
            while not play.logged("request"):  # noqa: ASYNC110 - the log sets no event
                await asyncio.sleep(0.01)
            (line,) = play.logged("request")
    assert (line["end"], line["cause"]) == ended


@asynccontextmanager
async def deaf() -> AsyncIterator[str]:
    """An address at which connections are neither accepted nor refused: its queue is full."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(3)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        for client in waiting:
            client.close()


@pytest.mark.parametrize("path", [CHAT, "/v1/models"])
async def test_an_upstream_that_does_not_accept_in_time(tmp_path: Path, path: str) -> None:
    async with deaf() as there, serving(config_for(tmp_path, there, main={"connect_timeout": 0.2})) as address:
        expected = error(502, "The upstream did not accept a connection in 0.2 s.")
        assert await refused(address, path) == expected


async def hang_up(call: Call) -> None:
    await call.read()
    call.close()


async def reset(call: Call) -> None:
    await call.read()
    call.reset()


async def half_a_head(call: Call) -> None:
    await call.read()
    await call.send(b"HTTP/1.1 200 OK\r\nContent-Ty")
    call.close()


@pytest.mark.parametrize("path", [CHAT, "/v1/models"])
@pytest.mark.parametrize(
    ("script", "message"),
    [
        (hang_up, CLOSED),
        (reset, RESET),
        (half_a_head, CLOSED),
        (always(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), INVALID),
        (always(head(200, (b"X", b"x" * 70_000), (b"Content-Length", b"0"))), INVALID),
        (always(answer(200, b"", *[(b"X-%d" % i, b"x") for i in range(5_000)])), INVALID),
        (always(head(200, (b"Content-Length", b"5"), (b"Content-Length", b"6")) + b"hello!"), INVALID),
        (always(head(200, (b"Content-Length", b"5"), CHUNKED) + chunk(b"hello") + chunk(b"")), INVALID),
        (always(head(200, (b"X(y)", b"z"))), INVALID),
        (always(head(101, (b"Upgrade", b"x"), (b"Connection", b"upgrade"))), INVALID),
        (always(answer(600, b"")), INVALID),
        (always(answer(999, b"")), INVALID),
        (always(b"HTTP/1.1 OK\r\n\r\n"), INVALID),
    ],
)
async def test_an_upstream_that_gives_no_answer(
    address: str, behind: Upstream, script: Script, message: str, path: str
) -> None:
    behind.play(script)
    assert await refused(address, path) == error(502, message)
    assert len(behind.calls) == 1


async def think(call: Call) -> None:
    await call.read()
    await call.gone()


async def stall_in_the_head(call: Call) -> None:
    await call.read()
    await call.send(b"HTTP/1.1 200 OK\r\nContent-Ty")
    await call.gone()


@pytest.mark.parametrize("script", [think, stall_in_the_head])
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("idle_timeout", "The upstream sent nothing for 0.1 s."),
        ("total_timeout", "The upstream did not respond within 0.1 s."),
    ],
)
async def test_an_upstream_that_takes_too_long(tmp_path: Path, script: Script, setting: str, message: str) -> None:
    async with proxied(tmp_path, script, main={setting: 0.1}) as (address, behind):
        for number, path in enumerate((CHAT, "/v1/models")):
            assert await refused(address, path) == error(504, message, "upstream_timeout")
            async with asyncio.timeout(30):
                await behind.calls[number].closed.wait()
        assert len(behind.calls) == 2


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("path", [CHAT, "/v1/models"])
async def test_a_redirect_is_the_clients_to_follow_and_nobody_elses(
    address: str, behind: Upstream, status: int, path: str
) -> None:
    async with upstream(always(OK)) as canary:
        location = (b"Location", f"{canary.address}/v1/chat/completions".encode())
        behind.play(always(answer(status, b"elsewhere", location)))
        reply = await ask(address, "POST", path, [JSON], chat("hi"))
        assert (reply.status, reply.body, reply.header(b"location")) == (status, b"elsewhere", location[1])
    assert canary.connections == 0


@pytest.mark.parametrize("named", [b"http_proxy", b"HTTPS_PROXY", b"ALL_PROXY"])
async def test_the_environment_names_no_other_way_to_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bytes
) -> None:
    async with upstream(always(OK)) as canary:
        monkeypatch.setenv(named.decode(), canary.address)
        async with proxied(tmp_path, always(OK)) as (address, behind):
            assert (await ask(address, "POST", CHAT, [JSON], chat("hi"))).status == 200
            assert len(behind.calls) == 1
    assert canary.connections == 0


def resident() -> int:
    """Megabytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096 // 1_000_000


@pytest.mark.parametrize("path", [CHAT, "/v1/files/f/content"])
async def test_a_hundred_megabytes_pass_in_flat_memory(address: str, behind: Upstream, path: str) -> None:
    piece, count = b"x" * 1_000_000, 100

    async def script(call: Call) -> None:
        await call.read()
        await call.send(head(200, (b"Content-Length", b"%d" % (len(piece) * count))))
        for _ in range(count):
            await call.send(piece)

    behind.play(script)

    async with connected(address) as client:
        await client.send(request("POST", path, [HOST, JSON], chat("hi")))
        await client.head()
        before, received, held = resident(), 0, []
        async for read in client.chunks():
            received += len(read)
            if received // len(piece) > len(held):
                held.append(resident())
    assert received == len(piece) * count
    assert max(held) - before < 30


async def test_a_connection_that_the_upstream_closed_meanwhile_is_not_used(tmp_path: Path) -> None:
    async def script(call: Call) -> None:
        await call.read()
        await call.send(OK)
        call.close()

    async with proxied(tmp_path, script) as (address, behind), connected(address) as client:
        await client.ask("GET", "/v1/models")
        await behind.calls[0].closed.wait()
        assert (await client.ask("POST", CHAT, [JSON], chat("hi"))).status == 200
    assert (behind.connections, len(behind.calls)) == (2, 2)


@pytest.mark.parametrize(("method", "status", "calls"), [("POST", 502, 2), ("PATCH", 502, 2), ("PUT", 502, 2)])
@pytest.mark.parametrize("framing", ["length", "chunks"])
async def test_a_request_that_meets_a_closing_connection_is_never_sent_in_part_again(
    tmp_path: Path, method: str, status: int, calls: int, framing: str
) -> None:
    async def script(call: Call) -> None:
        await call.read()
        if call.method == "GET":
            await call.send(OK)
        elif behind.connections == 1:
            call.close()
        else:
            await call.send(OK)

    async with proxied(tmp_path, script) as (address, behind), connected(address) as client, asyncio.timeout(30):
        assert (await client.ask("GET", "/v1/models")).status == 200
        if framing == "length":
            await client.send(request(method, "/v1/files/f", [HOST], b"content"))
        else:
            await client.send(request(method, "/v1/files/f", [HOST, CHUNKED]), chunk(b"content"), chunk(b""))
        assert (await client.reply()).status == status
    assert len(behind.calls) == calls
    assert behind.calls[1].body == b"content"


async def test_a_plain_get_may_be_sent_again_where_the_connection_was_closed_at_that_moment(tmp_path: Path) -> None:
    async def script(call: Call) -> None:
        await call.read()
        if len(behind.calls) == 2:
            call.close()
        else:
            await call.send(OK)

    async with proxied(tmp_path, script) as (address, behind), connected(address) as client:
        assert [(await client.ask("GET", "/v1/models")).status for _ in range(2)] == [200, 200]
    assert len(behind.calls) == 3
