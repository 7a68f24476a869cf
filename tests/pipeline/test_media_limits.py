"""Sessions of screenshots behind servers that take so many bytes, so many pictures, or not that one."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tests.support.model_server import ModelServer
from tests.support.pictures import FORMS, MESSAGES, Limit, picture, pictures_in
from tests.support.stages import outcome, stage

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.conversations import Json
    from tests.support.stages import Stage

pytestmark = pytest.mark.anyio

SIZE = 5_000
ROUNDS = 40
TASK: Json = {"role": "user", "content": "Click until the light is green."}
SETTINGS: dict[str, object] = {"models": [{"match": "pictures", "context_window": 10_000_000}]}

STATED = {
    "bytes": lambda: Limit(400, "Exceeded limit on max bytes to request body : 125000", bytes=125_000),
    "a page": lambda: Limit(413, "<html><h1>413 Request body exceeds 125 kB</h1></html>", bytes=125_000),
    "number": lambda: Limit(400, "Exceeded maximum number of images (15)", pictures=15),
    "both numbers": lambda: Limit(400, "Too much media: 0 document pages + 21 images > 20", pictures=20),
    "few": lambda: Limit(400, "At most 5 image(s) may be provided in one prompt.", pictures=5),
}
UNSTATED = {
    "bytes": lambda: Limit(413, "Request exceeds the maximum size", bytes=25 * SIZE),
    "a page": lambda: Limit(413, "<html><h1>413 Request Entity Too Large</h1></html>", bytes=25 * SIZE),
    "number": lambda: Limit(400, "Too many images in this request.", pictures=12),
    "one": lambda: Limit(400, "Too many images in this request.", pictures=1),
}
OTHERS = {
    "wide": lambda: Limit(
        400, "image dimensions exceed max allowed size for many-image requests: 2000 pixels", pictures=12
    ),
    "pages": lambda: Limit(400, "A maximum of 12 PDF pages may be provided.", pictures=12),
}


async def played(play: Stage, form: str, limit: Limit, rounds: int = ROUNDS, size: int = SIZE) -> list[bytes]:
    """Each turn with one more picture; the bodies that were taken."""
    kind, messages, taken = FORMS[form], [TASK], []
    for number in range(rounds):
        data = picture(number, size)
        messages += kind.round_of(data, number)
        before = limit.refused
        reply = await play.send(kind.body(messages), path=kind.path)
        assert reply.status == 200, reply.body
        assert limit.refused - before <= 2, "at most two refusals for a lesson"
        assert data in pictures_in(play.sent[-1].body), "the newest is there"
        taken.append(play.sent[-1].body)
        play.model.received.clear()
    return taken


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", STATED)
async def test_a_stated_limit_is_learned(tmp_path: Path, form: str, kind: str) -> None:
    limit = STATED[kind]()
    async with stage(tmp_path, ModelServer(window=10_000_000, script=limit), **SETTINGS) as play:
        taken = await played(play, form, limit)
        assert limit.refused == 1
        await played(play, form, limit, 20)
        assert limit.refused == 1, "another session knows the limit"
        shown = [{*pictures_in(body)} for body in taken]
        breaks = sum(bool(before - after) for before, after in pairwise(shown))
        assert breaks <= 14, "in batches"
        for body in taken:
            json.loads(body)


FIGURES = {
    # Pictures, bytes of each and the limit, as for 100 kB, 300 kB and 1 MB, but a twentieth of the bytes.
    "300 small ones": (300, 5_000, lambda: Limit(400, "Too many images: at most 100 images.", pictures=100)),
    "150 larger ones": (
        150, 15_000, lambda: Limit(413, "Request payload size exceeds the limit: 1000000 bytes.", bytes=1_000_000),
    ),
    "60 large ones": (
        60, 50_000, lambda: Limit(413, "Request payload size exceeds the limit: 1600000 bytes.", bytes=1_600_000),
    ),
}  # fmt: skip


# The largest in every form, the others in two.
@pytest.mark.parametrize(
    ("form", "figures"),
    [
        *((form, "60 large ones") for form in FORMS),
        *((form, figures) for form in ("messages, tool", "chat, user") for figures in [*FIGURES][:2]),
    ],
)
async def test_long_sessions_of_screenshots(tmp_path: Path, form: str, figures: str) -> None:
    """No error reaches the client, every request has the newest picture, and a lesson takes two refusals at most."""
    rounds, size, limited = FIGURES[figures]
    limit = limited()
    async with stage(tmp_path, ModelServer(window=100_000_000, script=limit), **SETTINGS) as play:
        taken = await played(play, form, limit, rounds, size)
    assert limit.refused <= 2
    shown = [pictures_in(body) for body in taken]
    breaks = sum(more[: len(one)] != one for one, more in pairwise(shown))
    assert breaks <= 8, "the lesson, and batches"


async def numbers_sent(directory: Path, form: str, limit: Limit) -> list[int]:
    """Return how many pictures each of thirty requests was taken with."""
    async with stage(directory, ModelServer(window=10_000_000, script=limit), **SETTINGS) as play:
        return [len(pictures_in(body)) for body in await played(play, form, limit, 30)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", UNSTATED)
async def test_a_limit_without_a_number_is_what_was_refused(tmp_path: Path, form: str, kind: str) -> None:
    limit = UNSTATED[kind]()
    sent = await numbers_sent(tmp_path, form, limit)
    assert limit.refused == 1
    # The first request, and the one that was refused.
    assert sent.count(1) == (30 if limit.pictures == 1 else 2)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", OTHERS)
async def test_a_refusal_of_sides_or_pages_is_met_with_the_newest_picture(tmp_path: Path, form: str, kind: str) -> None:
    limit = OTHERS[kind]()
    sent = await numbers_sent(tmp_path, form, limit)
    assert {*sent[-limit.refused :]} == {1}
    assert sent[: -limit.refused] == [*range(1, 31 - limit.refused)]


@pytest.mark.parametrize("form", ["messages, tool", "chat, user"])
async def test_a_request_begins_as_the_one_before_it(tmp_path: Path, form: str) -> None:
    """The messages change with a batch alone, and with the lesson."""
    limit = STATED["number"]()
    async with stage(tmp_path, ModelServer(window=10_000_000, script=limit), **SETTINGS) as play:
        taken = await played(play, form, limit)
    bodies = [json.loads(body)["messages"] for body in taken]
    breaks = [number for number, (one, more) in enumerate(pairwise(bodies), 1) if more[: len(one)] != one]
    assert breaks == [15, 19, 26, 33]


async def test_a_configured_limit_is_kept_without_a_refusal(tmp_path: Path) -> None:
    limit = Limit(400, "Exceeded maximum number of images (10)", pictures=20)
    settings = {"models": [{"match": "pictures", "context_window": 10_000_000, "max_pictures": 20}]}
    async with stage(tmp_path, ModelServer(window=10_000_000, script=limit), **settings) as play:
        taken = await played(play, "messages, tool", limit)
        assert limit.refused == 0
        assert max(len(pictures_in(body)) for body in taken) == 16
        assert min(len(pictures_in(body)) for body in taken[16:]) == 8
        shown = [{*pictures_in(body)} for body in taken]
        assert sum(bool(before - after) for before, after in pairwise(shown)) == 3


async def test_what_was_left_out_is_told(tmp_path: Path) -> None:
    limit = STATED["number"]()
    kind, messages = FORMS["messages, tool"], [TASK]
    for number in range(16):
        messages += kind.round_of(picture(number, SIZE), number)
    async with stage(tmp_path, ModelServer(window=10_000_000, script=limit), **SETTINGS) as play:
        reply = await play.send(kind.body(messages), path=kind.path)
        assert outcome(reply) == ("cooled", "media_shed")
        assert dict(reply.headers)[b"x-compaction-media"] == b"9/16"
        note = json.loads(play.sent[-1].body)["messages"][2]["content"][0]["content"][0]
        assert note == {
            "type": "text",
            "text": "[image left out by the gateway: number 1 of this conversation, PNG 1280 x 800, 5 kB, "
            "result of screenshot; call it again if you need it]",
        }
        reply = await play.send(kind.body(messages), path=kind.path)
        assert outcome(reply) == ("cooled", "media_aged")


async def test_off_is_off(tmp_path: Path) -> None:
    limit = STATED["number"]()
    kind, messages = FORMS["messages, tool"], [TASK]
    for number in range(16):
        messages += kind.round_of(picture(number, SIZE), number)
    policies = {"default": {"media": {"mode": "off"}}}
    async with stage(tmp_path, ModelServer(window=10_000_000, script=limit), policies=policies, **SETTINGS) as play:
        reply = await play.send(kind.body(messages), path=kind.path)
        assert (reply.status, limit.refused) == (400, 1)


BROKEN = {
    "one of a size": "messages.12.content.0.image: image exceeds 5 MB maximum: 6500712 bytes > 5242880 bytes",
    "one of a form": "messages.12.content.0.tool_result.content.0.image.source.base64: Could not process image",
    "no place": "You uploaded an unsupported image.",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("words", BROKEN)
async def test_a_broken_picture_teaches_nothing(tmp_path: Path, form: str, words: str) -> None:
    """The client gets the upstream's error about its newest picture. Another session sends all of its own."""
    kind, broken = FORMS[form], picture(5, SIZE)
    sessions: list[list[Json]] = [[TASK], [{"role": "user", "content": "Another."}]]
    limit = Limit(400, BROKEN[words], bad={broken})
    async with stage(tmp_path, ModelServer(window=10_000_000, script=limit), **SETTINGS) as play:
        for number in range(9):
            for other, messages in enumerate(sessions):
                data, before = picture(number + 100 * other, SIZE), limit.refused
                messages += kind.round_of(data, number)
                reply = await play.send(kind.body(messages), path=kind.path)
                shown = pictures_in(play.sent[-1].body)
                if other:
                    assert (reply.status, len(shown), limit.refused) == (200, number + 1, before)
                elif number == 5:
                    assert (reply.status, limit.refused - before) == (400, 2)
                    assert json.loads(reply.body)["error"]["message"] == BROKEN[words]
                else:
                    assert (reply.status, data in shown) == (200, True)
                    assert len(shown) == (1 if number > 5 else number + 1)
                    assert limit.refused - before == (number > 5)


