"""Requests that cannot be served: each has its exact error, in OpenAI's shape, and the connection stays in order."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import openai
import pytest

from tests.support.upstreams import (
    CHAT,
    CHUNKED,
    GZIP,
    JSON,
    OK_BODY,
    TWO_WAYS,
    Header,
    Upstream,
    always,
    answer,
    ask,
    backends,
    chat,
    chunk,
    config_for,
    connected,
    proxied,
    request,
    serving,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


pytestmark = pytest.mark.anyio

MOST = 100_000
OK = answer(200, OK_BODY, JSON)
KEY = (b"Authorization", b"Bearer acme-key")
NO_JSON = "The request body is not valid JSON: "
MALFORMED = NO_JSON + "JSON is malformed: "
DEEP = "The request body is nested more than 100 levels deep."
LIMIT = f"The request body is over the limit of {MOST:,} bytes (server.max_body_bytes)."
STRANGER = "the API key is unknown; ask the operator of this proxy for one and send it as a Bearer token"


anyio_backend = backends(TWO_WAYS)


@pytest.fixture(scope="module")
async def both(anyio_backend: object, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[str, Upstream]]:
    folder = tmp_path_factory.mktemp("open")
    async with proxied(folder, always(OK), server={"max_body_bytes": MOST}) as (address, behind):
        yield address, behind


@pytest.fixture(scope="module")
async def closed(tmp_path_factory: pytest.TempPathFactory, both: tuple[str, Upstream]) -> AsyncIterator[str]:
    """A proxy that serves only one key, in front of the same upstream."""
    tenant = {"keys": ["sha256:" + hashlib.sha256(b"acme-key").hexdigest()], "policies": ["chat"]}
    more = {"closed": True, "tenants": {"default": {}, "acme": tenant}}
    async with serving(config_for(tmp_path_factory.mktemp("closed"), both[1].address, **more)) as address:
        yield address


def said(content: bytes) -> bytes:
    """A request whose only message has this content, as JSON."""
    return b'{"model":"m","messages":[{"role":"user","content":' + content + b"}]}"


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


@dataclass(frozen=True)
class Row:
    """A body, headers beside its type, and the error: message, status, code and param."""

    reason: str
    body: bytes
    message: str
    headers: tuple[Header, ...] = ()
    status: int = 400
    code: str = "invalid_json"
    param: str | None = None


ROWS = [
    Row("nothing", b"", NO_JSON + "Input data was truncated."),
    Row("whitespace", b" \n ", NO_JSON + "Input data was truncated."),
    Row("cut off", b'{"model":"m","messages":[{"role":', NO_JSON + "Input data was truncated."),
    Row("cut in a string", b'{"model":"m', NO_JSON + "Input data was truncated."),
    Row("something behind", chat("a") + b"x", MALFORMED + "trailing characters (byte 63)."),
    Row("two documents", b"{}{}", MALFORMED + "trailing characters (byte 3)."),
    Row("a NUL behind", b'{"messages":[]}\0', MALFORMED + "trailing characters (byte 16)."),
    Row("single quotes", b"{'model':'m'}", MALFORMED + "object keys must be strings (byte 1)."),
    Row("no quotes", b"{model:1}", MALFORMED + "object keys must be strings (byte 1)."),
    Row("a trailing comma", b'{"messages":[],}', MALFORMED + "trailing comma in object (byte 15)."),
    Row("a trailing comma in a list", b'{"messages":[1,]}', MALFORMED + "trailing comma in array (byte 15)."),
    Row("a comment", b'{/*x*/"messages":[]}', MALFORMED + "object keys must be strings (byte 1)."),
    Row("a missing colon", b'{"messages" []}', MALFORMED + "expected ':' (byte 12)."),
    Row("a missing comma", b'{"a":1 "b":2}', MALFORMED + "expected ',' or '}' (byte 7)."),
    Row("form data", b"model=m&messages=hi", MALFORMED + "invalid character (byte 0)."),
    Row("HTML", b"<html>", MALFORMED + "invalid character (byte 0)."),
    Row("two byte order marks", b"\xef\xbb\xbf\xef\xbb\xbf{}", MALFORMED + "invalid character (byte 0)."),
    Row("UTF-16", '{"messages":[]}'.encode("utf-16"), MALFORMED + "invalid character (byte 0)."),
    Row("UTF-32", '{"messages":[]}'.encode("utf-32-be"), MALFORMED + "invalid character (byte 0)."),
    Row("NaN", said(b"NaN"), MALFORMED + "invalid character (byte 50)."),
    Row("NaN outside", b'{"t":NaN,"messages":[]}', MALFORMED + "invalid character (byte 5)."),
    Row("infinity", b'{"t":-Infinity}', MALFORMED + "invalid character (byte 6)."),
    Row("undefined", b'{"t":undefined}', MALFORMED + "invalid character (byte 5)."),
    Row("True", b'{"stream":True}', MALFORMED + "invalid character (byte 10)."),
    Row("a leading zero", b'{"t":01}', MALFORMED + "invalid number (byte 6)."),
    Row("a bare point", b'{"t":1.}', MALFORMED + "invalid number (byte 7)."),
    Row("hexadecimal", b'{"t":0x10}', MALFORMED + "expected ',' or '}' (byte 6)."),
    Row("a control character", said(b'"a\nb"'), MALFORMED + "invalid character (byte 52)."),
    Row("an unknown escape", said(rb'"\x41"'), MALFORMED + "invalid escaped character (byte 52)."),
    Row("half an escape", said(rb'"\u12"'), MALFORMED + "invalid character in unicode escape (byte 56)."),
    Row("not UTF-8", said(b'"\xff"'), "The request body is not valid UTF-8."),
    Row("latin-1", said('"café"'.encode("latin-1")), "The request body is not valid UTF-8."),
    Row("an overlong character", said(b'"\xc0\x80"'), "The request body is not valid UTF-8."),
    Row("101 levels", said(nested(101)), DEEP),
    Row("101 levels of objects", said(b'{"a":' * 101 + b"1" + b"}" * 101), DEEP),
    Row("30,000 levels", said(nested(30_000)), "The request body is nested too deeply."),
    Row("30,000 levels never closed", said(b"[" * 30_000), "The request body is nested too deeply."),
    Row("30,000 levels outside", b'{"x":' + nested(30_000) + b"}", "The request body is nested too deeply."),
    Row("deep tools", b'{"tools":' + nested(101) + b',"messages":[{"role":"user"}]}', DEEP),
    Row("a deep model", b'{"model":' + nested(101) + b',"messages":[{"role":"user"}]}', DEEP),
    Row("a deep n", b'{"n":' + nested(101) + b',"messages":[{"role":"user"}]}', DEEP),
    Row("over the limit", chat("x" * MOST), LIMIT, (), 413, "request_too_large"),
    Row(
        "over the limit after decompression",
        gzip.compress(chat("x" * MOST)),
        "The request body is over the limit after decompression.",
        (GZIP,),
        413,
        "request_too_large",
    ),
    Row(
        "a bomb",
        gzip.compress(b"\0" * 50_000_000),
        "The request body is over the limit after decompression.",
        (GZIP,),
        413,
        "request_too_large",
    ),
    Row("compressed, and no JSON", gzip.compress(b"{"), NO_JSON + "Input data was truncated.", (GZIP,)),
    Row(
        "an unknown wish",
        chat("a"),
        "x-compaction must be one of off, on, shadow, force.",
        ((b"X-Compaction", b"maybe"),),
        code="invalid_request",
        param="x-compaction",
    ),
    Row(
        "an empty wish",
        chat("a"),
        "x-compaction must be one of off, on, shadow, force.",
        ((b"X-Compaction", b""),),
        code="invalid_request",
        param="x-compaction",
    ),
    Row(
        "two wishes",
        chat("a"),
        "The header x-compaction may be sent only once.",
        ((b"X-Compaction", b"on"), (b"X-Compaction", b"on")),
        code="invalid_request",
        param="x-compaction",
    ),
    Row(
        "two keys",
        chat("a"),
        "The header authorization may be sent only once.",
        ((b"Authorization", b"Bearer a"), (b"Authorization", b"Bearer b")),
        code="invalid_request",
        param="authorization",
    ),
    Row(
        "two keys of the other kind",
        chat("a"),
        "The header x-api-key may be sent only once.",
        ((b"X-Api-Key", b"a"), (b"X-Api-Key", b"a")),
        code="invalid_request",
        param="x-api-key",
    ),
    Row(
        "a policy that the caller may not use",
        chat("a"),
        "x-compaction-policy does not name a policy that this key may use",
        ((b"X-Compaction-Policy", b"cost"),),
        status=403,
        code="not_allowed",
        param="x-compaction-policy",
    ),
    Row(
        "a policy that does not exist",
        chat("a"),
        "x-compaction-policy does not name a policy that this key may use",
        ((b"X-Compaction-Policy", b"\xff\x80"),),
        status=403,
        code="not_allowed",
        param="x-compaction-policy",
    ),
    Row(
        "a pin of no kind",
        chat("a"),
        "A match in x-compaction-pin must be tool:NAME, or file:GLOB.",
        ((b"X-Compaction-Pin", b"tool:spec"), (b"X-Compaction-Pin", b"file:a.md, spec")),
        code="invalid_request",
        param="x-compaction-pin",
    ),
    Row(
        "a pin that is too long",
        chat("a"),
        "A match in x-compaction-pin must have at most 200 characters.",
        ((b"X-Compaction-Pin", b"file:" + b"a" * 200),),
        code="invalid_request",
        param="x-compaction-pin",
    ),
    Row(
        "too many pins",
        chat("a"),
        "x-compaction-pin may name at most 32 matches.",
        ((b"X-Compaction-Pin", b",".join(b"tool:%d" % number for number in range(33))),),
        code="invalid_request",
        param="x-compaction-pin",
    ),
    Row(
        "it went round in a circle",
        chat("a"),
        "This request passed the proxy several times: an upstream's base_url leads back to the proxy.",
        ((b"X-Concertina-Hop", b"4"),),
        status=508,
        code="loop_detected",
    ),
]


def error(row: Row) -> dict[str, object]:
    shape = {"message": row.message, "type": "invalid_request_error", "param": row.param, "code": row.code}
    return {"error": shape}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.reason)
async def test_a_broken_request_has_its_exact_error_and_reaches_no_upstream(
    address: str, behind: Upstream, row: Row
) -> None:
    async with connected(address) as client, asyncio.timeout(30):
        reply = await client.ask("POST", CHAT, [JSON, *row.headers], row.body)
        assert (reply.status, reply.json(), reply.complete) == (row.status, error(row), True)
        assert reply.header(b"content-type") == b"application/json"
        assert reply.header(b"x-should-retry") == b"false"
        assert behind.calls == []
        if reply.header(b"connection") == b"close":
            await client.gone()
        else:
            assert (await client.ask("POST", CHAT, [JSON], chat("a"))).status == 200


def test_there_are_enough_of_them() -> None:
    assert len(ROWS) >= 40


async def test_a_target_that_is_no_path_is_refused(address: str, behind: Upstream) -> None:
    reply = await ask(address, "OPTIONS", "*")
    assert (reply.status, behind.calls) == (400, [])
    assert reply.json() == error(Row("", b"", "The request's target must be a path.", code="invalid_request"))


@pytest.mark.parametrize("path", [CHAT, "/v1/files"])
@pytest.mark.parametrize("framing", ["length", "chunks"])
@pytest.mark.parametrize("size", [MOST + 1, 20 * MOST])
async def test_a_body_over_the_limit_is_refused_before_it_is_buffered(
    address: str, behind: Upstream, path: str, framing: str, size: int
) -> None:
    body = b"x" * size
    async with connected(address) as client, asyncio.timeout(30):
        with_length = framing == "length"
        frame = (b"Content-Length", b"%d" % size) if with_length else CHUNKED
        await client.send(request("POST", path, [(b"Host", b"x"), frame]))
        sending = asyncio.create_task(client.send(body if with_length else chunk(body) + chunk(b"")))
        reply = await client.reply()
        if reply.header(b"connection") == b"close":
            await client.gone()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    expected = Row("", b"", LIMIT, status=413, code="request_too_large")
    assert (reply.status, reply.json()) == (413, error(expected))
    assert [call.body for call in behind.calls if call.body] == []


async def test_a_length_that_no_body_has_is_refused_without_waiting_for_it(address: str, behind: Upstream) -> None:
    async with connected(address) as client, asyncio.timeout(30):
        length = (b"Content-Length", b"9" * 18)
        await client.send(request("POST", CHAT, [(b"Host", b"x"), length, (b"Expect", b"100-continue")]))
        assert (await client.reply()).status == 413


async def test_a_client_that_asks_first_is_told_to_go_on(address: str, behind: Upstream) -> None:
    body = chat("a")
    async with connected(address) as client, asyncio.timeout(30):
        length = (b"Content-Length", b"%d" % len(body))
        await client.send(request("POST", CHAT, [(b"Host", b"x"), length, (b"Expect", b"100-continue")]))
        assert await client.head() == 100
        await client.send(body)
        assert (await client.reply()).status == 200
    assert behind.calls[0].header(b"expect") is None


async def test_the_sdk_hears_why_its_request_is_too_large(address: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="k", max_retries=2) as client:
        with pytest.raises(openai.APIStatusError) as caught:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * 50 * MOST}])
    assert (caught.value.status_code, caught.value.code) == (413, "request_too_large")


async def test_a_body_of_just_the_limit_passes(address: str, behind: Upstream) -> None:
    body = chat("x" * (MOST - len(chat(""))))
    assert len(body) == MOST
    assert (await ask(address, "POST", CHAT, [JSON], body)).status == 200


UNUSUAL = [
    (b"null", "no object"),
    (b"[]", "no object"),
    (b'"hi"', "no object"),
    (b"{}", "no messages"),
    (b'{"messages":null}', "no list"),
    (b'{"messages":"hi"}', "no list"),
    (b'{"messages":{"role":"user"}}', "no list"),
    (b'{"messages":[]}', "an empty list"),
    (b'{"messages":[1,"a",null]}', "no messages in it"),
    (b'{"messages":[[]]}', "no messages in it"),
    (b'{"messages":[{"role":["user"],"content":"a"}]}', "a role that is none"),
    (b'{"messages":[{"role":"user","content":[{"type":{}}]}]}', "a part that is none"),
    (b'{"messages":[{"role":"user","content":17}]}', "a content that is none"),
    (b'{"messages":[{"role":"assistant","tool_calls":"x"}]}', "calls that are none"),
    (b'{"messages":[{"role":"tool","content":"x"}]}', "a result of nothing"),
    (b'{"messages":[{"role":"user","content":"a"}],"messages":[{"role":"user","content":"b"}]}', "two lists"),
    (b'{"model":["m"],"messages":[{"role":"user","content":"a"}],"stream":"yes","n":"1"}', "wrong types"),
    (b'{"metadata":' + nested(150) + b',"messages":[{"role":"user","content":"a"}]}', "deep where we need not read"),
    (b'{"x":' + nested(150) + b',"messages":[{"role":"user","content":"a"}]}', "deep where nobody looks"),
    (b'{"seed":' + b"9" * 5_000 + b',"messages":[{"role":"user","content":"a"}]}', "digits where nobody looks"),
    (b'{"user":"\xff","messages":[{"role":"user","content":"a"}]}', "no UTF-8 where nobody looks"),
    (said(b"9" * 5_000), "5,000 digits"),
    (said(b"1e999"), "a number beyond every float"),
    (said(rb'"\ud83d"'), "half a character"),
    (said(nested(95)), "deep, but not too deep"),
    (said(b'"\\u0000"'), "a NUL, escaped"),
]


@pytest.mark.parametrize(("body", "reason"), UNUSUAL, ids=lambda value: repr(value[:40]))
async def test_what_is_json_but_no_chat_is_the_upstreams_to_judge(
    address: str, behind: Upstream, body: bytes, reason: str
) -> None:
    for headers, sent in (([], body), ([GZIP], gzip.compress(body))):
        reply = await ask(address, "POST", CHAT, [JSON, *headers], sent)
        assert (reply.status, reply.body, behind.calls[-1].body) == (200, OK_BODY, sent), reason


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ([GZIP], chat("not compressed")),
        ([GZIP], gzip.compress(chat("cut off"))[:-9]),
        ([(b"Content-Encoding", b"br")], b"whatever that is"),
        ([(b"Content-Encoding", b"gzip, gzip")], gzip.compress(gzip.compress(chat("twice")))),
    ],
)
async def test_what_cannot_be_decoded_here_is_the_upstreams_to_judge(
    address: str, behind: Upstream, headers: list[Header], body: bytes
) -> None:
    reply = await ask(address, "POST", CHAT, [JSON, *headers], body)
    assert (reply.status, behind.calls[0].body) == (200, body)
    assert reply.header(b"x-compaction") == b"bypass"


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/v1/responses"])
@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"Authorization", b"")],
        [(b"Authorization", b"Bearer")],
        [(b"Authorization", b"Bearer stranger")],
        [(b"Authorization", b"Bearer acme-ke")],
        [(b"Authorization", b"Bearer acme-key2")],
        [(b"Authorization", b"Basic acme-key")],
        [(b"Authorization", b"Bearer " + hashlib.sha256(b"acme-key").hexdigest().encode())],
        [(b"Authorization", "Bearer ключ".encode())],
        [(b"Authorization", b"Bearer \xff\xfe")],
        [(b"Authorization", b"Bearer " + b"k" * 30_000)],
        [(b"X-Api-Key", b"stranger")],
        [(b"Cookie", b"Authorization=acme-key")],
    ],
    ids=lambda headers: repr(headers)[:60],
)
async def test_strangers_are_refused_by_a_closed_proxy_all_in_the_same_words(
    closed: str, behind: Upstream, headers: list[Header], path: str
) -> None:
    reply = await ask(closed, "POST", path, [JSON, *headers], chat("a"))
    expected = Row("", b"", STRANGER, status=401, code="invalid_api_key")
    assert (reply.status, reply.json()) == (401, error(expected))
    assert reply.header(b"x-should-retry") == b"false"
    assert behind.calls == []


@pytest.mark.parametrize("path", [CHAT, "/v1/models"])
@pytest.mark.parametrize("header", [KEY, (b"authorization", b"bearer  acme-key "), (b"X-Api-Key", b"acme-key")])
async def test_a_closed_proxy_serves_whom_it_knows(closed: str, behind: Upstream, header: Header, path: str) -> None:
    assert (await ask(closed, "POST", path, [JSON, header], chat("a"))).status == 200
    assert len(behind.calls) == 1


async def test_a_closed_proxy_still_says_that_it_lives(closed: str) -> None:
    assert [(await ask(closed, "GET", path)).status for path in ("/livez", "/readyz")] == [200, 200]


@pytest.mark.parametrize(
    "raw",
    [
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: "
        b"chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: +2\r\n\r\n{}",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX : a\r\n\r\n",
        b"GET /v1/models HTTP/1.1\nHost: x\n\n",
        b"GET @evil.example/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT evil.example:443 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
    ],
    ids=repr,
)
async def test_what_is_no_http_ends_the_connection_and_reaches_no_upstream(
    address: str, behind: Upstream, raw: bytes
) -> None:
    async with connected(address) as client, asyncio.timeout(30):
        await client.send(raw)
        assert (await client.reply()).status == 400
        await client.gone()
    assert behind.calls == []


def test_every_error_here_is_json_as_openai_writes_it() -> None:
    for row in ROWS:
        assert set(json.loads(json.dumps(error(row)))["error"]) == {"message", "type", "param", "code"}
