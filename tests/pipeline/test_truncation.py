"""An answer that breaks off upstream never looks complete to the client."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import httpx
import openai
import pytest

from tests.support.upstreams import (
    CHAT,
    CHUNKED,
    EVENTS,
    GZIP,
    JSON,
    OK_BODY,
    WAYS,
    Call,
    Header,
    Reply,
    Script,
    Upstream,
    always,
    ask,
    backends,
    chat,
    chunk,
    delta,
    event,
    head,
    proxied,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


pytestmark = [pytest.mark.anyio, pytest.mark.slow]

FINISH = event({"id": "c1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
STREAM = delta("Hello") + delta(" 你好") + FINISH + b"data: [DONE]\n\n"
BOUNDARIES = [i for i in range(1, len(STREAM)) if STREAM[:i].endswith(b"\n\n")]
LENGTH = (b"Content-Length", b"100000")
CUT_OFF = {
    "message": "The upstream's response was cut off.",
    "type": "server_error",
    "param": None,
    "code": "upstream_unreachable",
}


anyio_backend = backends(WAYS)


@pytest.fixture(scope="module")
async def both(anyio_backend: object, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[str, Upstream]]:
    """One proxy for nearly all tests here."""
    async with proxied(tmp_path_factory.mktemp("proxy"), always(b"")) as (address, behind):
        yield address, behind


def broken(
    content: bytes, *headers: Header, end: Callable[[Call], None] = Call.close, status: int = 200, missing: int = 0
) -> Script:
    """Sends so much, of more that was promised, and ends the connection; `missing` bytes of the chunk's own end."""

    async def script(call: Call) -> None:
        await call.read()
        framed = chunk(content)[: -missing or None] if CHUNKED in headers and content else content
        await call.send(head(status, *headers) + framed)
        end(call)

    return script


def silent(content: bytes, *headers: Header) -> Script:
    """Sends so much and then nothing."""

    async def script(call: Call) -> None:
        await call.read()
        await call.send(head(200, *headers) + chunk(content))
        await call.gone()

    return script


async def asked(both: tuple[str, Upstream], script: Script, path: str = CHAT) -> Reply:
    both[1].script = script
    return await ask(both[0], "POST", path, [JSON], chat("hi", stream=True))


def added(reply: Reply, sent: bytes) -> bytes:
    """What the client got beyond the upstream's bytes."""
    assert not reply.complete, (reply.status, reply.body, sent)
    assert sent.startswith(reply.body) or reply.body.startswith(sent)
    return reply.body[len(sent) :]


@pytest.mark.parametrize(("end", "missing"), [(Call.close, 0), (Call.reset, 2)])
async def test_a_stream_cut_at_any_byte_is_no_complete_answer(
    both: tuple[str, Upstream], end: Callable[[Call], None], missing: int
) -> None:
    for cut in range(len(STREAM)):
        reply = await asked(both, broken(STREAM[:cut], EVENTS, CHUNKED, end=end, missing=missing))
        if reply.status == 502:
            assert not any(boundary <= cut for boundary in BOUNDARIES) or end is Call.reset
            assert json.loads(reply.body)["error"]["code"] == "upstream_unreachable"
        else:
            more = added(reply, STREAM[:cut])
            assert not more or reply.body[: -len(more)].endswith(b"\n\n")


@pytest.mark.parametrize("cut", BOUNDARIES)
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_between_two_events_the_cut_is_told_in_one_of_openais_shape(
    both: tuple[str, Upstream], cut: int, path: str
) -> None:
    reply = await asked(both, broken(STREAM[:cut], EVENTS, CHUNKED), path)
    told = added(reply, STREAM[:cut])
    assert told.startswith(b"data: ")
    assert told.endswith(b"\n\n")
    assert json.loads(told[len(b"data: ") :]) == {"error": CUT_OFF}


@pytest.mark.parametrize("ending", [b"\r\n\r\n", b"\r\r", b"\n\n"])
async def test_events_end_in_any_of_three_ways(both: tuple[str, Upstream], ending: bytes) -> None:
    sent = b"data: {}" + ending
    assert added(await asked(both, broken(sent, EVENTS, CHUNKED)), sent).startswith(b'data: {"error"')