async def test_a_gateway_that_refuses_everything_is_believed(tmp_path: Path) -> None:
    limit = Limit(413, "<html>413 Request Entity Too Large</html>", bytes=1_000)
    kind, messages = FORMS["messages, tool"], [TASK]
    for number in range(16):
        messages += kind.round_of(picture(number, SIZE), number)
    async with stage(tmp_path, ModelServer(window=10_000_000, script=limit), **SETTINGS) as play:
        for refused in (2, 4):
            reply = await play.send(kind.body(messages), path=kind.path)
            assert reply.status == 413
            assert limit.refused == refused
        assert reply.body == b"<html>413 Request Entity Too Large</html>"


async def test_pictures_of_the_users_last_message_stay(tmp_path: Path) -> None:
    """However many there are: they are what is asked about."""
    content: list[Json] = [{"type": "text", "text": "Which is the best?"}]
    for number in range(12):
        source = {"type": "base64", "media_type": "image/png", "data": picture(number, SIZE)}
        content.append({"type": "image", "source": source})
    limit = STATED["few"]()
    async with stage(tmp_path, ModelServer(window=10_000_000, script=limit), **SETTINGS) as play:
        reply = await play.send(FORMS["messages, user"].body([{"role": "user", "content": content}]), path=MESSAGES)
        assert (reply.status, limit.refused) == (400, 1)


