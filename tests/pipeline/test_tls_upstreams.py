"""What the relay promises holds where the upstream is reached over TLS."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.support.upstreams import (
    CHAT,
    CHUNKED,
    EVENTS,
    HOST,
    JSON,
    OK_BODY,
    Call,
    Upstream,
    always,
    answer,
    ask,
    chat,
    chunk,
    connected,
    delta,
    head,
    in_step,
    proxied,
    request,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.redis_servers import Certificates

pytestmark = pytest.mark.anyio

OK = answer(200, OK_BODY, JSON)
TEXT = (b"Content-Type", b"application/x-ndjson")
PIECE = b"x" * 1_000_000


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, object]]:
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


@pytest.fixture
async def both(
    tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[str, Upstream]]:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    async with proxied(tmp_path, always(OK), certificates.context(clients=False)) as found, asyncio.timeout(60):
        yield found


async def test_requests_share_a_connection(both: tuple[str, Upstream]) -> None:
    address, behind = both
    for path in (CHAT, "/v1/models", CHAT):
        assert (await ask(address, "POST", path, [JSON], chat("hi"))).body == OK_BODY
    assert (behind.connections, len(behind.calls)) == (1, 3)


async def test_a_client_has_every_chunk_before_the_next_is_sent(both: tuple[str, Upstream]) -> None:
    address, behind = both
    pieces = [delta(str(number)) for number in range(20)]
    script, received = in_step(pieces)
    behind.play(script)
    assert await received(address) == pieces


async def test_neither_side_is_read_faster_than_the_other_reads(both: tuple[str, Upstream]) -> None:
    address, behind = both
    count, sent = 40, 0
    read = asyncio.Event()

    async def script(call: Call) -> None:
        nonlocal sent
        assert len(await call.read()) == count * len(PIECE)
        await call.send(head(200, TEXT, CHUNKED))
        for _ in range(count):
            await call.send(chunk(PIECE))
            sent += 1
        await call.send(chunk(b""))

    async def stalled() -> None:
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.25)
        read.set()

    behind.play(script)
    async with connected(address) as client:
        length = (b"Content-Length", b"%d" % (count * len(PIECE)))
        await client.send(request("POST", "/v1/files", [HOST, length]), *[PIECE] * count)
        client.pause()
        await stalled()
        assert sent < count // 2
        client.resume()
        reply = await client.reply()
    assert (len(reply.body), reply.complete) == (count * len(PIECE), True)


async def test_a_client_that_leaves_ends_the_call(both: tuple[str, Upstream]) -> None:
    address, behind = both

    async def script(call: Call) -> None:
        await call.read()
        await call.send(head(200, EVENTS, CHUNKED), chunk(delta("a")))
        await call.gone()

    behind.play(script)
    async with connected(address) as client:
        await client.send(request("POST", CHAT, [HOST, JSON], chat("hi", stream=True)))
        await client.head()
        await anext(client.chunks())
        client.close()
        await behind.calls[0].closed.wait()


async def test_a_stream_that_breaks_off_is_not_complete(both: tuple[str, Upstream]) -> None:
    address, behind = both

    async def script(call: Call) -> None:
        await call.read()
        await call.send(head(200, EVENTS, CHUNKED), chunk(delta("a")))
        call.reset()

    behind.play(script)
    reply = await ask(address, "POST", CHAT, [JSON], chat("hi", stream=True))
    assert (reply.complete, reply.body.startswith(delta("a") + b'data: {"error"')) == (False, True)