@pytest.mark.parametrize(
    ("sent", "headers", "reason"),
    [
        (STREAM[: BOUNDARIES[0] + 9], (EVENTS, CHUNKED), "in the middle of an event"),
        (STREAM[: BOUNDARIES[0]] + b"\n", (EVENTS, LENGTH), "a length was promised: what is missing shows by itself"),
        (gzip.compress(STREAM)[:-8], (EVENTS, GZIP, CHUNKED), "inside a compressed content"),
        (OK_BODY[:50], (JSON, CHUNKED), "JSON"),
        (OK_BODY[:50], (JSON, LENGTH), "JSON with a length"),
        (b"data: {}\n\n", ((b"Content-Type", b"text/plain"), CHUNKED), "no event stream"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_elsewhere_nothing_is_added_and_the_end_is_missing(
    both: tuple[str, Upstream], sent: bytes, headers: tuple[Header, ...], reason: str, path: str
) -> None:
    reply = await asked(both, broken(sent, *headers), path)
    assert added(reply, sent) == b"", reason
    assert reply.body


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (broken(b"", EVENTS, CHUNKED), "no byte of a stream"),
        (broken(b"data: {", EVENTS, CHUNKED), "no whole event"),
        (broken(b": ping\n\n", EVENTS, CHUNKED), "no event but a comment"),
        (broken(b"", JSON, LENGTH), "no byte of an answer"),
        (broken(b'{"error":{"mess', JSON, CHUNKED, status=400), "half an error"),
        (broken(b'{"error":{"mess', JSON, LENGTH, status=500), "half an error with a length"),
        (broken(b'{"error":{"mess', JSON, CHUNKED), "half an error under status 200"),
    ],
)
async def test_what_breaks_off_before_the_client_got_any_of_it_is_a_bad_gateway(
    both: tuple[str, Upstream], script: Script, reason: str
) -> None:
    reply = await asked(both, script)
    assert (reply.status, reply.complete) == (502, True), reason
    assert reply.json() == {
        "error": {**CUT_OFF, "message": "The upstream closed the connection in the middle of its response."}
    }


async def test_an_upstream_that_falls_silent_is_cut_off_like_one_that_went_away(tmp_path: Path) -> None:
    sent = STREAM[: BOUNDARIES[0]]
    async with proxied(tmp_path, always(b""), main={"idle_timeout": 0.2}) as both:
        assert added(await asked(both, silent(sent, EVENTS, CHUNKED)), sent).startswith(b'data: {"error"')


FAILURES = (openai.APIError, httpx.HTTPError, json.JSONDecodeError)


async def streamed(address: str) -> str:
    """The text of a stream that the SDK takes for complete."""
    async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        return "".join([piece.choices[0].delta.content or "" async for piece in stream])


@pytest.mark.parametrize("end", [Call.close, Call.reset])
@pytest.mark.parametrize("headers", [(EVENTS, CHUNKED), (EVENTS, LENGTH)], ids=["chunks", "length"])
async def test_the_sdk_never_takes_a_broken_stream_for_complete(
    both: tuple[str, Upstream], end: Callable[[Call], None], headers: tuple[Header, ...]
) -> None:
    done = STREAM.index(b"data: [DONE]")
    for cut in sorted({*range(0, done, 37), *(boundary for boundary in BOUNDARIES if boundary <= done)}):
        both[1].script = broken(STREAM[:cut], *headers, end=end)
        with pytest.raises(FAILURES):
            await streamed(both[0])


async def test_the_sdk_never_takes_a_broken_answer_for_complete(both: tuple[str, Upstream]) -> None:
    for headers in ((JSON, CHUNKED), (JSON, LENGTH)):
        both[1].script = broken(OK_BODY, *headers)
        async with openai.AsyncOpenAI(base_url=f"{both[0]}/v1", api_key="k", max_retries=0) as client:
            with pytest.raises(FAILURES):
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])


async def test_the_sdk_reads_a_whole_stream(both: tuple[str, Upstream]) -> None:
    both[1].script = always(head(200, EVENTS, CHUNKED) + chunk(STREAM) + chunk(b""))
    assert await streamed(both[0]) == "Hello 你好"
