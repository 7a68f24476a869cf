"""Connections to upstreams over real sockets: used again or never, bounded, in turn, verified, and closed in time."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import sys
from contextlib import asynccontextmanager, closing, nullcontext, suppress
from typing import TYPE_CHECKING

import pytest

from proxy.config.settings import Upstream as Settings
from proxy.errors import ClientGoneError, InvalidRequestError, UpstreamConnectionError, UpstreamTimeoutError
from proxy.runtime.deadlines import within
from proxy.upstreams.http import TruncatedError, UpstreamClient
from proxy.upstreams.wire import connection, dialing
from proxy.upstreams.wire.heads import request_head
from tests.support.upstreams import (
    CHUNKED,
    WAYS,
    Call,
    Script,
    Upstream,
    always,
    answer,
    backends,
    chunk,
    head,
    upstream,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from proxy.upstreams.response import UpstreamResponse
    from tests.support.redis_servers import Certificates

pytestmark = pytest.mark.anyio

OK = answer(200, b"hello")
Header = tuple[bytes, bytes]


anyio_backend = backends(WAYS)


class Asker:
    """Asks one upstream, with settings of its own."""

    def __init__(self, client: UpstreamClient, behind: Upstream, **settings: object) -> None:
        self.client = client
        self.settings = Settings.model_validate({"base_url": f"{behind.address}/v1", **settings})

    async def send(
        self,
        method: str = "POST",
        body: bytes | AsyncIterator[bytes] | None = b"{}",
        headers: tuple[Header, ...] = (),
        target: str = "/v1/x",
    ) -> UpstreamResponse:
        origin = self.settings.base_url.removesuffix("/v1")
        return await self.client.send(self.settings, method, origin + target, headers, body)

    async def ask(self, method: str = "POST") -> bytes:
        response = await self.send(method, b"{}" if method == "POST" else None)
        try:
            return await response.read(10**9) or b""
        finally:
            response.close()

    @property
    def in_use(self) -> int:
        return sum(pool.in_use for pool in self.client._pools.values())


@asynccontextmanager
async def asking(script: Script, **settings: object) -> AsyncIterator[tuple[Asker, Upstream]]:
    async with upstream(script) as behind, UpstreamClient() as client, asyncio.timeout(30):
        yield Asker(client, behind, **settings), behind


REUSED = {
    "a length": OK,
    "chunks": head(200, CHUNKED) + chunk(b"hello") + chunk(b""),
    "no body": head(204),
    "announced": head(103) * 3 + OK,
}
USED_ONCE = {
    "it is the last": answer(200, b"hello", (b"Connection", b"close")),
    "something stands behind it": OK + b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen",
    "half of something stands behind it": OK + b"H",
    "chunks end, and something stands behind them": head(200, CHUNKED) + chunk(b"hello") + chunk(b"") + b"x",
    "it is of HTTP/1.0": OK.replace(b"HTTP/1.1", b"HTTP/1.0"),
}


@pytest.mark.parametrize("case", REUSED)
async def test_a_connection_is_used_again_and_again(case: str) -> None:
    async with asking(always(REUSED[case])) as (asker, behind):
        for _ in range(20):
            await asker.ask()
        assert (behind.connections, asker.in_use) == (1, 0)


@pytest.mark.parametrize("case", USED_ONCE)
async def test_a_connection_is_never_used_again_where(case: str) -> None:
    async with asking(always(USED_ONCE[case])) as (asker, behind):
        assert [await asker.ask() for _ in range(3)] == [b"hello"] * 3
        assert (behind.connections, asker.in_use) == (3, 0)


async def test_what_comes_on_an_idle_connection_ends_it() -> None:
    async def script(call: Call) -> None:
        await call.read()
        await call.send(OK)
        await go_on.wait()
        await call.send(OK.replace(b"hello", b"stole"))
        said.set()

    go_on, said = asyncio.Event(), asyncio.Event()
    async with asking(script) as (asker, behind):
        await asker.ask()
        go_on.set()
        await said.wait()
        await behind.calls[0].closed.wait()
        assert await asker.ask() == b"hello"
        assert behind.connections == 2


async def test_a_connection_that_is_about_to_end_is_not_used() -> None:
    async with asking(always(OK)) as (asker, behind):
        await asker.ask()
        [connection] = asker.client._pools[asker.settings]._all
        connection._transport.close()  # as asyncio does when the upstream has closed; it says so a turn later
        assert await asker.ask() == b"hello"
        assert (behind.connections, asker.in_use) == (2, 0)


async def test_the_connection_used_last_is_used_first_and_the_others_are_closed_when_nobody_needs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("proxy.upstreams.wire.pool._KEEP_IDLE_S", 0.2)
    async with asking(always(OK)) as (asker, behind):
        await asyncio.gather(*(asker.ask() for _ in range(5)))
        assert behind.connections == 5
        await asyncio.gather(*(call.closed.wait() for call in behind.calls))
        assert not asker.client._pools[asker.settings]._all


@pytest.mark.parametrize("most", [1, 3])
async def test_no_more_connections_are_open_than_allowed_and_who_waits_longest_is_next(most: int) -> None:
    async def script(call: Call) -> None:
        order.append(await call.read())
        await asyncio.sleep(0)
        await call.send(OK)

    order: list[bytes] = []
    async with asking(script, max_connections=most) as (asker, behind):

        async def one(number: int) -> None:
            response = await asker.send(body=b"%d" % number)
            await response.read(100)

        await asyncio.gather(*(one(number) for number in range(20)))
        assert behind.connections == most
        assert most > 1 or order == sorted(order, key=int)


@pytest.mark.parametrize("how", ["closed", "cancelled"])
async def test_whoever_gives_up_leaves_a_place_to_the_next(how: str) -> None:
    async def script(call: Call) -> None:
        await call.read()
        if call.body == b"slow":
            await call.send(head(200, CHUNKED) + chunk(b"a"))
            await call.gone()
        await call.send(OK)

    async with asking(script, max_connections=1) as (asker, behind):
        response = await asker.send(body=b"slow")
        waiting = [asyncio.create_task(asker.ask()) for _ in range(3)]
        await asyncio.sleep(0.01)
        waiting[0].cancel()
        if how == "cancelled":
            reading = asyncio.create_task(response.read(100))
            await asyncio.sleep(0.01)
            reading.cancel()
        response.close()
        assert await asyncio.gather(*waiting[1:]) == [b"hello"] * 2
        await behind.calls[0].closed.wait()
        assert asker.in_use == 0


@pytest.mark.parametrize("turns", range(16))
async def test_whoever_gives_up_while_it_is_connected_gives_one_place_back(turns: int) -> None:
    """In some turn of the loop the connection is there, and whoever wanted it has not been told."""

    async def script(call: Call) -> None:
        await call.read()
        await go_on.wait()
        await call.send(OK)

    go_on = asyncio.Event()
    async with asking(script, max_connections=2) as (asker, behind):
        for _ in range(8):
            given_up = asyncio.create_task(asker.ask())
            for _ in range(turns):
                await asyncio.sleep(0)
            given_up.cancel()
            await asyncio.gather(given_up, return_exceptions=True)
        while any(pool._all for pool in asker.client._pools.values()):  # noqa: ASYNC110 - a pool tells nobody
            await asyncio.sleep(0)
        assert asker.in_use == 0
        behind.calls.clear()
        waiting = [asyncio.create_task(asker.ask()) for _ in range(5)]
        while len(behind.calls) < 2:  # noqa: ASYNC110 - nor do calls
            await asyncio.sleep(0)
        assert asker.in_use == 2
        go_on.set()
        assert await asyncio.gather(*waiting) == [b"hello"] * 5
        assert asker.in_use == 0


async def test_waiting_for_a_connection_counts_as_connecting() -> None:
    async def script(call: Call) -> None:
        await call.read()
        await call.gone()

    async with asking(script, max_connections=1, connect_timeout=0.1) as (asker, _):
        first = asyncio.create_task(asker.ask())
        await asyncio.sleep(0.01)
        with pytest.raises(UpstreamConnectionError, match=r"did not accept a connection in 0\.1 s"):
            await asker.ask()
        first.cancel()


@pytest.mark.parametrize("setting", ["idle_timeout", "total_timeout"])
async def test_time_counts_for_a_request_and_not_for_its_connection(setting: str) -> None:
    async def script(call: Call) -> None:
        await call.read()
        await asyncio.sleep(0.15)
        await call.send(OK)

    async with asking(script, **{setting: 0.5}) as (asker, behind):
        for _ in range(3):
            assert await asker.ask() == b"hello"
            await asyncio.sleep(0.15)
        assert behind.connections == 1


async def test_a_body_that_stops_is_truncated_and_what_had_come_is_not_lost() -> None:
    async def script(call: Call) -> None:
        await call.read()
        await call.send(head(200, CHUNKED) + chunk(b"hello"))
        await call.gone()

    async with asking(script, idle_timeout=0.4) as (asker, _):
        response = await asker.send()
        chunks = response.chunks()
        assert await anext(chunks) == b"hello"
        with pytest.raises(TruncatedError):
            await anext(chunks)
        assert asker.in_use == 0


async def test_a_client_that_takes_slowly_is_not_the_upstreams_silence() -> None:
    async def script(call: Call) -> None:
        await call.read()
        await call.send(answer(200, b"x" * 5_000_000))

    async with asking(script, idle_timeout=0.4) as (asker, _):
        response, received = await asker.send(), 0
        async for piece in response.chunks():
            if not received:
                await asyncio.sleep(0.6)
            received += len(piece)
        assert received == 5_000_000


async def test_a_client_that_sends_slowly_is_not_the_upstreams_silence() -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(4):
            await asyncio.sleep(0.15)
            yield b"part"

    async with asking(always(OK), idle_timeout=0.5) as (asker, behind):
        response = await asker.send(body=body())
        assert await response.read(100) == b"hello"
        assert behind.calls[0].body == b"part" * 4


@pytest.mark.parametrize("size", [500_000, 5_000_000])
async def test_an_upstream_that_takes_nothing_is_silent(size: int) -> None:
    async def script(call: Call) -> None:
        call.pause()
        await call.gone()

    async with asking(script, idle_timeout=0.2) as (asker, _):
        with pytest.raises(UpstreamTimeoutError):
            await asker.send(body=b"x" * size)
        assert asker.in_use == 0


async def test_an_upstream_that_takes_slowly_is_not_silent() -> None:
    size, step = 30_000_000, 5_000_000

    async def script(call: Call) -> None:
        chunks, taken = call.chunks(), 0
        for wanted in range(step, size + step, step):
            call.pause()
            await asyncio.sleep(0.15)
            call.resume()
            while taken < wanted:
                taken += len(await anext(chunks))
        await call.send(OK)

    async with asking(script, idle_timeout=0.6) as (asker, _):
        response = await asker.send(body=b"x" * size)
        assert await response.read(100) == b"hello"


async def test_what_came_right_before_an_answer_broke_off_is_given_to_the_sink() -> None:
    async def script(call: Call) -> None:
        await call.read()
        await call.send(head(200, CHUNKED) + chunk(b"begun"))
        await go_on.wait()
        await call.send(chunk(b" and done") + b"zz\r\n")

    go_on = asyncio.Event()
    async with asking(script) as (asker, _):
        response = await asker.send()
        assert isinstance(response.body, connection.PendingResponse)
        sink = Taking()
        pouring = asyncio.create_task(response.body.pour(sink))
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(TruncatedError):
            await pouring
        assert sink.size == len(b"begun and done")


async def test_a_body_that_breaks_off_is_never_completed() -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"part"
        await arrived.wait()
        raise ClientGoneError

    arrived, whole = asyncio.Event(), asyncio.Event()

    async def script(call: Call) -> None:
        arrived.set()
        await call.read()
        whole.set()

    async with asking(script) as (asker, behind):
        with pytest.raises(ClientGoneError):
            await asker.send(body=body())
        await arrived.wait()
        await behind.calls[0].closed.wait()
        assert (whole.is_set(), asker.in_use) == (False, 0)


async def test_an_answer_before_the_end_of_a_body_ends_its_sending() -> None:
    ended = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 100_000
                await asyncio.sleep(0)
        finally:
            ended.set()

    async def script(call: Call) -> None:
        await call.send(answer(413, b"too much"))
        await call.gone()

    async with asking(script) as (asker, _):
        response = await asker.send(body=body())
        assert (response.status, await response.read(100)) == (413, b"too much")
        await ended.wait()
        assert asker.in_use == 0


class Taking:
    """A sink that always has room."""

    def __init__(self) -> None:
        self.size = 0

    def take(self, chunk: bytes, *, is_last: bool) -> bool:
        self.size += len(chunk)
        return True


async def test_an_answer_that_nobody_took_for_a_while_flows_on_into_a_sink_that_has_room() -> None:
    size = 3_000_000

    async def script(call: Call) -> None:
        await call.read()
        await call.send(head(200, (b"Content-Length", b"%d" % size)))
        await call.send(b"x" * size)

    async with asking(script) as (asker, _):
        response = await asker.send()
        flowing = response.body
        assert isinstance(flowing, connection.PendingResponse)
        while not flowing.is_paused:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0)
        sink = Taking()
        async with within(30):
            await flowing.pour(sink)
        assert sink.size == size


async def test_a_large_body_that_nobody_takes_is_no_larger_here() -> None:
    """It leaves in pieces, each when the one before has left."""

    async def script(call: Call) -> None:
        call.pause()
        await go_on.wait()
        call.resume()
        await call.read()
        await call.send(OK)

    go_on, content = asyncio.Event(), b"x" * 20_000_000
    async with asking(script) as (asker, behind):
        sending = asyncio.create_task(asker.send(body=content))
        while not (pool := asker.client._pools.get(asker.settings)) or not pool._all:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
        [connection] = pool._all
        most, waits = 0, 0
        while waits < 20:  # until nothing more is taken
            await asyncio.sleep(0.01)
            size = connection._transport.get_write_buffer_size()
            most, waits = max(most, size), waits + (size > 0)
        assert most < 1_000_000
        go_on.set()
        assert (await sending).status == 200
        assert behind.calls[0].body == content


@pytest.mark.parametrize(("method", "tried"), [("GET", 2), ("HEAD", 2), ("DELETE", 2), ("POST", 1), ("PATCH", 1)])
async def test_what_meets_a_closing_connection_is_sent_again_only_where_that_does_no_harm(
    method: str, tried: int
) -> None:
    async def script(call: Call) -> None:
        await call.read()
        asked.append(call.method)
        if len(asked) == 2:
            call.close()
        else:
            await call.send(OK)

    asked: list[str] = []
    async with asking(script) as (asker, _):
        await asker.ask()
        with pytest.raises(UpstreamConnectionError, match="closed") if tried == 1 else nullcontext():
            assert (await asker.send(method, None)).status == 200
        assert asked[1:] == [method] * tried


@pytest.mark.skipif(sys.platform != "linux", reason="its TCP says what a peer has taken")
@pytest.mark.parametrize("ends", ["closed", "reset"])
async def test_what_no_byte_was_taken_of_goes_out_by_another_connection(ends: str) -> None:
    loop, requests = asyncio.get_running_loop(), list[bytes]()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)

        async def served() -> socket.socket:
            client, _ = await loop.sock_accept(listener)
            requests.append(await loop.sock_recv(client, 65_536))
            await loop.sock_sendall(client, OK)
            return client

        async with UpstreamClient() as client, asyncio.timeout(30):
            settings = Settings(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}")
            url = f"{settings.base_url}/v1"
            first = asyncio.create_task(client.send(settings, "POST", url, [], b"one"))
            kept = await served()
            assert await (await first).read(10) == b"hello"
            if ends == "reset":
                kept.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            again = asyncio.create_task(served())
            await asyncio.sleep(0)
            kept.close()  # and nothing of ours can have noticed before it writes
            response = await client.send(settings, "POST", url, [], b"two")
            assert (response.status, requests[-1][-3:], len(requests)) == (200, b"two", 2)
            (await again).close()


async def test_a_connection_that_was_never_answered_on_is_not_tried_again() -> None:
    async def script(call: Call) -> None:
        await call.read()
        call.close()

    async with asking(script) as (asker, behind):
        with pytest.raises(UpstreamConnectionError):
            await asker.ask("GET")
        assert len(behind.calls) == 1


ENDLESS = {
    "head": (b"HTTP/1.1 200 OK\r\nX: ", b"y" * 1_000),
    "announcements": (b"", head(102) * 40),
    "trailers": (head(200, CHUNKED) + b"0\r\n", b"X: " + b"y" * 1_000 + b"\r\n"),
}


@pytest.mark.parametrize("case", ENDLESS)
async def test_an_endless_answer_is_given_up(case: str) -> None:
    begins, goes_on = ENDLESS[case]

    async def script(call: Call) -> None:
        await call.read()
        await call.send(begins)
        while True:
            await call.send(goes_on)

    async with asking(script) as (asker, behind):
        with pytest.raises((UpstreamConnectionError, TruncatedError)):
            await asker.ask()
        await behind.calls[0].closed.wait()
        assert asker.in_use == 0


async def test_it_goes_to_whom_the_certificate_names_and_says_whom_it_wants(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        with suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(2)
                writer.write(OK)
        writer.close()

    accepted, named = 0, list[str | None]()
    context = certificates.context(clients=False)
    context.sni_callback = lambda _, name, __: named.append(name)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    async with server, UpstreamClient() as client, asyncio.timeout(30):
        for host, why in (("127.0.0.1", ""), ("localhost", "certificate is not valid")):
            settings = Settings(base_url=f"https://{host}:{port}/v1")
            for _ in range(3):
                with pytest.raises(UpstreamConnectionError, match=why) if why else nullcontext():
                    response = await client.send(settings, "POST", settings.base_url, [], b"{}")
                    assert await response.read(100) == b"hello"
    assert accepted == 1
    assert named == [None, *["localhost"] * 3]  # addresses are no names (RFC 6066, section 3)


class Dialled(asyncio.Protocol):
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport


@pytest.mark.parametrize("turns", range(0, 24, 2))
async def test_a_handshake_that_is_given_up_leaves_nothing_open(turns: int, certificates: Certificates) -> None:
    """A transport that lives on over a closed socket would take the next connection with the same descriptor."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(asyncio.current_task())
        with closing(writer), suppress(ConnectionError, ssl.SSLError):
            if await reader.read() == b"the last":
                last.set()

    async def connect(content: bytes) -> None:
        _, writer = await asyncio.open_connection(host, port, ssl=context)
        with closing(writer):
            writer.write(content)

    opened, last = list[asyncio.Task[None] | None](), asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=certificates.context(clients=False))
    host, port = server.sockets[0].getsockname()
    origin, context = (
        dialing.ServerAddress(host, port, is_secure=True),
        ssl.create_default_context(cafile=certificates.authority),
    )
    async with server, asyncio.timeout(30):
        for _ in range(10):
            dialled = asyncio.create_task(dialing.dial(origin, context, Dialled))
            for _ in range(turns):
                await asyncio.sleep(0)
            dialled.cancel()
            with suppress(asyncio.CancelledError):
                (await dialled).transport.abort()
            await connect(b"another")
        await connect(b"the last")
        await last.wait()
        await asyncio.gather(*filter(None, opened))


