"""What would hold up everybody is known before anything is made of a body's bytes, and relayed as it came."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import Raw

from policies.authorship.arguments import MOST_BRACKETS, UnreadError, read
from proxy.dialects import bounds, json_array, surrogates, table
from proxy.dialects.chat.canonical import message_digest
from proxy.errors import InvalidJSONError
from proxy.server import content_coding
from tests.support.model_server import ModelServer
from tests.support.stages import outcome, stage
from tests.support.upstreams import CHAT, JSON, OK_BODY, Call, Header, answer, ask, connected, in_turn, proxied, request

pytestmark = pytest.mark.anyio

MANY = bounds.MOST_COMMAS + 2


def of_messages(values: bytes) -> bytes:
    return b'{"model":"m","messages":[' + values + b"]}"


def said(text: bytes) -> bytes:
    return of_messages(b'{"role":"user","content":"' + text + b'"}')


@pytest.mark.parametrize(
    ("body", "readable"),
    [
        (of_messages(b"1," * MANY + b"1"), False),
        (of_messages(b"{}," * MANY + b"{}"), False),
        (b'{"model":' + b"[" + b"[]," * MANY + b"[]]}", False),
        (said(b"a,b," * MANY), True),
        (said(rb"\"a\",\"b\"," * (MANY // 2)), True),
        (said(b"1," * 5_000_000), False),
        (said(b"a" * (bounds.MOST_READ - 100)), True),
        (said(b"a" * bounds.MOST_READ), False),
        (said(rb"\n" * (bounds.MOST_READ // 4)), False),
        (of_messages(b"1," * 100_000), True),
        (b'{"messages":[' + b"1," * MANY + b'"not closed \\', False),
        (said(b"a,b," * MANY).removesuffix(b'"}]}'), True),
    ],
    ids=[
        "numbers",
        "objects",
        "a list for a model",
        "commas in a text",
        "quotes and commas in a text",
        "so many that nobody looks",
        "large",
        "too large",
        "escapes",
        "small",
        "numbers before a text without an end",
        "commas in a text without an end",
    ],
)
def test_bodies_that_are_read(body: bytes, readable: bool) -> None:
    assert (bounds.bound_over(body) is None) == readable


HOSTILE: dict[str, Callable[[], bytes]] = {
    "numbers as messages": lambda: of_messages(b"1," * 5_000_000 + b"1"),
    "objects as messages": lambda: of_messages(b"{}," * 3_000_000 + b"{}"),
    "arrays as the model": lambda: b'{"messages":[{}],"model":[' + b"[]," * 3_000_000 + b"[]]}",
    "surrogates": lambda: said(rb"\ud83d" * 1_500_000),
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
async def test_a_hostile_body_takes_little_more_memory_than_its_bytes(
    tmp_path: Path, make: Callable[[], bytes]
) -> None:
    body = make()
    packed = gzip.compress(body, 1)
    async with stage(tmp_path, ModelServer(window=None)) as play:
        tracemalloc.start()
        try:
            reply = await play.send(packed, (b"content-encoding", b"gzip"))
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (reply.status, outcome(reply)) == (200, ("bypass", "unknown_shape"))
        assert play.sent[-1].body == packed
        assert most < 4 * len(body) + 10_000_000


def test_what_unpacks_to_far_more_than_came_is_not_kept() -> None:
    packed = gzip.compress(bytes(60_000_000))
    tracemalloc.start()
    try:
        assert content_coding.unpack(packed, b"gzip", bounds.most_unpacked(len(packed)), 64_000_000) is None
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
    with pytest.raises(content_coding.TooLargeError):
        content_coding.unpack(packed, b"gzip", bounds.most_unpacked(len(packed)), 50_000_000)


def test_what_stands_behind_a_compressed_body_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """zlib copies it again for every piece that follows: 60 MB took 12 s."""
    pieces = 0

    class Counting:
        def __init__(self, wbits: int) -> None:
            self._inflater = decompressobj(wbits)

        def decompress(self, content: bytes, most: int) -> bytes:
            nonlocal pieces
            pieces += 1
            return self._inflater.decompress(content, most)

        def __getattr__(self, name: str) -> object:
            return getattr(self._inflater, name)

    decompressobj = content_coding.zlib.decompressobj
    monkeypatch.setattr(content_coding.zlib, "decompressobj", Counting)
    packed = gzip.compress(b"{}")
    for behind in (b"x", bytes(1_000_000), packed):
        with pytest.raises(content_coding.UndecodableError):
            content_coding.unpack(packed + behind, b"gzip", 1_000, 1_000)
    assert pieces == 3
    read = content_coding.decoder(b"gzip", 1_000)
    assert read is not None
    assert read(packed) == b"{}"
    for _ in range(3):
        with pytest.raises(content_coding.UndecodableError):
            read(bytes(100_000))
    assert pieces == 4


@pytest.mark.parametrize(
    ("size", "most"),
    [(100, bounds.MOST_SKIPPED + 10_000), (10_000, bounds.MOST_SKIPPED + 1_000_000), (10**7, bounds.MOST_READ)],
)
def test_a_text_may_become_a_hundred_times_as_long(size: int, most: int) -> None:
    assert bounds.most_unpacked(size) == most


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (b'{"model":"m","messages":[%s]}', "m"),
        (b'{"messages":[%s],"model":"m","n":1}', "m"),
        (b'{"messages":[%s,{"content":"\\"model\\":\\"x\\""}], "model" : "m" }', "m"),
        (b'{"model":"m","messages":[%s],"metadata":{"model":"x"}}', "m"),
        (b'{"messages":[%s],"model":7}', ""),
        (b'{"messages":[%s]}', ""),
        (b'{"tool":{"model":"x"},"messages":[%s],"model":"m"}', "m"),
        (b'{"model":"x","messages":[%s],"model":"m"}', "m"),
        (b'{"model":"x","model":"m","messages":[%s]}', "m"),
        (b'{"model":"x","messages":[%s],"mod\\u0065l":"m"}', "m"),
        (b'{"model":"x","\\u006dodel":"m","messages":[%s]}', "m"),
        (b'{"model":"m","messages":[%s,{"input":{"model":"x"}}]}', "m"),
        (b'{"model":"m\\u002d1","messages":[%s]}', "m-1"),
    ],
)
def test_the_model_of_a_body_that_is_not_read(body: bytes, model: str) -> None:
    assert json_array.model_of(body % (b"1," * 3_000_000 + b"1")) == model
    assert json_array.model_of(body % b"1") == model
    assert json_array.model_of(body % (b"1," * 5_000_000 + b"1")) == model


def test_a_message_that_is_too_large_to_be_decoded_is_none_of_a_conversation() -> None:
    assert json_array.is_crowded(b'{"content":"' + b"a" * bounds.MOST_OF_MESSAGE + b'"}')
    assert not json_array.is_crowded(b'{"content":"' + b"a" * 1_000_000 + b'"}')


def test_a_long_word_in_a_short_ones_place_is_not_read() -> None:
    parsed = json_array.parse(of_messages(b"{}").replace(b'"m"', b'"' + b"m" * 10_000 + b'"'), table.CHAT.array)
    assert parsed is not None
    assert json_array.scalar(parsed.envelope.fields["model"]) == []
    assert json_array.text_at(parsed.envelope.fields["model"], ()) is None
    assert json_array.scalar(Raw(b"9" * 5_000)) == [], "more digits than Python reads"


def test_megabytes_of_whitespace_are_not_passed_over() -> None:
    assert json_array.parse(of_messages(b" " * 60_000 + b"{}"), table.CHAT.array) is not None
    assert json_array.parse(of_messages(b" " * 100_000 + b"{}"), table.CHAT.array) is None


def test_surrogates_that_are_too_many_to_be_looked_at() -> None:
    assert surrogates.has_many(rb"\ud83d" * (bounds.MOST_SURROGATES + 1))
    assert not surrogates.has_many(rb"\ud83d" * 1_000 + b"a" * 1_000_000)
    with pytest.raises(InvalidJSONError, match="too many lone surrogates"):
        json_array.members_of(rb'{"a": "%b"}' % (rb"\ud83d" * (bounds.MOST_SURROGATES + 1)))


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ('{"a": [1]}', {"a": [1]}),
        ("[" + "{}," * (MOST_BRACKETS - 2) + "{}]", [{}] * (MOST_BRACKETS - 1)),
        ('"' + "a," * 90_000 + '"', "a," * 90_000),
    ],
    ids=["small", "as many as are read", "a long text"],
)
def test_arguments_that_are_read(arguments: str, value: object) -> None:
    assert read(arguments) == value


@pytest.mark.parametrize(
    "arguments",
    ["", "{", "[" * 5_000, "[" + "{}," * MOST_BRACKETS + "{}]", "[" + "1," * 300_000 + "1]", '"\ud83d"'],
    ids=["empty", "broken", "deep", "objects", "numbers", "half an emoji"],
)
def test_arguments_that_are_not_read(arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnreadError):
        read(arguments)


def test_arguments_that_are_not_read_are_told_apart_all_the_same() -> None:
    def digest(arguments: str) -> bytes:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
        return message_digest({"role": "assistant", "tool_calls": [call]})

    many = "[" + "{}," * MOST_BRACKETS
    assert digest(many + "1]") == digest(many + "1]")
    assert digest(many + "1]") != digest(many + "2]")


PLAIN = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a" * 40_000}]}).encode()
BODIES: dict[str, tuple[bytes, list[Header]]] = {
    "plain": (PLAIN, []),
    "packed": (gzip.compress(PLAIN), [(b"Content-Encoding", b"gzip")]),
}


@pytest.mark.parametrize(("body", "coding"), BODIES.values(), ids=BODIES)
async def test_bodies_together_are_bounded_and_the_next_one_is_told_to_come_back(
    tmp_path: Path, body: bytes, coding: list[Header]
) -> None:
    """The first two wait for the upstream with their bodies held; the third is one too many, until one has ended."""
    released = asyncio.Event()

    async def held(call: Call) -> None:
        await call.read()
        await released.wait()
        await call.send(answer(200, OK_BODY, JSON))

    server = {"max_buffered_bytes": 100_000, "max_body_bytes": 50_000}
    async with proxied(tmp_path, held, server=server) as (address, behind):
        async with connected(address) as first, connected(address) as second:
            for client in (first, second):
                await client.send(request("POST", CHAT, [(b"Host", b"proxy"), JSON, *coding], body))
            while len(behind.calls) < 2:  # noqa: ASYNC110 - an upstream that is played tells nobody
                await asyncio.sleep(0)
            refused = await ask(address, "POST", CHAT, [JSON, *coding], body)
            assert (refused.status, refused.header(b"retry-after")) == (503, b"1")
            assert refused.json()["error"]["code"] == "server_overloaded"  # type: ignore[index]
            released.set()
            for client in (first, second):
                client.method = "POST"
                assert (await client.reply()).status == 200
        assert (await ask(address, "POST", CHAT, [JSON, *coding], body)).status == 200


async def test_one_body_always_has_room(tmp_path: Path) -> None:
    server = {"max_buffered_bytes": 1_024, "max_body_bytes": 50_000}
    async with proxied(tmp_path, in_turn(answer(200, OK_BODY, JSON)), server=server) as (address, _):
        for body, coding in BODIES.values():
            assert (await ask(address, "POST", CHAT, [JSON, *coding], body)).status == 200


async def test_what_cannot_be_told_where_it_goes_does_not_go_elsewhere(tmp_path: Path) -> None:
    """A body that unpacks to too much is relayed unread; not where the model in it decides who may see it."""
    packed = gzip.compress(said(b"a" * 20_000_000))
    models = [{"match": "private-*", "upstream": "private"}]
    others = {"private": {"base_url": "http://127.0.0.1:9/v1"}}
    coded = (b"Content-Encoding", b"gzip")
    script = in_turn(answer(200, OK_BODY, JSON))
    async with proxied(tmp_path, script, models=models, others=others) as (address, behind):
        reply = await ask(address, "POST", CHAT, [JSON, coded], packed)
        assert (reply.status, len(behind.calls)) == (413, 0)
    async with proxied(tmp_path, script) as (address, behind):
        assert (await ask(address, "POST", CHAT, [JSON, coded], packed)).status == 200
        assert behind.calls[0].body == packed


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: said(b"hello " * 5_000_000), "body_too_large"),
        (lambda: said(rb"\n" * 7_000_000), "body_too_large"),
        (lambda: of_messages(b"1," * 5_000_000 + b"1"), "too_many_values"),
        (lambda: of_messages(b"1," * 250_000 + b"1"), "too_many_values"),
        (lambda: of_messages(b"1"), "unknown_shape"),
    ],
)
async def test_the_bound_that_a_body_is_over_is_told(tmp_path: Path, make: Callable[[], bytes], reason: str) -> None:
    body = make()
    async with stage(tmp_path, ModelServer(window=None)) as play:
        reply = await play.send(body)
        assert (reply.status, outcome(reply)) == (200, ("bypass", reason))
        assert play.sent[-1].body == body
        explained = await play.send(body, path="/v1/compaction/explain")
        assert json.loads(explained.body)["reason"] == reason