async def test_explain_says_what_would_be_left_out_and_why(tmp_path: Path) -> None:
    kind, messages = FORMS["messages, tool"], [TASK]
    for number in range(16):
        messages += kind.round_of(picture(number, SIZE), number)
    settings = {"models": [{"match": "pictures", "context_window": 10_000_000, "max_pictures": 15}]}
    async with stage(tmp_path, ModelServer(window=10_000_000), **settings) as play:
        reply = await play.send(kind.body(messages), path="/v1/compaction/explain?dialect=messages")
        assert not play.sent
    told = json.loads(reply.body)
    assert (told["outcome"], told["reason"]) == ("cooled", "media_aged")
    gone = [message["fate"] for message in told["messages"] if message["fate"] != "kept"]
    assert told["media"] == {
        "received": 16,
        "left_out": len(gone),
        "bytes": sum(len(picture(number, SIZE)) for number in range(16)),
        "max_bytes": None,
        "max_pictures": 15,
        "source": "config",
        "learned_at": None,
    }
    assert {*gone} == {"left_out"}
    assert len(gone) == 7, "the thirteenth is beyond 80 %, six are 40 %"


async def test_an_upstream_that_hangs_up_on_a_large_body_gets_the_newest(tmp_path: Path) -> None:
    kind, messages, heard = FORMS["messages, tool"], [TASK], []
    for number in range(12):
        messages += kind.round_of(picture(number, 40 * SIZE), number)

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        heard.append(length)
        if length > 1_500_000:
            writer.transport.abort()
            return
        await reader.readexactly(length)
        said = {"id": "m", "type": "message", "role": "assistant", "content": [], "stop_reason": "end_turn"}
        answer = json.dumps({**said, "usage": {"input_tokens": 9, "output_tokens": 1}}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(answer))
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve_one, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        upstreams = {"main": {"base_url": f"http://127.0.0.1:{port}/v1"}}
        async with stage(tmp_path, upstreams=upstreams, **SETTINGS) as play:
            reply = await play.send(kind.body(messages), path=kind.path)
    assert (reply.status, outcome(reply)) == (200, ("cooled", "media_shed"))
    assert len(heard) == 2
