"""What is not compacted passes untouched: bytes, headers, paths and methods, both ways, over real sockets."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings

from proxy.callers.api_paths import upstream_url
from proxy.errors import InvalidRequestError
from tests.support.conversations import requests
from tests.support.upstreams import (
    CHAT,
    CHUNKED,
    EVENTS,
    JSON,
    OK_BODY,
    TWO_WAYS,
    Call,
    Header,
    Reply,
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
    delta,
    head,
    request,
    serving,
    upstream,
    value,
)

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.anyio

OK = answer(200, OK_BODY, JSON)


anyio_backend = backends(TWO_WAYS)


def theirs(reply: Reply) -> list[Header]:
    """The headers that came from the upstream: without ours, and without how our server frames its answer."""
    ours = (b"server-timing", b"transfer-encoding", b"connection", b"x-concertina-request-id")
    return [(name, v) for name, v in reply.headers if not name.startswith(b"x-compaction") and name not in ours]


def sent(call: Call) -> list[Header]:
    """The headers that the upstream got, without those that are set anew for it."""
    anew = (b"host", b"content-length", b"x-concertina-hop")
    return [(name, v) for name, v in call.headers if name.lower() not in anew]


BODIES = [
    chat("hello"),
    b'  {\n\t"messages" : [ { "role" : "user" , "content" : "a" } ] , "model":"m"}\r\n ',
    b'{"z":1,"model":"m","messages":[{"content":"b","role":"user"}],"a":{"y":[],"x":null}}',
    '{"messages":[{"role":"user","content":"你好 😀 naïve"}],"model":"m"}'.encode(),
    rb'{"messages":[{"role":"user","content":"\u4f60\ud83d\ude00\/\n\"\\"}],"model":"m"}',
    rb'{"messages":[{"role":"user","content":"cut \ud83d here"}],"model":"m"}',
    b'{"messages":[{"role":"user","content":"a"}],"seed":123456789012345678901234567890,"n":1,"t":1.0,"u":1e5,"v":-0}',
    b'{"model":"a","messages":[{"role":"user","content":"a"}],"model":"b"}',
    b'{"messages":[{"role":"user","content":"a"}],"messages":[{"role":"user","content":"b"}]}',
    b'{"messages":[],"model":"m"}',
    b'{"messages":"nothing I know"}',
    b"[1,2,3]",
    chat("word " * 210_000),
    chat(*["again"] * 3_000),
]


@pytest.mark.requirement("R1 6.1")
@pytest.mark.parametrize("body", BODIES, ids=lambda body: f"{len(body)} bytes {body[:24]!r}")
async def test_a_request_arrives_byte_for_byte(address: str, behind: Upstream, body: bytes) -> None:
    reply = await ask(address, "POST", CHAT, [JSON], body)
    [call] = behind.calls
    assert reply.status == 200
    assert hashlib.sha256(call.body).digest() == hashlib.sha256(body).digest()
    assert call.header(b"content-length") == str(len(body)).encode()


@pytest.mark.requirement("R1 11", "R3 8.2 before")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=requests())
async def test_any_request_arrives_byte_for_byte(
    address: str, behind: Upstream, made: tuple[bytes, list[bytes]]
) -> None:
    body, _ = made
    behind.calls.clear()
    assert (await ask(address, "POST", CHAT, [JSON], body)).status == 200
    assert [call.body for call in behind.calls] == [body]


async def test_a_compressed_request_arrives_as_it_was_compressed(address: str, behind: Upstream) -> None:
    body = gzip.compress(chat("hello"))
    await ask(address, "POST", CHAT, [JSON, (b"Content-Encoding", b"gzip")], body)
    [call] = behind.calls
    assert (call.body, call.header(b"content-encoding")) == (body, b"gzip")


async def test_a_chunked_request_arrives_whole(address: str, behind: Upstream) -> None:
    body = chat("hello")
    async with connected(address) as client:
        await client.send(request("POST", CHAT, [(b"Host", b"x"), JSON, CHUNKED]), chunk(body[:9]), chunk(body[9:]))
        await client.send(chunk(b""))
        assert (await client.reply()).status == 200
    assert behind.calls[0].body == body


def pieces(content: bytes, size: int) -> list[bytes]:
    return [content[start : start + size] for start in range(0, len(content), size)]


def streamed(content: bytes, *headers: Header, size: int = 7) -> Script:
    """Sends a chunked answer in pieces of so many bytes, which split events, lines and characters."""

    async def script(call: Call) -> None:
        await call.read()
        await call.send(head(200, *headers, CHUNKED), *[chunk(piece) for piece in pieces(content, size)], chunk(b""))

    return script


EVENT_STREAMS = [
    delta("a") + delta("你好 😀") + b"data: [DONE]\n\n",
    b'data: {"a":1}\r\n\r\ndata: {"b":2}\r\n\r\ndata: [DONE]\r\n\r\n',
    b'data: {"a":1}\r\rdata: [DONE]\r\r',
    b': hello\n\nid: 7\r\nevent: x\ndata: {"a":\ndata: 1}\r\n\r\n:\n\n\rdata: [DONE]\n\n',
    b"\xef\xbb\xbfdata: {}\n\ndata: [DONE]\n\n",
    b"data: no end",
    b"",
    b"data: " + b"x" * 300_000 + b"\n\n",
]


@pytest.mark.requirement("R1 6.1", "R4 1 history")
@pytest.mark.parametrize("content", EVENT_STREAMS, ids=lambda content: repr(content[:20]))
@pytest.mark.parametrize("size", [1, 7, 65_536])
async def test_a_stream_arrives_byte_for_byte(address: str, behind: Upstream, content: bytes, size: int) -> None:
    behind.script = streamed(content[:5_000] if size == 1 else content, EVENTS, size=size)
    reply = await ask(address, "POST", CHAT, [JSON], chat("hi", stream=True))
    assert (reply.body, reply.complete) == (content[:5_000] if size == 1 else content, True)
    assert theirs(reply) == [(b"content-type", b"text/event-stream")]


@pytest.mark.parametrize("kind", [EVENTS, JSON])
@pytest.mark.parametrize("coding", [b"gzip", b"br", b"GZIP", b"deflate", b"unheard-of"])
async def test_a_compressed_answer_arrives_as_it_was_compressed(
    address: str, behind: Upstream, kind: Header, coding: bytes
) -> None:
    content = gzip.compress(delta("a") * 50)
    behind.script = streamed(content, kind, (b"Content-Encoding", coding))
    reply = await ask(address, "POST", CHAT, [JSON], chat("hi"))
    assert (reply.body, reply.complete, reply.header(b"content-encoding")) == (content, True, coding)


THEIR_HEADERS = [
    (b"X-Request-ID", b"req_1"),
    (b"Retry-After", b"17"),
    (b"retry-after-ms", b"1700"),
    (b"X-Should-Retry", b"false"),
    (b"x-ratelimit-limit-requests", b"60"),
    (b"x-ratelimit-remaining-tokens", b"149984"),
    (b"OpenAI-Processing-Ms", b"12"),
    (b"Set-Cookie", b"a=1; Path=/; HttpOnly"),
    (b"Set-Cookie", b"b=2"),
    (b"Date", b"Thu, 01 Jan 1970 00:00:00 GMT"),
    (b"Server", b"scripted"),
    (b"Via", b"1.1 cdn"),
    (b"X-Empty", b""),
    (b"X-Text", "café".encode()),
    (b"Content-Type", b"application/json"),
]


@pytest.mark.parametrize("path", [CHAT, "/v1/models"])
@pytest.mark.parametrize("status", [200, 201, 202, 400, 401, 403, 404, 409, 422, 429, 500, 502, 503, 529, 599])
async def test_an_answer_arrives_with_its_status_headers_and_bytes_after_one_call(
    address: str, behind: Upstream, status: int, path: str
) -> None:
    body = b'{"error": {"message": "no \xe4\xbd\xa0", "code": null}}'
    behind.script = always(answer(status, body, *THEIR_HEADERS))
    reply = await ask(address, "POST", path, [JSON], chat("hi"))
    assert (reply.status, reply.body, len(behind.calls)) == (status, body, 1)
    expected = [*THEIR_HEADERS, (b"Content-Length", str(len(body)).encode())]
    assert theirs(reply) == [(name.lower(), v) for name, v in expected]


@pytest.mark.parametrize(
    ("raw", "status", "body"),
    [
        (answer(500, b""), 500, b""),
        (answer(503, b"<html>busy</html>", (b"Content-Type", b"text/html")), 503, b"<html>busy</html>"),
        (answer(200, b""), 200, b""),
        (head(204), 204, b""),
        (head(304, (b"ETag", b'"x"'), (b"Content-Length", b"100")), 304, b""),
        (head(304), 304, b""),
        (answer(301, b"moved", (b"Location", b"http://127.0.0.1:1/")), 301, b"moved"),
        (answer(307, b"", (b"Location", b"/elsewhere")), 307, b""),
        (answer(308, b"", (b"Location", b"//evil")), 308, b""),
        (head(103, (b"Link", b"</x>")) + answer(200, b"{}"), 200, b"{}"),
        (head(102) * 50 + answer(200, b"{}"), 200, b"{}"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/models"])
async def test_unusual_answers_arrive_as_they_are(
    address: str, behind: Upstream, raw: bytes, status: int, body: bytes, path: str
) -> None:
    behind.script = always(raw)
    async with connected(address) as client:
        for _ in range(2):
            reply = await client.ask("POST", path, [JSON], chat("hi"))
            assert (reply.status, reply.body, reply.complete) == (status, body, True)
    assert len(behind.calls) == 2


async def test_an_answer_without_a_length_ends_where_the_upstream_ends_it(address: str, behind: Upstream) -> None:
    async def script(call: Call) -> None:
        await call.read()
        await call.send(b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n" + OK_BODY)
        call.close()

    behind.script = script
    reply = await ask(address, "POST", CHAT, [JSON], chat("hi"))
    assert (reply.body, reply.complete) == (OK_BODY, True)


async def test_headers_of_one_hop_and_those_named_by_connection_end_here_both_ways(
    address: str, behind: Upstream
) -> None:
    mine = [(b"Connection", b"x-mine, keep-alive"), (b"X-Mine", b"1"), (b"TE", b"trailers"), (b"X-Kept", b"1")]
    behind.script = always(answer(200, b"{}", (b"Connection", b"X-Yours"), (b"X-Yours", b"1"), (b"Keep-Alive", b"t=5")))
    for path in (CHAT, "/v1/models"):
        reply = await ask(address, "POST", path, mine, chat("hi"))
        assert theirs(reply) == [(b"content-length", b"2")]
    for call in behind.calls:
        assert sent(call) == [(b"x-kept", b"1")]


async def test_the_upstream_gets_its_own_host_and_the_clients_headers_and_nothing_else(
    address: str, behind: Upstream
) -> None:
    headers: list[Header] = [
        (b"Authorization", b"Bearer sk-client"),
        (b"User-Agent", b"OpenAI/Python 2.54"),
        (b"Accept", b"application/json"),
        (b"X-Stainless-Retry-Count", b"1"),
        (b"Cookie", b"a=1"),
        (b"Cookie", b"b=2"),
        (b"X-Text", "café".encode()),
    ]
    for path in (CHAT, "/v1/models"):
        await ask(address, "POST", path, headers, chat("hi"))
    for call in behind.calls:
        assert call.header(b"host") == behind.address.partition("//")[2].encode()
        assert sent(call) == [(name.lower(), v) for name, v in headers]
        assert sum(1 for name, _ in call.headers if name.lower() == b"content-length") == 1


async def test_control_headers_and_their_twins_do_not_reach_the_upstream(address: str, behind: Upstream) -> None:
    headers: list[Header] = [
        (b"X-Compaction", b"off"),
        (b"x_compaction", b"force"),
        (b"X-Compaction-Policy", b"default"),
        (b"X-Compaction_Policy", b"default"),
        (b"X-Forwarded-For", b"10.0.0.1"),
        (b"Forwarded", b"for=10.0.0.1"),
        (b"X-Session-Id", b"s"),
    ]
    for path in (CHAT, "/v1/models"):
        assert (await ask(address, "POST", path, headers, chat("hi"))).status == 200
    for call in behind.calls:
        assert sent(call) == [(b"x-session-id", b"s")]


@pytest.mark.parametrize(
    ("target", "arrives"),
    [
        ("/v1/models", "/v1/models"),
        ("/v1/models?limit=2&after=a%20b&&x=%00%ff+", "/v1/models?limit=2&after=a%20b&&x=%00%ff+"),
        ("/v1/models/org%2Fname", "/v1/models/org%2Fname"),
        ("/v1/%E4%BD%A0/%zz", "/v1/%E4%BD%A0/%zz"),
        ("/v1/a..b/.c//d...", "/v1/a..b/.c//d..."),
        ("/v1", "/v1"),
        ("/v1/", "/v1/"),
        ("/v1?x", "/v1?x"),
        ("/v1x", "/v1x"),
        ("/models", "/v1/models"),
        ("/embeddings?x=1", "/v1/embeddings?x=1"),
        ("/modelsx", "/modelsx"),
        ("/props", "/props"),
        ("//v1/models", "//v1/models"),
        ("/v1/chat/completions/c1/messages", "/v1/chat/completions/c1/messages"),
        ("http://evil.example/v1/models", "/v1/models"),
    ],
)
async def test_paths_and_queries_arrive_as_the_client_wrote_them(
    address: str, behind: Upstream, target: str, arrives: str
) -> None:
    assert (await ask(address, "GET", target)).status == 200
    assert [call.target for call in behind.calls] == [arrives]


@pytest.mark.parametrize("target", [CHAT, "/chat/completions", f"{CHAT}?api-version=2024-10-21&x=%20"])
async def test_chat_is_chat_with_or_without_v1_and_whatever_the_query(
    address: str, behind: Upstream, target: str
) -> None:
    reply = await ask(address, "POST", target, [JSON], chat("hi"))
    assert reply.header(b"x-compaction") == b"none"
    assert behind.calls[0].target == (target if target.startswith("/v1") else f"/v1{target}")


@pytest.mark.parametrize(
    ("base", "target", "url"),
    [
        ("http://h:1/v1", "/v1/models", "http://h:1/v1/models"),
        ("http://h:1/v1", "/models", "http://h:1/v1/models"),
        ("http://h:1/v1", "/props", "http://h:1/props"),
        ("http://h/openai/v1", "/v1/models", "http://h/openai/v1/models"),
        ("http://h/openai/v1", "/health", "http://h/openai/health"),
        ("http://h/api", "/v1/chat/completions", "http://h/api/chat/completions"),
        ("http://h/api", "/health", "http://h/api/health"),
        ("http://h", "//evil.example/x", "http://h//evil.example/x"),
        ("http://h", "/@evil.example/x", "http://h/@evil.example/x"),
    ],
)
def test_the_base_url_stands_for_v1_and_names_the_only_host(base: str, target: str, url: str) -> None:
    assert upstream_url(base, target) == url


@pytest.mark.parametrize("target", ["*", "", "@evil.example/", ":1/x", ".evil.example/", "?x"])
def test_what_would_change_the_host_is_no_path(target: str) -> None:
    with pytest.raises(InvalidRequestError):
        upstream_url("http://h", target)


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"])
@pytest.mark.parametrize("body", [None, b"", b"some bytes\0\xff"])
async def test_every_method_passes_with_and_without_a_body(
    address: str, behind: Upstream, method: str, body: bytes | None
) -> None:
    reply = await ask(address, method, "/v1/files/f1", [(b"Content-Type", b"text/plain")], body)
    [call] = behind.calls
    assert (reply.status, reply.body) == (200, OK_BODY)
    assert (call.method, call.target, call.body) == (method, "/v1/files/f1", body or b"")
    assert call.header(b"transfer-encoding") is None


@pytest.mark.parametrize("path", [CHAT, "/v1/models"])
async def test_the_head_of_an_answer_passes_without_its_body(address: str, behind: Upstream, path: str) -> None:
    behind.script = always(head(200, JSON, (b"Content-Length", b"1234")))
    async with connected(address) as client:
        for _ in range(2):
            reply = await client.ask("HEAD", path)
            assert (reply.status, reply.body, reply.header(b"content-length")) == (200, b"", b"1234")


async def test_other_answers_are_told_nothing_of_compaction(address: str, behind: Upstream) -> None:
    reply = await ask(address, "GET", "/v1/models")
    assert [name for name, _ in reply.headers if name.startswith(b"x-compaction")] == []


@pytest.mark.parametrize("framing", ["length", "chunks"])
async def test_an_upload_is_streamed_not_buffered(address: str, behind: Upstream, framing: str) -> None:
    size, part = 5_000_000, b"u" * 100_000
    arrived = asyncio.Event()
    received = hashlib.sha256()

    async def script(call: Call) -> None:
        async for piece in call.chunks():
            received.update(piece)
            arrived.set()
        await call.send(OK)

    behind.script = script
    length = (b"Content-Length", str(size).encode()) if framing == "length" else CHUNKED

    def framed(content: bytes) -> bytes:
        return content if framing == "length" else chunk(content)

    async with connected(address) as client, asyncio.timeout(30):
        await client.send(request("POST", "/v1/files", [(b"Host", b"x"), length]), framed(part))
        await arrived.wait()
        await client.send(*[framed(part)] * (size // len(part) - 1))
        if framing == "chunks":
            await client.send(chunk(b""))
        assert (await client.reply()).status == 200
    assert received.digest() == hashlib.sha256(b"u" * size).digest()
    assert behind.calls[0].header(length[0].lower()) == length[1]


async def test_an_upload_that_is_answered_early_leaves_the_connection_in_order(address: str, behind: Upstream) -> None:
    async def script(call: Call) -> None:
        await call.send(answer(413, b"too much", (b"Connection", b"close")))
        call.close()

    behind.script = script
    async with connected(address) as client, asyncio.timeout(30):
        await client.send(request("PUT", "/v1/files", [(b"Host", b"x"), (b"Content-Length", b"20")]), b"u" * 10)
        reply = await client.reply()
        assert (reply.status, reply.body) == (413, b"too much")
        behind.script = always(OK)
        await client.send(b"u" * 10)
        assert (await client.ask("GET", "/v1/models")).status == 200


async def test_two_clients_share_no_cookies(tmp_path: Path) -> None:
    async with upstream(always(answer(200, b"{}", (b"Set-Cookie", b"session=1; Path=/")))) as there:
        if there.address.startswith("https"):
            pytest.skip("the certificate names an address")
        named = there.address.replace("127.0.0.1", "localhost")  # nobody keeps cookies of bare addresses
        async with serving(config_for(tmp_path, named)) as address:
            for _ in range(2):
                assert (await ask(address, "GET", "/v1/models")).status == 200
    assert [call.header(b"cookie") for call in there.calls] == [None, None]


async def test_the_answer_to_a_chat_says_what_was_done(address: str, behind: Upstream) -> None:
    reply = await ask(address, "POST", CHAT, [JSON], chat("hi"))
    said = {name: v for name, v in reply.headers if name.startswith(b"x-compaction")}
    assert said[b"x-compaction"] == b"none"
    assert said[b"x-compaction-tokens-received"] == said[b"x-compaction-tokens-sent"]
    assert float(said[b"x-compaction-overhead-ms"]) >= 0
    assert (value(reply.headers, b"server-timing") or b"").startswith(b"concertina;dur=")
    assert json.loads(reply.body) == json.loads(OK_BODY)