async def test_the_first_address_that_answers_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))
        kind = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
        addresses = [(*kind, refusing.getsockname()), (*kind, listener.getsockname()), (*kind, listener.getsockname())]
        found = await dialing._connect_first(addresses)
        assert found.getpeername() == listener.getsockname()
        found.close()
        with pytest.raises(ConnectionRefusedError):
            await dialing._connect_first(addresses[:1] * 2)
        await asyncio.sleep(0.01)


def test_addresses_of_both_families_take_turns() -> None:
    four, six = ((family, 0, 0, "", ("", 0)) for family in (socket.AF_INET, socket.AF_INET6))
    assert dialing._alternating([six, six, four]) == [six, four, six]  # type: ignore[list-item]


@pytest.mark.parametrize(
    "header",
    [
        *((b"x", b"a\r\nInjected: 1"), (b"x", b"a\nb"), (b"x", b"a\rb"), (b"x", b"a\0b"), (b"x y", b"1"), (b"", b"1")),
        *((b"x:", b"1"), (b"x\r\ny", b"1"), (b"x\n", b"1"), ("xé".encode(), b"1"), (b"x", b"a\r\n\r\nGET / HTTP/1.1")),
    ],
)
def test_no_header_ends_its_line_before_its_time(header: Header) -> None:
    with pytest.raises(InvalidRequestError):
        request_head("GET", "/", b"h", [header], None)


