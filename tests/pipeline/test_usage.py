"""Usage is read from an answer's bytes as they pass: the real field alone counts, and what is odd is none."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from proxy.dialects.base import Usage
from proxy.dialects.table import CHAT
from proxy.pipeline.answers import UpstreamAnswer
from proxy.pipeline.relay import RelaySink
from proxy.pipeline.usage import UsageTap
from tests.support.dialects import WRITERS, Writer
from tests.support.responses import Scripted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from proxy.dialects.base import Answers
    from proxy.server.exchange import Exchange
    from proxy.upstreams.http import UpstreamResponse

pytestmark = pytest.mark.anyio

USED = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
WRONG = {"prompt_tokens": 99, "completion_tokens": 99}
TEXT = 'He said: "usage": {"prompt_tokens": 99, "completion_tokens": 99}, and {"usage": 1} \\"usage\\" \\'
CHOICES = [{"index": 0, "message": {"role": "assistant", "content": TEXT}}]
LONG = [{"index": 0, "message": {"role": "assistant", "content": TEXT + "x" * 5_000_000}}]
DELTA = {"choices": [{"index": 0, "delta": {"content": TEXT}}]}
EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")


def tapped(*headers: tuple[bytes, bytes], head: bytes = b"", reads: Answers = CHAT.answers) -> UsageTap:
    response = Scripted((), headers=list(headers))
    tap = UsageTap(UpstreamAnswer(cast("UpstreamResponse", response)), reads)
    tap.feed(head)
    return tap


def read(body: bytes, *headers: tuple[bytes, bytes], size: int = 20_000) -> Usage | None:
    """What is read from a body that comes in chunks of this size."""
    tap = tapped(*headers)
    for start in range(0, len(body), size):
        tap.feed(body[start : start + size])
    return tap.usage()


def packed(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


OBJECTS = {
    "behind the choices": packed({"choices": CHOICES, "usage": USED}),
    "before them": packed({"usage": USED, "choices": CHOICES}),
    "between others": packed({"id": "c", "usage": USED, "choices": [], "service_tier": "default", "x": {"a": [1]}}),
    "indented": json.dumps({"choices": CHOICES, "usage": USED}, indent=2).encode() + b"\n",
    "one of the same name further in": packed({"usage": USED, "choices": [{"usage": WRONG}], "x": {"usage": WRONG}}),
    "one of the same name ahead": packed({"x": {"usage": WRONG}, "usage": USED}),
    "a longer key": packed({"usage": USED, 'x"usage': WRONG}),
    "values of that name": packed({"usage": USED, "x": "usage", "y": ["usage", "usage"], "usages": WRONG}),
    "a text of that end": packed({"usage": USED, "x": 'the "usage'}),
    "in many megabytes": packed({"choices": LONG, "usage": USED}),
    "Chinese": json.dumps({"choices": [{"message": {"content": "用量" * 50_000}}], "usage": USED}).encode(),
    "more in it": packed({"usage": {**USED, "total_tokens": 10, "cost": 0.1}}),
}


@pytest.mark.parametrize("body", OBJECTS.values(), ids=OBJECTS)
def test_of_an_object_its_own_usage_counts(body: bytes) -> None:
    assert read(body) == Usage(7, 3)


def odd(usage: object) -> bytes:
    return packed({"choices": CHOICES, "usage": usage})


NONE = {
    "nothing": b"",
    "no usage": packed({"choices": CHOICES}),
    "null": odd(None),
    "only further in": packed({"choices": [{"usage": USED}], "x": {"usage": USED}}),
    "only in a list": packed([{"usage": USED}]),
    "only in a text": packed({"choices": CHOICES, "x": packed({"usage": USED}).decode()}),
    "only a longer key": packed({'x"usage': USED}),
    "negative": odd({"prompt_tokens": -1, "completion_tokens": 3}),
    "huge": odd({"prompt_tokens": 10**9, "completion_tokens": 3}),
    "astronomic": odd({"prompt_tokens": 10**40, "completion_tokens": 3}),
    "a fraction": odd({"prompt_tokens": 7.5, "completion_tokens": 3}),
    "a text": odd({"prompt_tokens": "7", "completion_tokens": 3}),
    "true": odd({"prompt_tokens": True, "completion_tokens": 3}),
    "half of it": odd({"prompt_tokens": 7}),
    "another shape": odd([7, 3]),
    "megabytes ahead of the end": packed({"usage": USED, "choices": LONG}),
    "cut off": packed({"choices": CHOICES, "usage": USED})[:-3],
    "cut off in the middle of it": packed({"choices": CHOICES, "usage": USED})[:-20],
    "deep": b'{"x":' + b"[" * 9_000 + b"]" * 9_000 + b',"usage":' + b"[" * 9_000 + b"]" * 9_000 + b"}",
    "no JSON": b'<html>"usage"</html>',
    "no text": b'\xff\xfe"usage"\xff',
    "nothing but the name": b'"usage"' * 9_000,
}


@pytest.mark.parametrize("body", NONE.values(), ids=NONE)
def test_what_is_odd_or_not_found_is_none(body: bytes) -> None:
    assert read(body) is None
    assert read(body, EVENTS) is None


values = st.recursive(
    st.none() | st.integers() | st.sampled_from(["usage", '"usage":', TEXT, "\\"]) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["usage", 'x"usage', "a", "prompt_tokens"]), inner, max_size=3)
    ),
    max_leaves=10,
)
usages = st.none() | st.just(USED) | st.just({"prompt_tokens": 1, "completion_tokens": 0})


@given(st.dictionaries(st.sampled_from(["id", 'a"usage', "x"]), values), usages, st.integers(0, 3))
def test_whatever_else_an_object_holds_does_not_count(others: dict[str, object], usage: object, place: int) -> None:
    members = list(others.items())
    members.insert(min(place, len(members)), ("usage", usage))
    body = packed(dict(members))
    assume(body.count(b'"usage"') <= 16)
    found = read(body, size=7)
    expected = usage if isinstance(usage, dict) else None
    assert found == (expected and Usage(expected["prompt_tokens"], expected["completion_tokens"]))


@given(st.binary(), st.booleans(), st.sampled_from([b"identity", b"gzip", b"deflate", b"br"]), st.integers(1, 9))
def test_nothing_that_passes_is_an_error(body: bytes, stream: bool, coding: bytes, size: int) -> None:
    headers = [(b"content-encoding", coding), *([EVENTS] if stream else [])]
    for content in (body, b'{"usage":' + body, b'data:{"usage":' + body + b"\n\n"):
        assert isinstance(read(content, *headers, size=size), Usage | None)


def stream(*events: object, end: str = "\n\n", field: str = "data: ") -> bytes:
    texts = (event if isinstance(event, str) else json.dumps(event) for event in (*events, "[DONE]"))
    return "".join(f"{field}{text}{end}" for text in texts).encode()


LAST = {"choices": [], "usage": USED}
STREAMS = {
    "the last event": stream(DELTA, LAST),
    "null in all others": stream({**DELTA, "usage": None}, LAST, {**DELTA, "usage": None}),
    "in every event, growing": stream({**DELTA, "usage": WRONG}, LAST),
    "no space": stream(DELTA, LAST, field="data:"),
    "CRLF": stream(DELTA, LAST, end="\r\n\r\n"),
    "CR": stream(DELTA, LAST, end="\r\r"),
    "other fields and comments": b": hello\nid: 1\nevent: x\n" + stream(DELTA, LAST) + b": bye\n\n",
    "over several lines": b"data: {\ndata: " + packed({"usage": USED})[1:] + b"\n\n",
    "no end": stream(DELTA, LAST).removesuffix(b"data: [DONE]\n\n").rstrip(),
    "a long one": stream(*[DELTA] * 20_000, LAST),
}


@pytest.mark.parametrize("body", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("size", [7, 100_000])
def test_of_a_stream_the_last_event_with_usage_counts(body: bytes, size: int) -> None:
    assert read(body, EVENTS, size=size) == Usage(7, 3)


STREAMS_OF_NONE = {
    "no usage": stream(DELTA),
    "null": stream({**DELTA, "usage": None}),
    "only in a text": stream({"choices": [{"delta": {"content": stream(LAST).decode()}}]}),
    "only in a long text, which is cut": stream({"choices": [{"delta": {"content": stream(LAST).decode() * 2_000}}]}),
    "only in what a line is cut to": stream("x" * 70_000 + "\n: " + stream(LAST).decode()[6:50_000] + "x" * 70_000),
    "the last is odd": stream(LAST, {"usage": {"prompt_tokens": -1, "completion_tokens": 3}}),
    "the last is no JSON": stream(LAST, '{"usage": {'),
}


@pytest.mark.parametrize("body", STREAMS_OF_NONE.values(), ids=STREAMS_OF_NONE)
def test_of_a_stream_without_usage_none_is_read(body: bytes) -> None:
    assert read(body, EVENTS) is None


def test_what_is_left_of_a_line_is_no_event() -> None:
    """Of this comment only what looks like an event is kept."""
    looks = stream(LAST, end="\n\n")
    assert read(b": " + looks + b":" * (65_536 - len(looks)), EVENTS) is None
    assert read(looks + b":" * (65_536 - len(looks)), EVENTS) == Usage(7, 3)


def test_a_stream_may_be_cut_anywhere() -> None:
    body = stream(DELTA, LAST, end="\r\n\r\n")
    for cut in range(len(body)):
        tap = tapped(EVENTS, head=body[:cut])
        tap.feed(body[cut:])
        assert tap.usage() == Usage(7, 3)


def raw_deflate(content: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(content) + compressor.flush()


@pytest.mark.parametrize(
    "body", [packed({"choices": CHOICES, "usage": USED}), packed({"choices": LONG, "usage": USED})]
)
def test_a_compressed_answer_is_read_too(body: bytes) -> None:
    for coding, content in (
        (b"gzip", gzip.compress(body)),
        (b"x-gzip", gzip.compress(body)),
        (b"deflate", zlib.compress(body)),
        (b"deflate", raw_deflate(body)),
        (b"identity", body),
    ):
        assert read(content, (b"content-encoding", coding), size=500) == Usage(7, 3)


def test_what_cannot_be_decompressed_piece_by_piece_is_none() -> None:
    body = packed({"choices": [{"message": {"content": "x" * 3_000_000}}], "usage": USED})
    compressed = gzip.compress(body)
    assert read(compressed, (b"content-encoding", b"gzip"), size=len(compressed)) == Usage(7, 3), "in one piece"
    bomb = gzip.compress(packed({"choices": [{"message": {"content": "x" * 20_000_000}}], "usage": USED}))
    assert read(bomb, (b"content-encoding", b"gzip"), size=len(bomb)) is None, "a bomb"
    late = b":" * 1_000_000 + b"\n\n" + stream({"usage": WRONG}) + b":" * 20_000_000 + b"\n\n" + stream(LAST)
    assert read(gzip.compress(late), EVENTS, (b"content-encoding", b"gzip")) is None, "not all of it was seen"
    for coding, content in ((b"br", body), (b"zstd", body), (b"gzip", body), (b"gzip", compressed[:-5_00])):
        assert read(content, (b"content-encoding", coding)) is None


def test_no_more_than_the_end_is_kept() -> None:
    tap = tapped()
    for _ in range(1_000):
        tap.feed(b"x" * 10_000)
        assert len(tap._tail) <= 65_536


class Client:
    """A client that takes what is put, and notes which usage was known before each chunk."""

    on_writable = None
    takes_event = is_begun_by_sign = False

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.known: list[Usage | None] = []
        self.tap: UsageTap

    def put(self, chunk: bytes, *, more: bool) -> bool:
        self.known.append(self.tap.usage())
        self.taken += [chunk] if chunk else []
        return True

    def flush(self) -> None: ...
    async def wait_for_room(self) -> None: ...


async def relayed(pieces: Iterable[bytes], *headers: tuple[bytes, bytes]) -> Client:
    answer, client = UpstreamAnswer(cast("UpstreamResponse", Scripted(pieces, headers=list(headers)))), Client()
    client.tap = UsageTap(answer, CHAT.answers)
    await RelaySink(cast("Exchange", client), answer, client.tap, None).relay()
    return client


async def test_what_passes_is_not_changed() -> None:
    pieces = [b"no gzip", stream(DELTA), b"\xff", b"", stream(LAST)]
    client = await relayed(pieces, EVENTS, (b"content-encoding", b"gzip"))
    assert client.taken == [piece for piece in pieces if piece]
    assert client.tap.usage() is None


async def test_a_chunk_is_passed_on_before_it_is_read() -> None:
    client = await relayed([packed({"usage": USED})])
    assert client.known == [None]
    assert client.tap.usage() == Usage(7, 3)


BILLED = Usage(1_234, 56)
INSIDE = 'so I wrote "usage": {"input_tokens": 1, "output_tokens": 1}, and went on. '


@pytest.mark.requirement("D 10")
@pytest.mark.parametrize("length", [100, 70_000, 400_000])
@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.dialect.name)
def test_the_usage_of_a_stream_is_read_however_long_it_is(writer: Writer, length: int) -> None:
    """Some tell it in the first event, and some in a last one that repeats the answer."""
    text = (INSIDE * (length // len(INSIDE) + 1))[:length]
    events = writer.events("Begun.", BILLED)[:-1] + writer.events(text, BILLED)[3:]
    tap = tapped(EVENTS, reads=writer.dialect.answers)
    for event in events:
        tap.feed(b"data: " + event + b"\n\n")
    usage = tap.usage()
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (BILLED.prompt_tokens, BILLED.completion_tokens)
