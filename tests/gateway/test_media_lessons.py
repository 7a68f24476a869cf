"""What refusals of media teach: for good, for every replica, and never about what was sent before."""

from __future__ import annotations

import base64
import json
import struct
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tests.support.model_server import Fault, ModelServer, answers
from tests.support.pictures import FORMS, MESSAGES, Limit, picture, pictures_in
from tests.support.servers import serve
from tests.support.stages import outcome, stage

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.conversations import Json

pytestmark = pytest.mark.anyio

SIZE = 5_000
TASK: Json = {"role": "user", "content": "Click until the light is green."}
SETTINGS: dict[str, object] = {"models": [{"match": "pictures", "context_window": 10_000_000}]}
ONE = "messages.12.content.0.tool_result.content.0: image exceeds 5 MB maximum: 6500712 bytes > 5242880 bytes"


def left_out(body: bytes) -> set[str]:
    """Notes of a request in Messages."""
    results = [part for message in json.loads(body)["messages"] for part in message["content"] if type(part) is dict]
    contents = [part for result in results for part in result.get("content", ()) if type(part) is dict]
    return {part["text"] for part in (*results, *contents) if part.get("text", "").startswith("[")}


async def shown_by(directory: Path, form: str, limit: Limit, replicas: int) -> list[set[str]]:
    """The pictures that were sent with each turn, of a session that replicas over one store take turns with."""
    messages, shown, send = [TASK], [], FORMS[form]
    model = ModelServer(window=10_000_000, script=limit)
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(serve(model))
        settings = {
            "upstreams": {"main": {"base_url": f"{address}/v1"}},
            "store": {"url": f"sqlite:///{directory}/{replicas}.db", "secret": "s" * 32},
            **SETTINGS,
        }
        fleet = []
        for number in range(replicas):
            (own := directory / f"{replicas}-{number}").mkdir()
            fleet.append(await stack.enter_async_context(stage(own, **settings)))
        for number in range(40):
            messages += send.round_of(picture(number, SIZE), number)
            reply = await fleet[number % replicas].send(send.body(messages), path=send.path)
            assert reply.status == 200, reply.body
            shown.append({*pictures_in([one for one in model.received if one.method == "POST"][-1].body)})
    assert limit.refused == 1
    return shown


@pytest.mark.parametrize("form", ["messages, tool", "chat, user"])
@pytest.mark.parametrize("kind", ["number", "bytes"])
async def test_replicas_that_have_not_heard_of_a_lesson_send_the_same(tmp_path: Path, form: str, kind: str) -> None:
    """The second has looked up what is known just before there was anything; the conversation itself knows."""

    def limit() -> Limit:
        number = Limit(400, "Exceeded maximum number of images (15)", pictures=15)
        return number if kind == "number" else Limit(413, "", bytes=25 * SIZE)

    shown = await shown_by(tmp_path, form, limit(), replicas=2)
    assert shown == await shown_by(tmp_path, form, limit(), replicas=1)
    gone: set[str] = set()
    for before, after in pairwise(shown):
        gone |= before - after
        assert not gone & after, "what was left out stays so"


async def test_batches_from_before_a_lesson_stay_as_they_were(tmp_path: Path) -> None:
    """A limit that was known takes 24 of 40 pictures; one that is learned then moves none of these notes."""
    limit = Limit(400, "Exceeded maximum number of images (12)", pictures=40)
    kind, messages, notes, taught = FORMS["messages, tool"], [TASK], [], 0
    settings = {"models": [{"match": "pictures", "context_window": 10_000_000, "max_pictures": 20}]}
    async with stage(tmp_path, ModelServer(window=10_000_000, script=limit), **settings) as play:
        for number in range(40):
            limit.pictures = 40 if number < 30 else 12
            messages += kind.round_of(picture(number, SIZE), number)
            reply = await play.send(kind.body(messages), path=kind.path)
            assert reply.status == 200, reply.body
            notes.append(left_out(play.sent[-1].body))
            taught = taught or (number if limit.refused else 0)
    assert (taught, limit.refused) == (30, 1)
    assert all(before <= after for before, after in pairwise(notes))
    changes = [number for number, (before, after) in enumerate(pairwise(notes), 1) if before != after]
    assert changes[: changes.index(30) + 1] == [16, 25, 30]


async def test_a_note_says_what_the_provider_has_said(tmp_path: Path) -> None:
    kind, messages = FORMS["messages, tool"], [TASK]
    limit = Limit(400, ONE, bad={picture(5, 2 * SIZE)})
    async with stage(tmp_path, ModelServer(window=10_000_000, script=limit), **SETTINGS) as play:
        for number in range(8):
            messages += kind.round_of(picture(number, 2 * SIZE if number == 5 else SIZE), number)
            await play.send(kind.body(messages), path=kind.path)
            if number >= 5:
                assert left_out(play.sent[-1].body) == {
                    '[image refused by the provider: "image exceeds 5 MB maximum: 6500712 bytes > 5242880 bytes"; '
                    "PNG 1280 x 800, 10 kB, result of screenshot]"
                }
    assert limit.refused == 1


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