@pytest.mark.parametrize("target", ["", "x", "*", "/a b", "/a\r\nb", "/a\0", "/\x7f", "http://h/x"])
def test_no_target_ends_its_line_before_its_time(target: str) -> None:
    with pytest.raises(InvalidRequestError):
        request_head("GET", target, b"h", [], None)


async def _streamed() -> AsyncIterator[bytes]:
    yield b""


@pytest.mark.parametrize(
    ("method", "headers", "body", "expected"),
    [
        ("GET", [], None, b""),
        ("GET", [], b"", b""),
        ("POST", [], None, b"Content-Length: 0\r\n"),
        ("DELETE", [], b"", b"Content-Length: 0\r\n"),
        ("POST", [], b"abc", b"Content-Length: 3\r\n"),
        ("GET", [], b"abc", b"Content-Length: 3\r\n"),
        ("POST", [(b"content-length", b"0")], b"", b"content-length: 0\r\n"),
        ("POST", [(b"x", "café \xa0".encode("latin-1"))], b"", b"x: caf\xe9 \xa0\r\nContent-Length: 0\r\n"),
        ("POST", [(b"content-length", b"9")], "stream", b"content-length: 9\r\n"),
        ("POST", [], "stream", b"Transfer-Encoding: chunked\r\n"),
    ],
)
def test_a_head_says_what_was_given_and_how_the_body_ends(
    method: str, headers: list[Header], body: bytes | str | None, expected: bytes
) -> None:
    streamed = _streamed() if body == "stream" else body
    assert not isinstance(streamed, str)
    sent = request_head(method, "/v1/\xe4?a=%20", b"h:1", headers, streamed)
    assert sent == method.encode() + b" /v1/\xe4?a=%20 HTTP/1.1\r\nHost: h:1\r\n" + expected + b"\r\n"


