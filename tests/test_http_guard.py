"""Bytes that are no request of ours to serve: refused on real sockets, in OpenAI's shape, and the connection ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from proxy.guard import MAX_HEAD, MAX_HEADERS, MAX_LINE
from tests.upstreams import CHAT, JSON, OK_BODY, Upstream, always, answer, chat, connected, proxied

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

BODY = chat("a")
POST = b"POST " + CHAT.encode() + b" HTTP/1.1\r\n"
HOST = b"Host: proxy\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
TE = b"Transfer-Encoding: chunked\r\n"
SMUGGLED = b"GET /v1/smuggled HTTP/1.1\r\nHost: proxy\r\n\r\n"
INVALID = "The request is not valid HTTP/1.1."
ONE_HOST = "The request must have one Host header."
BAD_HOST = "The Host header is not a name or address with a port."
TOO_LARGE = "The headers of the request are too many or too large."
TOO_LONG = "The address of the request is too long."


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def both(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[str, Upstream]]:
    async with proxied(tmp_path_factory.mktemp("guard"), always(answer(200, OK_BODY, JSON))) as found:
        yield found


@dataclass(frozen=True)
class Row:
    """What is sent, and what is said of it; an empty message stands for a request that is served."""

    reason: str
    sent: bytes
    message: str = INVALID
    status: int = 400
    code: str = "invalid_request"


def post(*headers: bytes, body: bytes = BODY) -> bytes:
    return POST + b"".join(headers) + b"\r\n" + body


def large(size: int) -> bytes:
    return b"X-Large: " + b"x" * size + b"\r\n"


def hosted(value: bytes) -> bytes:
    return post(b"Host: " + value + b"\r\n", LENGTH)


ROWS = [
    Row("no Host", post(LENGTH), ONE_HOST),
    Row("two Hosts", post(HOST, HOST, LENGTH), ONE_HOST),
    Row("two different Hosts", post(HOST, b"hOST: other\r\n", LENGTH), ONE_HOST),
    Row("a Host with a path", hosted(b"localhost/echo?x="), BAD_HOST),
    Row("a Host with a user", hosted(b"a@b"), BAD_HOST),
    Row("a Host with a space", hosted(b"a b"), BAD_HOST),
    Row("a Host with a port that is none", hosted(b"a:b"), BAD_HOST),
    Row("a Host beyond ASCII", hosted(b"\xff"), BAD_HOST),
    Row("two lengths", post(HOST, LENGTH, b"Content-Length: 5\r\n")),
    Row("the same length twice", post(HOST, LENGTH, LENGTH)),
    Row("a list of lengths", post(HOST, b"Content-Length: 5, 5\r\n")),
    Row("a signed length", post(HOST, b"Content-Length: +5\r\n")),
    Row("a negative length", post(HOST, b"Content-Length: -1\r\n")),
    Row("a length beyond all bounds", post(HOST, b"Content-Length: " + b"9" * 40 + b"\r\n")),
    Row("length and chunks", post(HOST, LENGTH, TE, body=b"0\r\n\r\n" + SMUGGLED)),
    Row("chunks and length", post(HOST, TE, LENGTH, body=b"0\r\n\r\n" + SMUGGLED)),
    Row("an unknown coding", post(HOST, b"Transfer-Encoding: xchunked\r\n", body=b"0\r\n\r\n")),
    Row("chunked, and then not", post(HOST, b"Transfer-Encoding: chunked, identity\r\n", body=b"0\r\n\r\n")),
    Row("a folded header", post(HOST, b"X-A: b\r\n c\r\n", LENGTH)),
    Row("a folded length", post(HOST, b"Content-Length:\r\n 5\r\n")),
    Row("a space before the colon", post(HOST, b"Content-Length : 5\r\n")),
    Row("a header without a colon", post(HOST, b"nonsense\r\n")),
    Row("a NUL in a header", post(HOST, b"X-A: \0\r\n")),
    Row("a bare line feed", post(HOST, LENGTH).replace(b"\r\n", b"\n")),
    Row("a chunk size that is none", post(HOST, TE, body=b"zz\r\n")),
    Row("a chunk longer than it says", post(HOST, TE, body=b"1\r\nabc\r\n0\r\n\r\n")),
    Row("a chunk size with a sign", post(HOST, TE, body=b"+1\r\na\r\n0\r\n\r\n")),
    Row("no HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    Row("another protocol", b"SSH-2.0-OpenSSH_9.6\r\n"),
    Row("a future version", b"GET / HTTP/9.9\r\nHost: proxy\r\n\r\n"),
    Row("HTTP/2 without a word", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    Row(
        "a line too long", b"GET /" + b"a" * MAX_LINE + b" HTTP/1.1\r\n" + HOST + b"\r\n", TOO_LONG, 414, "uri_too_long"
    ),
    Row("a line without an end", b"GET /" + b"a" * MAX_LINE, TOO_LONG, 414, "uri_too_long"),
    Row("a header too large", post(HOST, large(MAX_HEAD)), TOO_LARGE, 431, "headers_too_large"),
    Row("a header without an end", POST + b"X: " + b"x" * 4 * MAX_HEAD, TOO_LARGE, 431, "headers_too_large"),
    Row("a name without an end", POST + b"x" * 300_000, TOO_LARGE, 431, "headers_too_large"),
    Row("headers that are large together", post(HOST, large(3_000) * 11), TOO_LARGE, 431, "headers_too_large"),
    Row("too many headers", post(HOST, b"X-A: b\r\n" * MAX_HEADERS), TOO_LARGE, 431, "headers_too_large"),
    Row("an empty Host", hosted(b""), ""),
    Row("a Host with a port", hosted(b"proxy.example:8795"), ""),
    Row("an address of IPv6", hosted(b"[::1]:8795"), ""),
    Row("HTTP/1.0 without a Host", post(LENGTH).replace(b"1.1", b"1.0"), ""),
    Row("large headers", post(HOST, large(MAX_HEAD - 1_000), LENGTH), ""),
    Row("many headers", post(HOST, b"X-A: b\r\n" * (MAX_HEADERS - 3), LENGTH), ""),
    Row("chunks", post(HOST, TE, body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)), ""),
]


@pytest.mark.parametrize("pieces", ["at once", "in pieces"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.reason)
async def test_each_is_served_or_refused_and_nothing_is_smuggled(
    both: tuple[str, Upstream], row: Row, pieces: str
) -> None:
    address, behind = both
    behind.calls.clear()
    async with connected(address) as client, asyncio.timeout(30):
        client.method = "POST"
        step = len(row.sent) if pieces == "at once" else max(1, len(row.sent) // 7)
        sending = asyncio.create_task(client.send(*(row.sent[at : at + step] for at in range(0, len(row.sent), step))))
        reply = await client.reply()
        await asyncio.gather(sending, return_exceptions=True)
        if not row.message:
            assert (reply.status, reply.body) == (200, OK_BODY)
            return
        await client.gone()
    error = {"message": row.message, "type": "invalid_request_error", "param": None, "code": row.code}
    assert (reply.status, reply.json(), reply.complete) == (row.status, {"error": error}, True)
    assert (reply.header(b"connection"), reply.header(b"content-type")) == (b"close", b"application/json")
    assert behind.calls == []


async def test_an_answer_under_way_is_not_disturbed_by_what_comes_behind_it(both: tuple[str, Upstream]) -> None:
    async with connected(both[0]) as client, asyncio.timeout(30):
        client.method = "POST"
        await client.send(post(HOST, LENGTH) + b"nonsense\r\n\r\n")
        reply = await client.reply()
        assert (reply.status, reply.body) == (200, OK_BODY)
        await client.gone()


async def test_a_connection_serves_many_requests_with_and_without_pauses(both: tuple[str, Upstream]) -> None:
    async with connected(both[0]) as client, asyncio.timeout(30):
        client.method = "POST"
        whole = post(HOST, large(20_000), LENGTH)
        for _ in range(5):
            await client.send(whole[:9_000], whole[9_000:-3], whole[-3:])
            assert (await client.reply()).status == 200
        await client.send(whole + whole)
        assert [(await client.reply()).status for _ in range(2)] == [200, 200]


LATE = [
    ("half a head", POST + HOST, "The head of the request did not come in time."),
    ("no body", post(HOST, LENGTH, body=b""), "The body of the request did not go on in time."),
    ("half a body", post(HOST, LENGTH, body=BODY[:9]), "The body of the request did not go on in time."),
    ("half a chunk", post(HOST, TE, body=b"9\r\nab"), "The body of the request did not go on in time."),
]


@pytest.mark.parametrize("before", [b"", post(HOST, LENGTH)], ids=["first", "second"])
@pytest.mark.parametrize(("sent", "message"), [row[1:] for row in LATE], ids=[row[0] for row in LATE])
async def test_what_does_not_come_in_time_is_given_up(tmp_path: Path, before: bytes, sent: bytes, message: str) -> None:
    server = {"header_timeout": "50ms", "body_timeout": "50ms"}
    async with (
        proxied(tmp_path, always(answer(200, OK_BODY, JSON)), server=server) as (address, _),
        connected(address) as client,
        asyncio.timeout(30),
    ):
        client.method = "POST"
        if before:
            await client.send(before)
            assert (await client.reply()).status == 200
        await client.send(sent)
        reply = await client.reply()
        await client.gone()
    assert (reply.status, reply.header(b"connection")) == (408, b"close")
    assert reply.json()["error"] == {  # type: ignore[comparison-overlap]
        "message": message,
        "type": "invalid_request_error",
        "param": None,
        "code": "request_timeout",
    }


async def test_a_connection_that_says_nothing_is_closed_without_a_word(tmp_path: Path) -> None:
    async with (
        proxied(tmp_path, always(b""), server={"header_timeout": "20ms"}) as (address, _),
        connected(address) as client,
        asyncio.timeout(30),
    ):
        assert await client._reader.read() == b""


async def test_an_answer_that_takes_longer_than_a_request_may_is_waited_for(tmp_path: Path) -> None:
    async def slow(call: object) -> None:
        await call.read()  # type: ignore[attr-defined]
        await asyncio.sleep(0.1)
        await call.send(answer(200, OK_BODY, JSON))  # type: ignore[attr-defined]

    server = {"header_timeout": "20ms", "body_timeout": "20ms"}
    async with proxied(tmp_path, slow, server=server) as (address, _), connected(address) as client:
        assert (await client.ask("POST", CHAT, [JSON], BODY)).status == 200