@pytest.mark.parametrize("model", ["pictures", "claude-pictures"])
async def test_wide_pictures_beside_many_others(tmp_path: Path, model: str) -> None:
    """Once they are refused they are known for it; of Claude's models before."""
    kind, messages, limit = FORMS["messages, tool"], [TASK], Sides()
    settings = {"models": [{"match": "*", "context_window": 10_000_000}]}
    async with stage(tmp_path, ModelServer(window=10_000_000, script=limit), **settings) as play:
        for number in range(60):
            messages += kind.round_of(wide(number) if number % 3 else picture(number, SIZE), number)
            reply = await play.send(kind.body(messages, model=model), path=MESSAGES)
            assert reply.status == 200, reply.body
    assert limit.refused == (1 if model == "pictures" else 0)
    assert sum(after < before for before, after in pairwise(limit.taken)) <= 7


def paper(number: int, pages: int) -> str:
    marks = b" ".join(b"/Type /Page" for _ in range(pages))
    return base64.b64encode(b"%%PDF-1.7 %d %s %%%%EOF" % (number, marks)).decode()


class Pages:
    """Takes papers of 100 pages together."""

    def __init__(self) -> None:
        self.refused = 0

    def __call__(self, _: int, body: bytes) -> Fault | None:
        papers = [base64.b64decode(part) for part in body.split(b'"') if part.startswith(b"JVBERi")]
        if sum(part.count(b"/Type /Page") for part in papers) <= 100:
            return None
        self.refused += 1
        error = {"type": "invalid_request_error", "message": "A maximum of 100 PDF pages may be provided."}
        return Fault(answer=answers.plain(400, {"error": error}))


async def test_pages_of_all_papers(tmp_path: Path) -> None:
    messages, limit = [TASK], Pages()
    async with stage(tmp_path, ModelServer(window=10_000_000, script=limit), **SETTINGS) as play:
        for number in range(20):
            source = {"type": "base64", "media_type": "application/pdf", "data": paper(number, 12)}
            result = {
                "type": "tool_result",
                "tool_use_id": f"t{number}",
                "content": [{"type": "document", "source": source}],
            }
            use = {"type": "tool_use", "id": f"t{number}", "name": "read", "input": {"n": number}}
            messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
            reply = await play.send(FORMS["messages, tool"].body(messages), path=MESSAGES)
            assert reply.status == 200, reply.body
            assert paper(number, 12).encode() in play.sent[-1].body
    assert limit.refused == 1
    assert outcome(reply) == ("cooled", "media_aged")
    assert any(note.startswith("[document left out by the gateway: the 1st") for note in left_out(play.sent[-1].body))


@pytest.mark.parametrize("form", FORMS)
async def test_pictures_of_tools_cool_down_by_their_tokens(tmp_path: Path, form: str) -> None:
    """Where no limit is known: in batches, and never the user's."""
    kind, messages, shown = FORMS[form], [TASK], []
    window = 60_000
    policies = {"default": {"summarizer": {"model": "none"}, "apply_floor": 0.3, "compaction_threshold": 0.9}}
    settings = {"models": [{"match": "pictures", "context_window": window}], "policies": policies}
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


@pytest.mark.parametrize("kind", ["number", "bytes"])
async def test_a_lesson_holds_until_a_request_beyond_it_is_taken(tmp_path: Path, kind: str) -> None:
    """What was left out before stays so; what comes then is sent, and to another conversation nothing is known."""
    number = Limit(400, "Exceeded maximum number of images (12)", pictures=12)
    limit = number if kind == "number" else Limit(413, "", bytes=12 * SIZE)
    send, messages = FORMS["messages, user"], [TASK]
    async with stage(tmp_path, ModelServer(window=10_000_000, script=limit), **SETTINGS) as play:

        async def shown() -> set[str]:
            assert (await play.send(send.body(messages), path=send.path)).status == 200
            return {*pictures_in([one for one in play.model.received if one.method == "POST"][-1].body)}

        for each in range(20):
            messages += send.round_of(picture(each, SIZE), each)
            before = await shown()
        gone = {picture(each, SIZE) for each in range(20)} - before
        assert (limit.refused, len(gone) > 4) == (1, True)
        limit.pictures = limit.bytes = None
        many = [part for each in range(20, 40) for part in send.round_of(picture(each, SIZE), each)[1]["content"]]
        messages += [{"role": "assistant", "content": "More?"}, {"role": "user", "content": many}]
        await shown()
        kept = set[str]()
        for each in range(40, 60):
            messages += send.round_of(picture(each, SIZE), each)
            after = await shown()
            assert not gone & after
            assert kept <= after, "nothing more is left out"
            kept = after
        assert len(kept) >= 40
        messages[:] = [{"role": "user", "content": "Other."}]
        for each in range(40):
            messages += send.round_of(picture(each, SIZE), each)
        assert len(await shown()) == 40
        assert limit.refused == 1
