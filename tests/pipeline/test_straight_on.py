"""Requests run straight on until they wait: what becomes of one is the same however it and its answer come."""

from __future__ import annotations

import asyncio
import gc
import gzip
import io
import json
import select
import socket
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from proxy.dialects.base import Usage
from proxy.dialects.reader import CountedRequest
from proxy.errors import ShuttingDownError
from proxy.pipeline.open_requests import OpenRequests
from proxy.pipeline.stages import Attempt, Received
from proxy.server.request_body import RequestBody
from proxy.telemetry.log import open_log
from tests.support.dialects import PLAIN, WRITERS, Writer, path_of, request_body, user
from tests.support.upstreams import (
    CHAT,
    CHUNKED,
    EVENTS,
    GZIP,
    JSON,
    OK_BODY,
    WAYS,
    Call,
    Client,
    Header,
    Reply,
    Script,
    Upstream,
    answer,
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
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path


pytestmark = pytest.mark.anyio

OK = answer(200, OK_BODY, JSON)
BEGUN = head(200, EVENTS, CHUNKED)
BILLED = Usage(1_234, 56)
WINDOW = [{"match": "*", "context_window": 1_000_000}]
OTHER_EACH_TIME = (b"x-compaction-overhead-ms", b"server-timing", b"x-concertina-request-id")
LONG = json.dumps({"error": {"message": "This model's maximum context length is 10 tokens.", "code": None}}).encode()
ERROR = json.dumps({"error": {"message": "no such model", "code": "model_not_found"}}).encode()


anyio_backend = backends(WAYS)


def living(*kinds: type) -> list[Any]:
    """Return all objects of some classes that the garbage collector tracks."""
    return [each for each in gc.get_objects() if isinstance(each, kinds)]


@dataclass
class Stage:
    address: str
    behind: Upstream
    log: io.BytesIO

    async def requests(self, number: int) -> list[dict[str, object]]:
        """What the log says of so many requests, and nothing of how long they took; the first one made a connection."""
        while self.log.getvalue().count(b'"event":"request"') <= number:  # noqa: ASYNC110 - a log tells nobody
            await asyncio.sleep(0)
        lines = map(json.loads, self.log.getvalue().splitlines())
        told = [line for line in lines if line["event"] == "request"][1:]
        return [
            {k: v for k, v in line.items() if k not in ("ts", "at", "id") and not k.endswith("ms")} for line in told
        ]


@asynccontextmanager
async def warm(folder: Path, script: Script, log: io.BytesIO | None = None, **more: object) -> AsyncIterator[Stage]:
    """The proxy with an idle connection to an upstream, which plays the script for all conversations."""

    async def played(call: Call) -> None:
        if call.target == "/v1/models":
            await call.read()
            await call.send(answer(200, b"{}", JSON))
        else:
            await script(call)

    async with upstream(played) as behind, asyncio.timeout(30):
        config = config_for(folder, behind.address, models=WINDOW, **more)
        log = log or io.BytesIO()
        async with serving(config, open_log("info", time.time, log)) as address:
            async with connected(address) as client:
                await client.ask("GET", "/v1/models")
            behind.calls.clear()
            yield Stage(address, behind, log)


def sends(*parts: bytes) -> Script:
    """Reads a request and sends these parts of an answer, one by one; closes where the last one is empty."""

    async def script(call: Call) -> None:
        await call.read()
        for part in parts:
            await call.send(part)
            await asyncio.sleep(0)
        if not parts[-1]:
            call.close()

    return script


ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}\n\n'


def length(size: int) -> tuple[bytes, bytes]:
    return b"Content-Length", b"%d" % size


def pieces(whole: bytes, size: int) -> list[bytes]:
    return [whole[at : at + size] for at in range(0, len(whole), size)]


