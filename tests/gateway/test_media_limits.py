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

LIMITS = {
    "bytes": lambda: Limit(413, "Request exceeds the maximum size", bytes=25 * SIZE),
    "a page": lambda: Limit(413, "<html><h1>413 Request Entity Too Large</h1></html>", bytes=25 * SIZE),
    "stated bytes": lambda: Limit(400, "Exceeded limit on max bytes to request body : 125000", bytes=125_000),
    "number": lambda: Limit(400, "Exceeded maximum number of images (15)", pictures=15),
    "both numbers": lambda: Limit(400, "Too much media: 0 document pages + 21 images > 20", pictures=20),
    "no number": lambda: Limit(400, "Too many images in this request.", pictures=12),
    "wide": lambda: Limit(
        400, "image dimensions exceed max allowed size for many-image requests: 2000 pixels", pictures=12
    ),
    "pages": lambda: Limit(400, "A maximum of 12 PDF pages may be provided.", pictures=12),
    "one": lambda: Limit(400, "At most 5 image(s) may be provided in one prompt.", pictures=5),
}


async def played(play: Stage, form: str, limit: Limit, rounds: int = ROUNDS) -> list[bytes]:
    """Each turn with one more picture; the bodies that were taken."""
    kind, messages, taken = FORMS[form], [TASK], []
    for number in range(rounds):
        data = picture(number, SIZE)
        messages += kind.round_of(data, number)
        before = limit.refused
        reply = await play.send(kind.body(messages), path=kind.path)
        assert reply.status == 200, reply.body
        assert limit.refused - before <= 2, "at most two refusals for a lesson"
        assert data in pictures_in(play.sent[-1].body), "the newest is there"
        taken.append(play.sent[-1].body)
    return taken


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", LIMITS)
async def test_a_session_of_screenshots_goes_on(tmp_path: Path, form: str, kind: str) -> None:
    limit = LIMITS[kind]()
    async with stage(tmp_path, ModelServer(window=10_000_000, script=limit), **SETTINGS) as play:
        taken = await played(play, form, limit)
        assert 1 <= limit.refused <= (3 if kind in ("no number", "wide", "pages") else 2)
        shown = [{*pictures_in(body)} for body in taken]
        breaks = sum(bool(before - after) for before, after in pairwise(shown))
        assert breaks <= 14, "in batches"
        for body in taken:
            json.loads(body)


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
    limit = LIMITS["number"]()
    kind, messages = FORMS["messages, tool"], [TASK]
    for number in range(16):
        messages += kind.round_of(picture(number, SIZE), number)
    async with stage(tmp_path, ModelServer(window=10_000_000, script=limit), **SETTINGS) as play:
        reply = await play.send(kind.body(messages), path=kind.path)
        assert outcome(reply) == ("cooled", "media_shed")
        assert dict(reply.headers)[b"x-compaction-media"] == b"6/16"
        note = json.loads(play.sent[-1].body)["messages"][2]["content"][0]["content"][0]
        assert note == {
            "type": "text",
            "text": "[image left out by the gateway: the 1st of this conversation, PNG 1280 x 800, 5 kB, "
            "result of screenshot; call it again if you need it]",
        }
        reply = await play.send(kind.body(messages), path=kind.path)
        assert outcome(reply) == ("cooled", "media_aged")


async def test_off_is_off(tmp_path: Path) -> None:
    limit = LIMITS["number"]()
    kind, messages = FORMS["messages, tool"], [TASK]
    for number in range(16):
        messages += kind.round_of(picture(number, SIZE), number)
    policies = {"default": {"media": {"mode": "off"}}}
    async with stage(tmp_path, ModelServer(window=10_000_000, script=limit), policies=policies, **SETTINGS) as play:
        reply = await play.send(kind.body(messages), path=kind.path)
        assert (reply.status, limit.refused) == (400, 1)


ONE = "messages.12.content.0.tool_result.content.0: image exceeds 5 MB maximum: 6500712 bytes > 5242880 bytes"


async def test_a_picture_that_is_refused_kills_no_later_request(tmp_path: Path) -> None:
    """Of a tool: it goes at once, though it is the newest, and stays away; the others stay."""
    kind, messages = FORMS["messages, tool"], [TASK]
    limit = Limit(400, ONE, bad={picture(5, 2 * SIZE)})
    async with stage(tmp_path, ModelServer(window=10_000_000, script=limit), **SETTINGS) as play:
        for number in range(8):
            messages += kind.round_of(picture(number, 2 * SIZE if number == 5 else SIZE), number)
            reply = await play.send(kind.body(messages), path=kind.path)
            assert reply.status == 200, reply.body
            assert len(pictures_in(play.sent[-1].body)) == number + (number < 5)
        assert limit.refused == 1


async def test_what_the_user_just_sent_is_his_to_mend(tmp_path: Path) -> None:
    kind, messages = FORMS["messages, user"], [TASK]
    limit = Limit(400, "image exceeds 5 MB maximum", bad={picture(5, 2 * SIZE)})
    async with stage(tmp_path, ModelServer(window=10_000_000, script=limit), **SETTINGS) as play:
        for number in range(8):
            messages += kind.round_of(picture(number, 2 * SIZE if number == 5 else SIZE), number)
            for _ in range(2):  # it is the same if it is tried again
                reply = await play.send(kind.body(messages), path=kind.path)
                assert reply.status == (400 if number == 5 else 200), reply.body
        assert limit.refused == 2


async def test_a_gateway_that_refuses_everything_is_believed(tmp_path: Path) -> None:
    limit = Limit(413, "<html>413 Request Entity Too Large</html>", bytes=1_000)
    kind, messages = FORMS["messages, tool"], [TASK]
    for number in range(16):
        messages += kind.round_of(picture(number, SIZE), number)
    async with stage(tmp_path, ModelServer(window=10_000_000, script=limit), **SETTINGS) as play:
        for most in (4, 5):
            reply = await play.send(kind.body(messages), path=kind.path)
            assert reply.status == 413
            assert limit.refused <= most
        assert reply.body == b"<html>413 Request Entity Too Large</html>"


async def test_pictures_of_the_users_last_message_stay(tmp_path: Path) -> None:
    """However many there are: they are what is asked about."""
    content: list[Json] = [{"type": "text", "text": "Which is the best?"}]
    for number in range(12):
        source = {"type": "base64", "media_type": "image/png", "data": picture(number, SIZE)}
        content.append({"type": "image", "source": source})
    limit = LIMITS["one"]()
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
    assert 0 < len(gone) < 11, "newest rounds keep theirs"


async def test_newest_rounds_give_way_where_nothing_else_is_left(tmp_path: Path) -> None:
    """But for the newest picture: an upstream that takes two has no room for five rounds."""
    limit = Limit(413, "Request exceeds the maximum size", bytes=2 * SIZE)
    kind, messages = FORMS["messages, tool"], [TASK]
    for number in range(4):
        messages += kind.round_of(picture(number, SIZE), number)
    async with stage(tmp_path, ModelServer(window=10_000_000, script=limit), **SETTINGS) as play:
        reply = await play.send(kind.body(messages), path=kind.path)
        assert (reply.status, outcome(reply)) == (200, ("cooled", "media_shed"))
        assert pictures_in(play.sent[-1].body) == [picture(3, SIZE)]


async def test_an_upstream_that_hangs_up_on_a_large_body_gets_half_of_its_media(tmp_path: Path) -> None:
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
