"""Requests over a limit are refused before their body is read, and whatever way a request ends, its place is free."""

from __future__ import annotations

import asyncio
import hashlib
import io
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from proxy.app import App
from proxy.callers.admission import Admission
from proxy.errors import OverloadedError, TooManyRequestsError
from proxy.telemetry.log import open_log
from tests.support.servers import serve
from tests.support.upstreams import (
    CHAT,
    CHUNKED,
    EVENTS,
    HOST,
    JSON,
    OK_BODY,
    Call,
    Header,
    Upstream,
    answer,
    ask,
    chat,
    chunk,
    config_for,
    connected,
    delta,
    head,
    request,
    upstream,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

KEY: Header = (b"Authorization", b"Bearer acme-key")
OVERLOADED = "Too many requests are in flight; try again in a moment."
BUSY = "Too many of your requests are in flight; try again in a moment."


class Room:
    """A proxy with room for so many requests; the upstream answers by what `then` says, once it is let."""

    def __init__(self, app: App, address: str, behind: Upstream) -> None:
        self.app = app
        self.address = address
        self.behind = behind

    @property
    def taken(self) -> int:
        assert self.app._opened is not None
        return self.app._pipeline.admission.in_flight.total()

    async def until(self, taken: int) -> None:
        async with asyncio.timeout(30):
            while self.taken != taken:  # noqa: ASYNC110 - the proxy tells nobody
                await asyncio.sleep(0)


async def never(call: Call) -> None:
    await call.read()
    await call.gone()


@asynccontextmanager
async def room(directory: Path, most: int, script: object = never, of_acme: int | None = None) -> AsyncIterator[Room]:
    acme = {"keys": ["sha256:" + hashlib.sha256(b"acme-key").hexdigest()]}
    if of_acme is not None:
        acme["max_requests"] = of_acme  # type: ignore[assignment]
    async with upstream(script) as behind:  # type: ignore[arg-type]
        config = config_for(directory, behind.address, server={"max_requests": most}, tenants={"acme": acme})
        app = App(config, open_log("error", time.time, io.BytesIO()))
        async with serve(app, lifespan="on") as address:
            yield Room(app, address, behind)


def error(message: str, kind: str, code: str) -> dict[str, object]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def test_slots_are_counted_for_the_process_and_for_each_tenant() -> None:
    admission = Admission()
    first = admission.admit("a", 2, 1, 10)
    with pytest.raises(TooManyRequestsError):
        admission.admit("a", 2, 1, 10)
    second = admission.admit("b", 2, None, 10)
    with pytest.raises(OverloadedError):
        admission.admit("b", 2, None, 10)
    first.hold(6)
    with pytest.raises(OverloadedError):
        second.hold(5)
    first.close()
    second.hold(5)
    second.close()
    assert (admission.in_flight.total(), admission.held) == (0, 0)


async def test_a_full_process_refuses_before_it_reads_and_shows_its_own_pages(tmp_path: Path) -> None:
    async with room(tmp_path, 1) as full, connected(full.address) as first, connected(full.address) as second:
        await first.send(request("POST", CHAT, [HOST, JSON], chat("a")))
        await full.until(1)
        await second.send(request("POST", CHAT, [HOST, JSON, (b"Content-Length", b"1000")]))
        reply = await second.reply()
        assert (reply.status, reply.json()) == (503, error(OVERLOADED, "server_error", "server_overloaded"))
        assert (reply.header(b"retry-after"), reply.header(b"x-should-retry")) == (b"1", b"true")
        assert (await ask(full.address, "GET", "/v1/models")).status == 503
        for page in ("/livez", "/readyz", "/metrics"):
            assert (await ask(full.address, "GET", page, [])).status in (200, 403)
        assert len(full.behind.calls) == 1


async def test_a_busy_tenant_is_refused_and_others_are_not(tmp_path: Path) -> None:
    async with room(tmp_path, 10, of_acme=1) as full, connected(full.address) as first:
        await first.send(request("POST", CHAT, [HOST, JSON, KEY], chat("a")))
        await full.until(1)
        reply = await ask(full.address, "POST", CHAT, [JSON, KEY], chat("a"))
        assert (reply.status, reply.json()) == (429, error(BUSY, "rate_limit_error", "rate_limit_exceeded"))
        assert reply.header(b"retry-after") == b"1"
        async with connected(full.address) as other:
            await other.send(request("POST", CHAT, [HOST, JSON], chat("a")))
            await full.until(2)


async def ok(call: Call) -> None:
    await call.read()
    await call.send(answer(200, OK_BODY, JSON))


async def breaks_off(call: Call) -> None:
    await call.read()
    await call.send(head(200, EVENTS, CHUNKED) + chunk(delta("a")))
    call.close()


async def closes(call: Call) -> None:
    await call.read()
    call.close()


@pytest.mark.parametrize("script", [ok, breaks_off, closes])
@pytest.mark.parametrize("body", [chat("a", stream=True), b"{"])
async def test_an_answer_an_error_and_a_cut_make_room(tmp_path: Path, script: object, body: bytes) -> None:
    async with room(tmp_path, 1, script) as full:
        for _ in range(3):
            assert (await ask(full.address, "POST", CHAT, [JSON], body)).status != 503
            assert (await ask(full.address, "POST", "/v1/files", [JSON], body)).status != 503
            await full.until(0)


@pytest.mark.parametrize("path", [CHAT, "/v1/files", "/v1/compaction/explain"])
@pytest.mark.parametrize("sent", [b"", b"{"])
async def test_a_client_that_leaves_while_it_sends_makes_room(tmp_path: Path, path: str, sent: bytes) -> None:
    async with room(tmp_path, 1) as full, connected(full.address) as client:
        await client.send(request("POST", path, [HOST, JSON, (b"Content-Length", b"1000")]) + sent)
        await full.until(1)
        client.reset()
        await full.until(0)


@pytest.mark.parametrize("path", [CHAT, "/v1/files"])
async def test_a_client_that_leaves_while_it_waits_makes_room(tmp_path: Path, path: str) -> None:
    async with room(tmp_path, 1) as full, connected(full.address) as client:
        await client.send(request("POST", path, [HOST, JSON], chat("a")))
        await full.until(1)
        client.reset()
        await full.until(0)


async def test_a_request_that_is_cancelled_makes_room(tmp_path: Path) -> None:
    async with room(tmp_path, 1) as full, connected(full.address) as client:
        asking = asyncio.create_task(client.ask("POST", CHAT, [JSON], chat("a")))
        await full.until(1)
        full.app.break_off()
        assert (await asking).status == 503
        assert full.taken == 0