STREAM = sends(head(200, EVENTS, CHUNKED), chunk(delta("a")), chunk(delta("b")), chunk(b""))
WHOLE = {
    "whole": sends(OK),
    "its head first": sends(OK[:20], OK[20:80], OK[80:]),
    "in pieces": sends(*(OK[at : at + 7] for at in range(0, len(OK), 7))),
    "in chunks at once": sends(head(200, JSON, CHUNKED) + chunk(OK_BODY) + chunk(b"")),
    "announced": sends(head(103), OK),
    "the last of its connection": sends(answer(200, OK_BODY, JSON, (b"Connection", b"close"))),
    "a stream that is there at once": sends(answer(200, delta("hi") + b"data: [DONE]\n\n", EVENTS)),
    "a stream": STREAM,
    "a stream of so many bytes": sends(head(200, EVENTS, length(200_000)), delta("a").ljust(200_000, b":")),
    "a stream of few bytes": sends(head(200, EVENTS, length(2 * len(delta("a")))), delta("a"), delta("b")),
    "a stream as long as the connection": sends(head(200, EVENTS), delta("a"), delta("b"), b""),
    "a stream in odd pieces": sends(*pieces(head(200, EVENTS, CHUNKED) + chunk(ROLE + delta("a")) + chunk(b""), 7)),
    "a stream that begins with a role": sends(head(200, EVENTS, CHUNKED) + chunk(ROLE), chunk(delta("a")), chunk(b"")),
    "a stream with its usage": sends(
        head(200, EVENTS, CHUNKED) + chunk(delta("a")), chunk(USAGE), chunk(b"data: [DONE]\n\n") + chunk(b"")
    ),
}
OTHERS = {
    "a compressed stream": sends(
        head(200, EVENTS, CHUNKED, GZIP), chunk(gzip.compress(delta("a"), mtime=0)), chunk(b"")
    ),
    "a stream that says it is over": sends(head(200, EVENTS, CHUNKED) + chunk(b"data: " + LONG + b"\n\n"), chunk(b"")),
    "a stream of nothing": sends(head(200, EVENTS, CHUNKED), chunk(ROLE), chunk(b"")),
    "a stream that ends before it begins": sends(head(200, EVENTS, CHUNKED), chunk(ROLE), b""),
    "a stream that ends inside an event": sends(head(200, EVENTS, CHUNKED), chunk(delta("a") + b"data: {"), b""),
    "in chunks one by one": sends(head(200, JSON, CHUNKED), chunk(OK_BODY[:30]), chunk(OK_BODY[30:]), chunk(b"")),
    "as long as the connection": sends(head(200, JSON), OK_BODY, b""),
    "larger than is waited for": sends(answer(200, OK_BODY[:-1] + b" " * 200_000 + b"}", JSON)),
    "compressed": sends(answer(200, gzip.compress(OK_BODY, mtime=0), JSON, GZIP)),
    "nothing in it": sends(answer(200, b"", JSON)),
    "no content": sends(head(204)),
    "a redirect": sends(answer(307, b"", (b"Location", b"/v1/elsewhere"))),
    "an overflow": sends(answer(400, LONG, JSON)),
    "an overflow that says 200": sends(answer(200, LONG, JSON)),
    "an error": sends(answer(404, ERROR, JSON)),
    "an error that says 200": sends(answer(200, ERROR, JSON)),
    "a failure": sends(answer(500, b"", JSON)),
    "cut off": sends(OK[:-5], b""),
    "a stream that is cut off": sends(head(200, EVENTS, CHUNKED), chunk(delta("a")), b""),
    "a stream that breaks off behind an event": sends(
        head(200, EVENTS, CHUNKED), chunk(delta("a")), chunk(delta("b")) + b"zz\r\n"
    ),
    "an error in Latin-1": sends(answer(404, b'{"error": {"message": "mod\xe8le inconnu"}}', JSON)),
    "closed": sends(b""),
    "no HTTP": sends(b"hello\r\n\r\n"),
}


async def found(folder: Path, script: Script, *at: int) -> tuple[Reply, list[bytes], list[dict[str, object]]]:
    """What the client gets, what the upstream got, and what the log says; a body comes in pieces that end `at`."""
    async with warm(folder, script) as stage, connected(stage.address) as client:
        await in_turns(client, cut(chat("hi", max_tokens=5), *at))
        reply = await client.reply()
        headers = [header for header in reply.headers if header[0] not in OTHER_EACH_TIME]
        sent = [call.body for call in stage.behind.calls]
        return Reply(reply.status, headers, reply.body, reply.complete), sent, await stage.requests(1)


