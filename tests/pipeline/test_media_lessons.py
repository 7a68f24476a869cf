"""What is left out by the table of limits and by tokens, and the notes that stand in its place."""

from __future__ import annotations

import base64
import json
import struct
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tests.support.model_server import Fault, ModelServer, answers
from tests.support.pictures import FORMS, MESSAGES, picture, pictures_in
from tests.support.stages import outcome, stage

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.conversations import Json

pytestmark = pytest.mark.anyio

SIZE = 5_000
TASK: Json = {"role": "user", "content": "Click until the light is green."}
CLAUDE = "claude-pictures"


def left_out(body: bytes) -> set[str]:
    """Notes of a request in Messages."""
    results = [part for message in json.loads(body)["messages"] for part in message["content"] if type(part) is dict]
    contents = [part for result in results for part in result.get("content", ()) if type(part) is dict]
    return {part["text"] for part in (*results, *contents) if part.get("text", "").startswith("[")}


async def test_a_note_is_in_the_language_of_the_conversation(tmp_path: Path) -> None:
    kind, messages = FORMS["messages, tool"], [{"role": "user", "content": "请一直点击，直到灯变绿。"}]
    settings = {"models": [{"match": "pictures", "context_window": 10_000_000, "max_pictures": 5}]}
    async with stage(tmp_path, ModelServer(window=10_000_000), **settings) as play:
        for number in range(8):
            messages += kind.round_of(picture(number, SIZE), number)
            if number == 6:
                messages += [{"role": "assistant", "content": "ok"}, {"role": "user", "content": "Go on in English."}]
                messages += kind.round_of(picture(99, SIZE), 99)
            await play.send(kind.body(messages), path=kind.path)
    first = "[网关已略去图片：本次对话的第 1 个，PNG 1280 x 800，5 kB，screenshot 的结果；如有需要，请重新调用]"
    assert first in left_out(play.sent[-1].body), "whatever is said later"


def wide(number: int) -> str:
    """The base64 of a picture of 2560 x 1440."""
    plain = base64.b64decode(picture(number, SIZE))
    return base64.b64encode(plain[:16] + struct.pack(">II", 2_560, 1_440) + plain[24:]).decode()


class Sides:
    """Takes no wide picture beside more than 20 others, as Anthropic does."""

    def __init__(self) -> None:
        self.refused = 0
        self.taken: list[int] = []

    def __call__(self, _: int, body: bytes) -> Fault | None:
        data = [part for part in body.split(b'"') if part.startswith(b"iVBORw0KGgo")]
        sides = [struct.unpack(">I", base64.b64decode(part[:32])[16:20])[0] for part in data]
        if len(data) <= 20 or max(sides) <= 2_000:
            self.taken.append(len(data))
            return None
        self.refused += 1
        words = (
            "messages.88.content.1.image.source.base64.data: At least one of the image dimensions exceed max allowed "
            "size for many-image requests: 2000 pixels"
        )
        return Fault(answer=answers.plain(400, {"error": {"type": "invalid_request_error", "message": words}}))


async def test_wide_pictures_beside_many_others(tmp_path: Path) -> None:
    """The table knows that Claude's models refuse them."""
    kind, messages, limit = FORMS["messages, tool"], [TASK], Sides()
    settings = {"models": [{"match": "*", "context_window": 10_000_000}]}
    async with stage(tmp_path, ModelServer(window=10_000_000, script=limit), **settings) as play:
        for number in range(60):
            messages += kind.round_of(wide(number) if number % 3 else picture(number, SIZE), number)
            reply = await play.send(kind.body(messages, model=CLAUDE), path=MESSAGES)
            assert reply.status == 200, reply.body
    assert limit.refused == 0
    assert sum(after < before for before, after in pairwise(limit.taken)) <= 7


def paper(number: int, pages: int) -> str:
    marks = b" ".join(b"/Type /Page" for _ in range(pages))
    return base64.b64encode(b"%%PDF-1.7 %d %s %%%%EOF" % (number, marks)).decode()


class Pages:
    """Takes papers of 600 pages together."""

    def __init__(self) -> None:
        self.refused = 0

    def __call__(self, _: int, body: bytes) -> Fault | None:
        papers = [base64.b64decode(part) for part in body.split(b'"') if part.startswith(b"JVBERi")]
        if sum(part.count(b"/Type /Page") for part in papers) <= 600:
            return None
        self.refused += 1
        error = {"type": "invalid_request_error", "message": "A maximum of 600 PDF pages may be provided."}
        return Fault(answer=answers.plain(400, {"error": error}))


async def test_pages_of_all_papers(tmp_path: Path) -> None:
    """The table knows that Claude's models take 600 of them with a large window."""
    messages, limit = [TASK], Pages()
    settings = {"models": [{"match": "*", "context_window": 10_000_000}]}
    async with stage(tmp_path, ModelServer(window=10_000_000, script=limit), **settings) as play:
        for number in range(20):
            source = {"type": "base64", "media_type": "application/pdf", "data": paper(number, 72)}
            result = {
                "type": "tool_result",
                "tool_use_id": f"t{number}",
                "content": [{"type": "document", "source": source}],
            }
            use = {"type": "tool_use", "id": f"t{number}", "name": "read", "input": {"n": number}}
            messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
            reply = await play.send(FORMS["messages, tool"].body(messages, model=CLAUDE), path=MESSAGES)
            assert reply.status == 200, reply.body
            assert paper(number, 72).encode() in play.sent[-1].body
    assert limit.refused == 0
    assert outcome(reply) == ("cooled", "media_aged")
    assert any(note.startswith("[document left out by the gateway: number 1 ") for note in left_out(play.sent[-1].body))


@pytest.mark.parametrize("form", FORMS)
async def test_pictures_of_tools_cool_down_by_their_tokens(tmp_path: Path, form: str) -> None:
    """Where no limit is known: in batches, and never the user's."""
    kind, messages, shown = FORMS[form], [TASK], []
    window = 60_000
    policy = {"summarizer": {"model": "none"}, "apply_floor": 0.3, "compaction_threshold": 0.9, "target_root": 200}
    settings = {"models": [{"match": "pictures", "context_window": window}], "policies": {"default": policy}}
    async with stage(tmp_path, ModelServer(window=10_000_000), **settings) as play:
        for number in range(50):
            messages += kind.round_of(picture(number, SIZE), number)
            reply = await play.send(kind.body(messages), path=kind.path)
            shown.append({*pictures_in(play.sent[-1].body)})
            assert picture(number, SIZE) in shown[-1]
            assert form.endswith("user") or len(shown[-1]) >= min(number + 1, 5)
    reasons = {outcome(reply)}
    breaks = sum(bool(before - after) for before, after in pairwise(shown))
    if form.endswith("user"):
        assert len(shown[-1]) == 50 or reasons == {("reused", "below_threshold")}
    else:
        assert 1 <= breaks <= 5, "in batches of about eleven"
        # A grey point weighs something too, and in the end there are too many of them.
        assert reasons == {("applied", "tool_execution") if "computer" in form else ("cooled", "media_aged")}
        assert max(map(len, shown)) < 40
