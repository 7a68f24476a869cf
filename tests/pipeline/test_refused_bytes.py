"""Requests of texts that a server refuses for their bytes; and refusals of media that stand in an answer's place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from proxy.dialects.base import Usage
from tests.support.dialects import PLAIN, WRITERS, Entry, Writer, model, path_of, request_body, user
from tests.support.model_server import Fault, ModelServer, answers
from tests.support.pictures import FORMS, MESSAGES, RESPONSES, picture, pictures_in
from tests.support.scenarios import prose
from tests.support.stages import outcome, stage
from tests.support.upstreams import JSON, Call, Script, answer, ask, proxied

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.conversations import Json

pytestmark = pytest.mark.anyio

WITHOUT_MODEL = {"default": {"extends": "default", "summarizer": {"model": "none"}}}
PAGE = b"<html>\r\n<head><title>413 Request Entity Too Large</title></head>\r\n<body>nginx/1.27.0</body>\r\n</html>\r\n"
FAR = [{"match": "*", "context_window": 1_000_000}]
LIMIT = 400_000


def turns(first: int, count: int) -> list[Entry]:
    """About 27,000 bytes each."""
    numbers = range(first, first + count)
    return [one for at in numbers for one in (user(prose(at, 3_000)), model(prose(-at - 1, 3_000)))]


def body_of(writer: Writer, history: Sequence[Entry]) -> bytes:
    items = [item for entry in [*history, user("Go on.")] for item in writer.items(entry, PLAIN)]
    return json.dumps(request_body(writer.dialect, "You code.", items, writer.fields())).encode()


class Small:
    """Takes so many bytes; `sent` counts those of each request."""

    def __init__(self, writer: Writer, status: int, refusal: bytes, limit: int = LIMIT) -> None:
        self.sent: list[int] = []
        self._told = writer, status, refusal, limit

    @property
    def script(self) -> Script:
        writer, status, refusal, limit = self._told

        async def script(call: Call) -> None:
            self.sent.append(size := len(await call.read()))
            if size > limit:
                await call.send(answer(status, refusal))
            else:
                await call.send(answer(200, writer.answer("Fine.", Usage(size // 5, 10)), JSON))

        return script

    @property
    def refused(self) -> int:
        return sum(size > self._told[-1] for size in self.sent)


REFUSALS = (
    (413, PAGE),
    (413, b""),
    (413, b'{"error":{"message":"failed to parse request"}}'),
    (400, b'{"error":{"message":"Exceeded limit on max bytes to request body : 400000"}}'),
)


# All refusals in one dialect, one that is silent in the others, and one for models of an unknown window.
@pytest.mark.parametrize(
    ("writer", "models", "status", "refusal"),
    [
        *((WRITERS[0], FAR, *refusal) for refusal in REFUSALS),
        *((writer, FAR, *REFUSALS[0]) for writer in WRITERS[1:]),
        (WRITERS[0], [], *REFUSALS[0]),
    ],
)
async def test_texts_that_are_too_many_bytes_are_compacted_once_and_known_for_it(
    tmp_path: Path, writer: Writer, models: list[Json], status: int, refusal: bytes
) -> None:
    """nginx takes 1 MB by default, which are 250,000 tokens."""
    small, history = Small(writer, status, refusal), turns(0, 20)
    settings = {"policies": WITHOUT_MODEL, "models": models}
    async with proxied(tmp_path, small.script, **settings) as (address, _):
        for more in range(6):
            told = await ask(address, "POST", path_of(writer.dialect), [JSON], body_of(writer, history))
            assert told.status == 200, told.body
            assert told.header(b"x-compaction") == b"applied" or more
            history += turns(20 + more, 1)
    # Of a server that names no number two refusals tell between which sizes it lies.
    assert small.refused <= (1 if b"400000" in refusal else 2)
    first, second = small.sent[:2]
    assert second < 0.55 * first


@pytest.mark.parametrize(
    ("status", "refusal"),
    [
        (413, b'{"error":{"message":"Downloaded image content cannot exceed 30MB","code":413}}'),
        (429, PAGE),
        (502, PAGE),
        (400, b'{"error":{"message":"failed to parse request"}}'),
    ],
)
async def test_what_says_nothing_of_the_bytes_of_texts_is_passed_on(
    tmp_path: Path, status: int, refusal: bytes
) -> None:
    writer = WRITERS[0]
    small = Small(writer, status, refusal)
    async with proxied(tmp_path, small.script, policies=WITHOUT_MODEL, models=FAR) as (address, _):
        told = await ask(address, "POST", path_of(writer.dialect), [JSON], body_of(writer, turns(0, 20)))
    assert (told.status, told.body) == (status, refusal)
    assert len(small.sent) == 1


async def test_a_small_request_is_not_too_large(tmp_path: Path) -> None:
    writer = WRITERS[0]
    small = Small(writer, 413, PAGE, limit=10)
    async with proxied(tmp_path, small.script, policies=WITHOUT_MODEL, models=FAR) as (address, _):
        told = await ask(address, "POST", path_of(writer.dialect), [JSON], body_of(writer, turns(0, 2)))
    assert (told.status, len(small.sent)) == (413, 1)


@pytest.mark.parametrize(
    "words",
    [
        "prompt is too long: 42000 tokens > 30000 maximum",
        "Request body too large for m model. Max size: 30000 tokens.",
    ],
)
async def test_tokens_under_413_are_no_lesson_about_bytes(tmp_path: Path, words: str) -> None:
    """Though most of the request is pictures: those words mean tokens (Vertex, GitHub Models)."""
    kind, messages = FORMS["messages, tool"], [{"role": "user", "content": "Click."}]
    for number in range(60):
        messages += kind.round_of(picture(number, 5_000), number)
    error = {"type": "invalid_request_error", "message": words}
    refusals = iter([Fault(answer=answers.plain(413, {"type": "error", "error": error}))])
    server = ModelServer(window=1_000_000, script=lambda *_: next(refusals, None))
    settings = {"policies": WITHOUT_MODEL, "models": [{"match": "*", "context_window": 1_000_000}]}
    async with stage(tmp_path, server, **settings) as play:
        reply = await play.send(kind.body(messages), path=MESSAGES)
    assert (reply.status, outcome(reply)) == (200, ("applied", "overflow_retry"))


WORDINGS = Path(__file__).parents[1] / "upstreams" / "refusals" / "media_wordings.jsonl"
PASSED = [row for row in map(json.loads, WORDINGS.read_text("utf-8").splitlines()) if not row["what"]]


@pytest.mark.parametrize(
    "row",
    # What speaks of tokens is an overflow.
    [row for row in PASSED if row["status"] >= 400 and "tokens" not in row["body"]],
    ids=lambda row: row["body"][:60],
)
async def test_what_is_theirs_to_mend_or_to_wait_for_is_passed_on(tmp_path: Path, row: dict[str, Any]) -> None:
    kind, messages = FORMS["messages, tool"], [{"role": "user", "content": "Click."}]
    for number in range(30):
        messages += kind.round_of(picture(number, 5_000), number)
    body = answers.Answer(row["status"], ((b"content-type", b"application/json"),), (row["body"].encode(),))
    server = ModelServer(window=1_000_000, script=lambda *_: Fault(answer=body))
    async with stage(tmp_path, server, policies=WITHOUT_MODEL, models=FAR) as play:
        reply = await play.send(kind.body(messages), path=MESSAGES)
        assert (reply.status, reply.body) == (row["status"], row["body"].encode())
        assert len(play.sent) == 1


COUNT = "Exceeded maximum number of images (15) allowed in the request."
SAID = {"type": "invalid_request_error", "message": COUNT}
FAILED = {"id": "r", "object": "response", "status": "failed", "error": {"code": "bad", "message": COUNT}, "output": []}
BEGUN = {"type": "response.created", "response": {"id": "r", "status": "in_progress", "error": None, "output": []}}


def event(value: object, name: str = "") -> str:
    return (f"event: {name}\n" if name else "") + f"data: {json.dumps(value)}\n\n"


IN_STREAMS = {
    "chat, user": {
        "an error": event({"error": SAID}),
        "behind a role": event({"choices": [{"index": 0, "delta": {"role": "assistant"}}]}) + event({"error": SAID}),
        "a name alone": event({"message": COUNT}, "error"),
        "OpenRouter's": ": OPENROUTER PROCESSING\n\n"
        + event({"error": {"code": 400, "message": COUNT}, "choices": []}),
        "LiteLLM's": event({"error": {"message": f"litellm.BadRequestError: AzureException - {COUNT}", "code": "400"}}),
        "in JSON": event({"error": {"message": json.dumps({"error": SAID}), "code": 400}}),
    },
    "messages, tool": {
        "an error": event({"type": "error", "error": SAID}, "error"),
        "behind a ping": event({"type": "ping"}, "ping") + event({"type": "error", "error": SAID}, "error"),
    },
    "responses, tool": {
        "a failure": event(BEGUN, "response.created")
        + event({"type": "response.failed", "response": FAILED}, "response.failed"),
        "an error": event({"type": "error", "code": "invalid_request_error", "message": COUNT, "param": None}, "error"),
    },
}


@pytest.mark.parametrize(("form", "kind"), [(form, kind) for form in IN_STREAMS for kind in IN_STREAMS[form]])
async def test_a_refusal_of_media_in_a_stream_is_one(tmp_path: Path, form: str, kind: str) -> None:
    await _shed(tmp_path, form, answers.events(IN_STREAMS[form][kind].encode()), stream=True)


async def test_a_refusal_of_media_in_the_place_of_an_answer_is_one(tmp_path: Path) -> None:
    """Under 200, as gateways report what their upstream has refused."""
    await _shed(tmp_path, "chat, user", answers.plain(200, {"error": {"code": 400, "message": COUNT}}), stream=False)


async def _shed(directory: Path, form: str, refusal: answers.Answer, *, stream: bool) -> None:
    send, messages = FORMS[form], [{"role": "user", "content": "Click."}]
    for number in range(16):
        messages += send.round_of(picture(number, 5_000), number)

    def script(_: int, body: bytes) -> Fault | None:
        return Fault(answer=refusal) if len(pictures_in(body)) > 15 else None

    settings = {"models": [{"match": "pictures", "context_window": 10_000_000}]}
    async with stage(directory, ModelServer(window=10_000_000, script=script), **settings) as play:
        for reason in ("media_shed", "media_aged"):
            reply = await play.send(send.body(messages, stream=stream), path=send.path)
            assert (reply.status, outcome(reply)) == (200, ("cooled", reason))
            assert COUNT.encode() not in reply.body
        assert len(play.sent) == 3


async def test_what_a_model_says_in_a_stream_is_no_refusal(tmp_path: Path) -> None:
    said = event({"type": "response.output_text.delta", "delta": COUNT}, "response.output_text.delta")
    send = FORMS["responses, tool"]
    messages = [{"role": "user", "content": "Click."}, *send.round_of(picture(0, 5_000), 0)]
    model_server = ModelServer(window=10_000_000, script=lambda *_: Fault(answer=answers.events(said.encode())))
    async with stage(tmp_path, model_server) as play:
        reply = await play.send(send.body(messages, stream=True), path=RESPONSES)
        assert (len(play.sent), COUNT.encode() in reply.body) == (1, True)


async def test_pictures_a_minute_are_a_rate(tmp_path: Path) -> None:
    send, messages = FORMS["chat, user"], [{"role": "user", "content": "Click."}]
    for number in range(16):
        messages += send.round_of(picture(number, 5_000), number)
    words = {"error": {"code": 429, "message": "Too many images in this minute."}}
    told = answers.events(event(words).encode())
    async with stage(tmp_path, ModelServer(window=10_000_000, script=lambda *_: Fault(answer=told))) as play:
        await play.send(send.body(messages, stream=True), path=send.path)
        assert len(play.sent) == 1