@pytest.mark.parametrize("case", [*WHOLE, *OTHERS])
async def test_an_answer_is_the_same_for_a_request_that_had_to_be_waited_for(tmp_path: Path, case: str) -> None:
    script = (WHOLE | OTHERS)[case]
    assert await found(tmp_path, script) == await found(tmp_path, script, 5)


ODD = {
    "half an emoji": ([], rb'{"model":"m","messages":[{"role":"user","content":"\ud83d"}]}'),
    "a byte order mark": ([], b"\xef\xbb\xbf" + chat("hi")),
    "compressed": ([GZIP], gzip.compress(chat("hi"), mtime=0)),
    "no JSON": ([], b"{"),
    "another shape": ([], b'{"model":"m","messages":"hi"}'),
    "nothing": ([], b""),
    "a text in Chinese": ([], chat("你好，世界")),
}


@pytest.mark.parametrize("case", ODD)
async def test_an_odd_request_is_answered_the_same_if_it_had_to_be_waited_for(tmp_path: Path, case: str) -> None:
    async def answered(*at: int) -> tuple[int, bytes, list[bytes], list[dict[str, object]]]:
        headers, body = ODD[case]
        async with warm(tmp_path, sends(OK)) as stage, connected(stage.address) as client:
            await in_turns(client, cut(body, *at, headers=headers))
            reply = await client.reply()
            again = await client.ask("POST", CHAT, [JSON], chat("hi"))
            assert again.status == 200, "the connection goes on"
            return reply.status, reply.body, [call.body for call in stage.behind.calls], await stage.requests(2)

    assert await answered() == await answered(len(ODD[case][1]) // 2)


async def test_requests_of_one_connection_are_answered_in_turn(tmp_path: Path) -> None:
    async def script(call: Call) -> None:
        asked = json.loads(await call.read())["messages"][0]["content"]
        await call.send(answer(200, OK_BODY.replace(b"hi", asked.encode()), JSON))

    async with warm(tmp_path, script) as stage, connected(stage.address) as client:
        bodies = [chat(word) for word in ("one", "two", "three")]
        await client.send(b"".join(request("POST", CHAT, [(b"Host", b"proxy"), JSON], body) for body in bodies))
        replies = [await client.reply() for _ in bodies]
    assert [json.loads(r.body)["choices"][0]["message"]["content"] for r in replies] == ["one", "two", "three"]


async def test_each_request_of_a_connection_is_its_own_callers(tmp_path: Path) -> None:
    """What was worked out for one head holds for no other."""
    async with warm(tmp_path, sends(OK)) as stage, connected(stage.address) as client:
        sessions = set()
        for key, mode in ((b"a", b"on"), (b"a", b"on"), (b"b", b"on"), (b"b", b"off"), (b"a", b"no mode")):
            headers = [JSON, (b"Authorization", b"Bearer " + key), (b"x-compaction", mode)]
            reply = await client.ask("POST", CHAT, headers, chat("hi"))
            sessions.add((key, reply.header(b"x-compaction-session"), reply.header(b"x-compaction")))
            assert reply.status == (400 if mode == b"no mode" else 200)
        keys = [call.header(b"authorization") for call in stage.behind.calls]
    assert keys == [b"Bearer a", b"Bearer a", b"Bearer b", b"Bearer b"]
    assert len({session for _, session, _ in sessions}) == 3
    assert {outcome for _, _, outcome in sessions} == {b"none", b"bypass", None}


@pytest.mark.parametrize(
    ("limits", "status", "code"),
    [
        ({"server": {"request_deadline": "1s"}}, 504, "request_deadline"),
        ({"main": {"idle_timeout": "1s"}}, 504, "upstream_timeout"),
        ({"main": {"total_timeout": "1s"}}, 504, "upstream_timeout"),
    ],
)
async def test_an_answer_that_does_not_come_is_given_up(
    tmp_path: Path, limits: dict[str, object], status: int, code: str
) -> None:
    async def script(call: Call) -> None:
        await call.read()
        await call.gone()

    async with warm(tmp_path, script, **limits) as stage, connected(stage.address) as client:
        reply = await client.ask("POST", CHAT, [JSON], chat("hi"))
        assert (reply.status, json.loads(reply.body)["error"]["code"]) == (status, code)
        assert (await client.ask("GET", "/livez")).status == 200


def kept(init: Callable[..., None], made: list[OpenRequests]) -> Callable[..., None]:
    def initialize(requests: OpenRequests) -> None:
        init(requests)
        made.append(requests)

    return initialize


async def test_the_end_of_the_process_is_told_to_what_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(call: Call) -> None:
        await call.read()
        came.set()
        await call.gone()

    async def reply(client: Client) -> Reply:
        return await client.ask("POST", CHAT, [JSON], chat("hi"))

    came = asyncio.Event()
    opened: list[OpenRequests] = []
    monkeypatch.setattr(OpenRequests, "__init__", kept(OpenRequests.__init__, opened))
    async with warm(tmp_path, script) as stage, connected(stage.address) as client:
        asked = asyncio.create_task(reply(client))
        await came.wait()
        opened[-1].end(ShuttingDownError())
        answered = await asked
        assert (answered.status, json.loads(answered.body)["error"]["code"]) == (503, "server_shutting_down")


async def test_what_has_no_room_is_refused_and_makes_room_again(tmp_path: Path) -> None:
    async with warm(tmp_path, sends(OK), server={"max_requests": 1}) as stage, connected(stage.address) as client:
        for _ in range(3):
            assert (await client.ask("POST", CHAT, [JSON], chat("hi"))).status == 200


async def test_a_fault_of_ours_breaks_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> object:
        raise KeyError("a fault of ours")

    places = (
        "sender.label_of",
        "prepare.routed_request",
        "attempts.inspect_response",
        "pipeline.headers_of",
        "pipeline.ended_event",
    )
    for place in (f"proxy.pipeline.{place}" for place in places):
        with monkeypatch.context() as patched:
            patched.setattr(place, broken)
            async with warm(tmp_path, sends(OK)) as stage, connected(stage.address) as client:
                reply = await client.ask("POST", CHAT, [JSON], chat("hi"))
                assert (reply.status, reply.body) == (200, OK_BODY)
                assert len(stage.behind.calls) == (2 if place.endswith("inspect_response") else 1)
                assert b"failed_open" in stage.log.getvalue()


def long(*more: str, size: int = 6_500) -> bytes:
    """A history of 130 kB, or of twenty times `size`."""
    said = [*(f"{number}:" + " " * size + "." for number in range(20)), *more]
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": each} for each in said]}).encode()


def cut(body: bytes, *at: int, headers: Sequence[Header] = ()) -> list[bytes]:
    """A request, in pieces: with so many bytes of its body."""
    whole = request("POST", CHAT, [(b"Host", b"proxy"), JSON, *headers], body)
    ends = [len(whole) - len(body) + each for each in at]
    return [whole[first:last] for first, last in zip([0, *ends], [*ends, len(whole)], strict=True)]


async def in_turns(client: Client, pieces: list[bytes]) -> None:
    for piece in pieces:
        await client.send(piece)
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("size", "at"),
    [(6_500, (0,)), (6_500, (1,)), (6_500, (70_000,)), (6_500, (0, 1, 65_536, 131_000)), (130_000, (1,))],
)
async def test_a_large_body_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, at: tuple[int, ...]
) -> None:
    bodies = [long(*"abc"[: number + 1], size=size) for number in range(3)]

    async def answered(*at: int) -> tuple[list[Reply], list[bytes], list[dict[str, object]]]:
        replies = []
        async with warm(tmp_path, sends(OK)) as stage, connected(stage.address) as client:
            for body in bodies:
                await in_turns(client, cut(body, *at))
                reply = await client.reply()
                replies.append(Reply(reply.status, reply.headers[:1], reply.body, reply.complete))
            return replies, [call.body for call in stage.behind.calls], await stage.requests(3)

    in_pieces = await answered(*at)
    assert in_pieces[1] == bodies
    assert in_pieces == await answered()