@pytest.mark.parametrize(
    ("base_url", "host"),
    [
        ("http://h/v1", b"h"),
        ("http://h:80/v1", b"h"),
        ("https://h:443/v1", b"h"),
        ("https://h:80/v1", b"h:80"),
        ("http://[::1]:8000/v1", b"[::1]:8000"),
        ("https://[::1]/v1", b"[::1]"),
    ],
)
async def test_the_host_is_the_upstreams_own(base_url: str, host: bytes) -> None:
    assert UpstreamClient()._pool(Settings(base_url=base_url)).host == host


@pytest.mark.parametrize("seconds", [0.05, 20])
async def test_time_for_a_whole_answer_counts_while_it_is_connected(seconds: float) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(3)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        settings = Settings(
            base_url=f"http://127.0.0.1:{listener.getsockname()[1]}/v1", total_timeout=seconds, connect_timeout=0.1
        )
        async with UpstreamClient() as client:
            with pytest.raises((UpstreamTimeoutError, UpstreamConnectionError)) as raised:
                await client.send(settings, "GET", settings.base_url, [], None)
        assert isinstance(raised.value, UpstreamTimeoutError) == (seconds < 0.1)
        for other in waiting:
            other.close()


async def test_a_context_trusts_the_systems_authorities_and_checks_names() -> None:
    context = dialing.trusting_context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


async def test_connections_to_an_upstream_that_the_config_no_longer_has_are_forgotten() -> None:
    async def begin(call: Call) -> None:
        await call.send(head(200, CHUNKED) + chunk(b"hello"))
        await call.gone()

    async with upstream(begin) as behind, UpstreamClient() as client, asyncio.timeout(30):
        replaced, kept = (Asker(client, behind, connect_timeout=seconds) for seconds in (1, 2))
        responses = [await asker.send() for asker in (replaced, kept)]
        client.keep_pools([kept.settings])
        assert client._pools.keys() == {replaced.settings, kept.settings}, "both are in use"
        for response in responses:
            response.close()
        client.keep_pools([kept.settings])
        assert client._pools.keys() == {kept.settings}