async def test_a_large_body_that_is_answered_before_it_is_sent_leaves_the_connection_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's; the upstream's has the rest of the body on it."""
    # A busy machine may take longer than an idle connection is kept.
    monkeypatch.setattr("proxy.upstreams.wire.pool._KEEP_IDLE_S", 60.0)

    async def early(call: Call) -> None:
        await call.send(answer(200, OK_BODY, JSON))
        await call.gone()

    async with warm(tmp_path, sends(OK)) as stage, connected(stage.address) as client:
        for number, script in enumerate((sends(OK), early, sends(OK)), start=1):
            stage.behind.play(script)
            await in_turns(client, cut(long(*"abc"[:number], size=400_000), 1))
            reply = await client.reply()
            assert (reply.status, reply.body) == (200, OK_BODY)
        assert stage.behind.connections == 2


@pytest.mark.parametrize("is_small", [True, False], ids=["in callbacks", "in a task"])
@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.dialect.name)
async def test_a_client_that_hangs_up_with_the_last_event_has_its_answer(
    tmp_path: Path, writer: Writer, *, is_small: bool
) -> None:
    events = [*writer.events("Fine.", BILLED), *([b"[DONE]"] if writer.dialect.name == "chat" else [])]

    async def script(call: Call) -> None:
        await call.read()
        await call.send(BEGUN + b"".join(chunk(b"data: " + event + b"\n\n") for event in events))
        await call.gone()

    said = "hi" if is_small else "word " * 40_000
    asked = {**writer.fields(), "stream": True}
    body = json.dumps(request_body(writer.dialect, "You code.", writer.items(user(said), PLAIN), asked)).encode()
    async with warm(tmp_path, script) as stage:
        async with connected(stage.address) as client:
            await client.send(request("POST", path_of(writer.dialect), [(b"Host", b"proxy"), JSON], body))
            await client.head()
            received = b""
            async for part in client.chunks():
                received += part
                if received.endswith(events[-1] + b"\n\n"):
                    break
        (line,) = await stage.requests(1)
    assert (line["end"], line["billed"], line["output"]) == ("complete", BILLED.prompt_tokens, BILLED.completion_tokens)


async def test_what_comes_behind_a_body_is_the_next_request(tmp_path: Path) -> None:
    async with warm(tmp_path, sends(OK)) as stage, connected(stage.address) as client:
        await in_turns(client, cut(chat("one")))
        await client.reply()
        first, second = b"".join(cut(chat("two"))), b"".join(cut(chat("three")))
        await in_turns(client, [first[:-3], first[-3:] + second[:40], second[40:]])
        assert [(await client.reply()).status for _ in range(2)] == [200, 200]
        assert [call.body for call in stage.behind.calls] == [chat("one"), chat("two"), chat("three")]


@pytest.mark.parametrize("is_repeated", [False, True])
async def test_a_body_that_does_not_come_leaves_its_place(tmp_path: Path, *, is_repeated: bool) -> None:
    async with warm(tmp_path, sends(OK), server={"max_requests": 1}) as stage:
        async with connected(stage.address) as client:
            if is_repeated:
                await client.ask("POST", CHAT, [JSON], chat("hi"))
            await in_turns(client, cut(chat("hi"), 5)[:1])
        told = await stage.requests(1 + is_repeated)
        assert told[-1]["end"] == "client_gone"
        async with connected(stage.address) as client:
            assert (await client.ask("POST", CHAT, [JSON], chat("hi"))).status == 200


async def test_a_body_that_is_not_there_at_the_end_of_the_process_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[OpenRequests] = []
    monkeypatch.setattr(OpenRequests, "__init__", kept(OpenRequests.__init__, opened))
    async with warm(tmp_path, sends(OK)) as stage, connected(stage.address) as client:
        await client.send(cut(chat("hi"), 5)[0])
        while not opened[-1]._open:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        opened[-1].end(ShuttingDownError())
        answered = await client.reply()
        assert (answered.status, json.loads(answered.body)["error"]["code"]) == (503, "server_shutting_down")


async def test_what_is_too_large_is_refused_before_it_has_come(tmp_path: Path) -> None:
    server = {"max_body_bytes": 2_000}
    async with warm(tmp_path, sends(OK), server=server) as stage, connected(stage.address) as client:
        await client.send(cut(long(), 0)[0])
        assert (await client.reply()).status == 413


async def test_a_stream_of_few_bytes_is_passed_on_as_it_comes(tmp_path: Path) -> None:
    async def script(call: Call) -> None:
        await call.read()
        await call.send(head(200, EVENTS, length(2 * len(delta("a")))) + delta("a"))
        await go_on.wait()
        await call.send(delta("b"))

    go_on = asyncio.Event()
    async with warm(tmp_path, script) as stage, connected(stage.address) as client:
        await client.send(request("POST", CHAT, [(b"Host", b"proxy"), JSON], chat("hi", stream=True)))
        assert await client.head() == 200
        chunks = client.chunks()
        assert await anext(chunks) == delta("a")
        go_on.set()
        assert [chunk async for chunk in chunks] == [delta("b")]


async def test_a_stream_waits_for_a_client_that_reads_slowly(tmp_path: Path) -> None:
    async def script(call: Call) -> None:
        await call.read()
        await call.send(head(200, EVENTS, CHUNKED))
        for _ in range(number):
            await call.send(chunk(event))
            sent.append(len(event))
        await call.send(chunk(b""))

    event, number, sent = delta("x" * 50_000), 600, list[int]()
    async with warm(tmp_path, script) as stage:
        reader, writer = await asyncio.open_connection(*stage.address.removeprefix("http://").split(":"))
        writer.write(b"".join(cut(chat("hi"))))
        before = -1
        while before < len(sent) or not sent:  # until nothing is taken any more
            before = len(sent)
            await asyncio.sleep(0.2)
        assert len(sent) < number
        received = bytearray()
        while not received.endswith(b"\r\n0\r\n\r\n"):
            received += await reader.read(1_000_000)
        writer.close()
        assert received.partition(b"\r\n\r\n")[2].count(b"x") == event.count(b"x") * number


@pytest.mark.parametrize("said", [b"", BEGUN + chunk(ROLE), BEGUN + chunk(delta("a"))])
async def test_a_client_that_leaves_ends_what_is_done_for_it(tmp_path: Path, said: bytes) -> None:
    async def script(call: Call) -> None:
        await call.read()
        await call.send(said)
        came.set()
        await call.gone()
        ended.set()

    came, ended = asyncio.Event(), asyncio.Event()
    async with warm(tmp_path, script) as stage:
        async with connected(stage.address) as client:
            await client.send(b"".join(cut(chat("hi"))))
            await came.wait()
            for _ in range(20):
                await asyncio.sleep(0)
        await ended.wait()
        assert [line["end"] for line in await stage.requests(1)] == ["client_gone"]


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"server": {"request_deadline": "1s"}}, b"request_deadline"),
        ({"main": {"idle_timeout": "1s"}}, b"cut off"),
    ],
)
async def test_a_stream_that_does_not_go_on_is_ended_with_an_error(
    tmp_path: Path, limits: dict[str, object], code: bytes
) -> None:
    async def script(call: Call) -> None:
        await call.read()
        await call.send(head(200, EVENTS, CHUNKED) + chunk(delta("a")))
        await call.gone()

    async with warm(tmp_path, script, **limits) as stage, connected(stage.address) as client:
        reply = await client.ask("POST", CHAT, [JSON], chat("hi"))
        assert (reply.status, reply.complete) == (200, False)
        assert reply.body.startswith(delta("a"))
        assert code in reply.body


async def test_a_stream_that_announces_itself_for_long_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(call: Call) -> None:
        await call.read()
        await call.send(head(200, EVENTS, CHUNKED) + chunk(ROLE))
        await seen.wait()
        await call.send(chunk(delta("a")) + chunk(b""))

    seen = asyncio.Event()
    monkeypatch.setattr("proxy.pipeline.answers._MAX_HOLD_S", 0.01)
    async with warm(tmp_path, script) as stage, connected(stage.address) as client:
        await client.send(b"".join(cut(chat("hi"))))
        assert await client.head() == 200
        chunks = client.chunks()
        assert await anext(chunks) == ROLE
        seen.set()
        assert [chunk async for chunk in chunks] == [delta("a")]


@pytest.mark.usefixtures("only_new_objects")
async def test_nothing_is_kept_of_what_was_answered(tmp_path: Path) -> None:
    """An idle connection keeps nothing, and no cycle needs the garbage collector."""

    async def script(call: Call) -> None:
        stream = [head(200, EVENTS, CHUNKED) + chunk(delta("a")), chunk(delta("b")), chunk(b"")]
        for part in stream if b"stream" in await call.read() else [OK]:
            await call.send(part)
            await asyncio.sleep(0)

    async with warm(tmp_path, script) as stage, connected(stage.address) as client:
        gc.collect()
        gc.disable()
        try:
            for more in ({}, {"stream": True}, {}):
                assert (await client.ask("POST", CHAT, [JSON], chat("hi" * 10_000, **more))).status == 200
            for _ in range(20):
                await asyncio.sleep(0)
            assert not living(RequestBody, Attempt, Received)
        finally:
            gc.enable()


@pytest.mark.usefixtures("only_new_objects")
@pytest.mark.parametrize("how", ["invalid", "too_large", "closed", "refused", "leaves"])
async def test_nothing_is_kept_of_what_has_failed(tmp_path: Path, how: str) -> None:
    """An error with a reference to its frames would keep a body of any size until the garbage collector runs."""

    async def script(call: Call) -> None:
        await call.read()
        came.set()
        if how == "leaves":
            await asyncio.Event().wait()
        elif how == "closed":
            call.close()
        else:
            await call.send(answer(429, b"{}", JSON))

    came = asyncio.Event()
    text = "8,y;" * (40_000 if how == "too_large" else 10_000)
    body = chat(text)[:-5] if how == "invalid" else chat(text)
    async with warm(tmp_path, script, server={"max_body_bytes": 100_000}) as stage:
        gc.collect()
        gc.disable()
        try:
            for _ in range(2):
                async with connected(stage.address) as client:
                    await client.send(b"".join(cut(body)))
                    if how == "leaves":
                        await came.wait()
                    else:
                        await client.reply()
            await stage.requests(2)  # a client that left is noticed a little later
            for _ in range(40):
                await asyncio.sleep(0)
            assert not living(Received)
        finally:
            gc.enable()


@pytest.mark.usefixtures("only_new_objects")
async def test_what_was_read_of_a_request_that_is_refused_is_not_kept(tmp_path: Path) -> None:
    async def script(call: Call) -> None:
        await call.read()
        came.set()
        await go.wait()
        await call.send(OK)

    came, go = asyncio.Event(), asyncio.Event()
    server = {"max_requests": 1}
    async with (
        warm(tmp_path, script, server=server) as stage,
        connected(stage.address) as first,
        connected(stage.address) as second,
    ):
        await first.send(b"".join(cut(chat("hi"))))
        await came.wait()
        reply = await second.ask("POST", CHAT, [JSON], chat("8,y;" * 10_000))
        assert reply.status == 503
        gc.collect()
        assert not [each for each in living(CountedRequest) if b"8,y;8,y;" in each.body]
        go.set()
        assert (await first.reply()).status == 200


async def test_a_place_is_kept_while_a_body_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other request takes it, and it is given back."""
    opened: list[OpenRequests] = []
    monkeypatch.setattr(OpenRequests, "__init__", kept(OpenRequests.__init__, opened))
    server = {"max_requests": 1}
    async with (
        warm(tmp_path, sends(OK), server=server) as stage,
        connected(stage.address) as slow,
        connected(stage.address) as other,
    ):
        first, second = cut(chat("hi"), 5)
        await slow.send(first)
        while not opened[-1]._open:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        for _ in range(3):
            assert (await other.ask("POST", CHAT, [JSON], chat("hi"))).status == 503
        await slow.send(second)
        assert (await slow.reply()).status == 200
        assert (await other.ask("POST", CHAT, [JSON], chat("hi"))).status == 200


class SeenFrom(io.BytesIO):
    """A log that notes whether its reader had something to read when a line was written."""

    def __init__(self) -> None:
        super().__init__()
        self.reader: socket.socket | None = None
        self.had_come: list[bool] = []

    def write(self, line: bytes) -> int:  # type: ignore[override]
        if self.reader is not None:
            self.had_come.append(bool(select.select([self.reader], [], [], 0)[0]))
        return super().write(line)


async def test_a_client_has_its_answer_before_anything_is_told(tmp_path: Path) -> None:
    log = SeenFrom()
    async with warm(tmp_path, sends(OK), log) as stage:
        host, _, port = stage.address.rpartition("/")[2].partition(":")
        with socket.create_connection((host, int(port))) as log.reader:
            log.reader.sendall(request("POST", CHAT, [(b"Host", b"p")], chat("hi")))
            await stage.requests(1)
            log.reader = None
    assert log.had_come == [True]
