"""What lies with the provider, what it refuses, what it counts and who asks it, in every dialect."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from tests.support.dialects import WRITERS
from tests.support.model_server import Fault, ModelServer, answers
from tests.support.scenarios import FIRST, RULES, WINDOW, until_settled
from tests.support.worlds import Talk, session, told, world

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.conversations import Json
    from tests.support.dialects import Writer
    from tests.support.worlds import World

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

OF = {writer.dialect.name: writer for writer in WRITERS}
in_each = pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.dialect.name)
in_two = pytest.mark.parametrize("name", ["responses", "messages"])


def long(rounds: int = 30) -> Talk:
    """A talk of about the window's size."""
    talk = Talk()
    talk.says(FIRST)
    for _ in range(rounds):
        talk.works()
    return talk


# State that is not in the request.

TRIGGER: Json = {"type": "compaction_trigger"}
REFERENCE: Json = {"type": "item_reference", "id": "msg_1"}
CLEARING: Json = {"edits": [{"type": "clear_tool_uses_20250919"}]}
BUDGET: Json = {"task_budget": {"type": "tokens", "total": 9_000, "remaining": 4_000}}


@pytest.mark.requirement("D 11")
@pytest.mark.parametrize(
    ("name", "fields", "first", "last", "reason"),
    [
        ("responses", {"previous_response_id": "resp_1"}, [], [], "previous_response_id"),
        ("responses", {"conversation": "conv_1"}, [], [], "conversation"),
        ("responses", {"conversation": {"id": "conv_1"}}, [], [], "conversation"),
        ("responses", {}, [REFERENCE], [], "stored_items"),
        ("messages", {"fallback_credit_token": "t"}, [], [], "bound_body"),
        ("messages", {"output_config": BUDGET}, [], [], "bound_body"),
    ],
)
async def test_what_lies_with_the_provider_goes_as_it_came(
    tmp_path: Path, name: str, fields: Json, first: list[Json], last: list[Json], reason: str
) -> None:
    async with world(tmp_path, OF[name], ModelServer(window=100_000)) as play:
        await goes_as_it_came(play, [*first, *long(50).history, *last], fields, reason)


@pytest.mark.requirement("D 11")
@pytest.mark.parametrize(
    ("name", "fields", "last", "reason"),
    [
        ("responses", {}, [TRIGGER], "provider_compaction"),
        ("responses", {"context_management": [{"type": "compaction"}]}, [], "provider_context_management"),
        ("messages", {"compaction": {"type": "auto"}}, [], "provider_compaction"),
        ("messages", {"context_management": CLEARING}, [], "provider_context_management"),
    ],
)
async def test_what_a_provider_that_compacts_is_asked_for_goes_as_it_came(
    tmp_path: Path, name: str, fields: Json, last: list[Json], reason: str
) -> None:
    async with world(tmp_path, OF[name], ModelServer(window=100_000), native="yes") as play:
        await goes_as_it_came(play, [*long(50).history, *last], fields, reason)


async def goes_as_it_came(play: World, history: list[Json], fields: Json, reason: str) -> None:
    body = play.body(history, **fields)
    reply = await play.post(body)
    assert (reply.status, told(reply)) == (200, ("bypass", reason))
    assert play.sent[-1].received.body == json.dumps(body).encode()
    assert reply.received > WINDOW
    assert play.calls == 0


@pytest.mark.parametrize(
    ("name", "fields", "last", "outcome", "items", "copies"),
    [
        ("responses", {}, [TRIGGER], ("applied", "client_request"), 1, 0),
        ("responses", {"context_management": [{"type": "compaction"}]}, [], ("applied", "client_threshold"), 1, 1),
        ("messages", {"compaction": {"type": "summarize"}}, [], ("applied", "client_request"), 1, 0),
        ("messages", {"context_management": CLEARING}, [], ("applied", "tool_execution"), 0, 1),
    ],
)
async def test_what_a_provider_that_does_not_compact_is_asked_for_is_answered_here(
    tmp_path: Path, name: str, fields: Json, last: list[Json], outcome: tuple[str, str], items: int, copies: int
) -> None:
    """copies: how many requests go on to the model, none with the question in it."""
    async with world(tmp_path, OF[name], ModelServer(window=100_000)) as play:
        reply = await play.post(play.body([*long(50).history, *last], **fields))
        assert (reply.status, told(reply)) == (200, outcome)
        assert reply.body.count(b'"ccn1.') == items
        assert reply.headers.get("x-compaction-item") == ("made" if items else None)
        assert play.calls > 0
        assert len(play.sent) == copies
        for sent in play.sent:
            assert not {*fields} & {*sent.body}
            assert sent.received.prompt_tokens < WINDOW
            assert all(rule in sent.texts for rule in RULES)


async def test_a_question_that_no_provider_takes_is_refused_before_one_that_does_not_compact(tmp_path: Path) -> None:
    async with world(tmp_path, OF["messages"], ModelServer(window=100_000)) as play:
        reply = await play.post(play.body(long(50).history, compaction={"type": "auto"}))
        assert reply.status == 400
        assert json.loads(reply.body)["error"]["message"] == "compaction.type: Input should be 'summarize'"
        assert not play.model.received


async def test_a_reference_in_the_kept_tail_is_no_obstacle(tmp_path: Path) -> None:
    talk = long(50)
    async with world(tmp_path, OF["responses"]) as play:
        talk.history.append(REFERENCE)
        reply = await play.send(talk.says("Go on."))
        assert told(reply)[0] == "applied"
        assert REFERENCE in play.sent[-1].items


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("responses", {"truncation": "auto"}),
        ("responses", {"store": True}),
        ("messages", {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}),
        ("messages", {"container": "c_1", "speed": "fast"}),
    ],
)
async def test_what_is_no_reason_for_anything(tmp_path: Path, name: str, fields: Json) -> None:
    async with world(tmp_path, OF[name]) as play:
        reply = await play.send(long(50).history, **fields)
        assert told(reply)[0] == "applied"


def compacted_by_the_provider(name: str) -> Json:
    sealed = {"type": "compaction", "encrypted_content": "sealed"}
    block = {"type": "compaction", "content": "What was said before."}
    return sealed if name == "responses" else {"role": "assistant", "content": [block]}


@in_two
async def test_what_the_provider_compacted_is_left_alone_and_what_comes_after_is_ours(
    tmp_path: Path, name: str
) -> None:
    talk, barrier = Talk(), compacted_by_the_provider(name)
    async with world(tmp_path, OF[name], native="yes") as play:
        for history in session(talk, requests=8):
            await play.send(history)
        talk.history += [barrier]
        behind = len(play.items(talk.history))
        talk.says("Go on.")
        for _ in range(60):
            await play.send(talk.works())
        assert play.calls > 0
        assert play.sent[-1].items[:behind] == play.items(talk.history)[:behind]
        assert len(play.sent[-1].items) < len(play.items(talk.history))


@in_two
async def test_what_was_compacted_elsewhere_is_a_note_to_a_provider_that_does_not_compact(
    tmp_path: Path, name: str
) -> None:
    """Of Responses with what stood before it, which the client may have kept; a block stands for that."""
    talk = Talk()
    async with world(tmp_path, OF[name], native="no") as play:
        for history in session(talk, requests=8):
            await play.send(history)
        before = play.items(talk.history)
        talk.history += [compacted_by_the_provider(name)]
        reply = await play.post(play.body(talk.says("Go on.")))
        assert reply.status == 200
        assert reply.headers.get("x-compaction-warning") == ("foreign_compaction" if name == "responses" else None)
        kept = before if name == "responses" else []
        *first, note, newest = play.sent[-1].items
        assert (first, newest) == (kept, play.items(talk.history)[-1])
        assert "<conversation_record>" in json.dumps(note)
        assert ("What was said before." in json.dumps(note)) == (name == "messages")
        for _ in range(60):
            reply = await play.post(play.body(talk.works()))
            assert (reply.status, play.provider.invalid) == (200, [])
        assert play.calls > 0
        assert play.sent[-1].received.prompt_tokens < WINDOW


# Overflows.


def _events_in(stream: bytes) -> list[bytes]:
    """The data of a stream's events."""
    return [line.removeprefix(b"data: ") for line in stream.splitlines() if line.startswith(b"data: {")]


def _events_of(writer: Writer) -> bytes:
    """How an overflow is told inside of a stream that has begun."""
    if writer.dialect.name == "chat":
        error = {"message": "This model's maximum context length is 8192 tokens.", "code": "context_length_exceeded"}
        return answers.event({"error": {**error, "type": "invalid_request_error", "param": "messages"}})
    if writer.dialect.name == "messages":
        error = {"type": "invalid_request_error", "message": "prompt is too long: 9000 tokens > 8192 maximum"}
        return answers.named_event({"type": "error", "error": error})
    error = {"code": "context_length_exceeded", "message": "Your input exceeds the context window of this model."}
    begun = {"id": "resp_1", "object": "response", "status": "in_progress", "error": None, "output": []}
    failed = {**begun, "status": "failed", "error": error}
    return answers.named_event({"type": "response.created", "response": begun}) + answers.named_event(
        {"type": "response.failed", "response": failed}
    )


@pytest.mark.requirement("D 8")
@in_each
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("gzip", [False, True])
async def test_an_overflow_is_solved(tmp_path: Path, writer: Writer, *, stream: bool, gzip: bool) -> None:
    def zipped(number: int, body: bytes) -> Fault | None:
        return Fault(gzip=True) if gzip else None

    talk = long(60)
    async with world(tmp_path, writer, more=zipped, models=[]) as play:
        reply = await play.send(talk.history, stream=stream)
        assert told(reply) == ("applied", "overflow_retry")
        assert all(rule in play.sent[-1].texts for rule in RULES)


@pytest.mark.requirement("D 8")
@in_each
async def test_an_overflow_in_a_stream_is_solved(tmp_path: Path, writer: Writer) -> None:
    """The whole history overflows after the stream has begun; nothing of that reaches the client."""
    talk = long(30)

    def script(number: int, body: bytes) -> Fault | None:
        return Fault(answers.events(_events_of(writer))) if b"part_1.py" in body and b"part_59.py" in body else None

    async with world(tmp_path, writer, ModelServer(window=100_000), more=script, models=[]) as play:
        reply = await play.post(play.body(talk.history, stream=True))
        assert (reply.status, told(reply)) == (200, ("applied", "overflow_retry"))
        assert b"too long" not in reply.body
        assert b"context" not in reply.body


WAITING = {"chat": b": ", "responses": b": ", "messages": b'event: ping\ndata: {"type": "ping"}\n\n'}


@in_each
async def test_an_overflow_behind_comments_is_solved(tmp_path: Path, writer: Writer) -> None:
    """While the summary is made, the stream begins with what the dialect waits by."""
    policies = {"default": {"keepalive": "0.05s", "summarizer": {"timeout": "1s"}}}
    server = ModelServer(window=WINDOW, summaries="slow")
    async with world(tmp_path, writer, server, policies=policies) as play:
        reply = await play.post(play.body(long(60).history, stream=True))
        assert reply.status == 200
        assert reply.body.startswith(WAITING[writer.dialect.name])
        assert any(map(writer.dialect.answers.has_content, _events_in(reply.body)))
        assert play.provider.invalid == []
        server.let_summaries_go.set()


TOO_LONG = {"chat": b"maximum context length", "responses": b"exceeds the context window", "messages": b"too long"}


@pytest.mark.requirement("D 9")
@in_each
@pytest.mark.parametrize("overflow_error", ["upstream", "client"])
async def test_an_overflow_that_nothing_solves_has_the_dialects_words(
    tmp_path: Path, writer: Writer, overflow_error: str
) -> None:
    async with world(
        tmp_path, writer, ModelServer(window=100), policies={"default": {"overflow_error": overflow_error}}
    ) as play:
        reply = await play.post(play.body(long(60).history))
        assert reply.status == 400
        assert TOO_LONG[writer.dialect.name] in reply.body
        error = json.loads(reply.body)
        assert error.get("type") == ("error" if writer.dialect.name == "messages" else None)


# What nobody foresaw.


@in_each
async def test_an_unforeseen_refusal_of_copies_is_followed_by_the_original(tmp_path: Path, writer: Writer) -> None:
    """Once the copy and then the original; for ten minutes originals alone."""

    def script(number: int, body: bytes) -> Fault | None:
        is_copy = b"conversation_record" in body
        return Fault(answers.plain(400, {"error": {"message": "Nobody knows why."}})) if is_copy else None

    models = [{"match": "*", "context_window": 2 * WINDOW}]
    talk = Talk()
    server = ModelServer(window=2 * WINDOW)
    policies = {"default": {"compaction_threshold": 0.5, "apply_floor": 0.4, "target_ratio": 0.4,
                            "soft_threshold": 0.45, "min_target_ratio": 0.3}}  # fmt: skip
    async with world(tmp_path, writer, server, more=script, models=models, policies=policies) as play:
        replies = await play.play(session(talk, requests=45))
        refused = [received for received in server.received if received.status == 400]
        assert len(refused) == 1
        assert ("failed-open", "refused") in {told(reply) for reply in replies}


# Counting.


@in_two
async def test_what_is_counted_is_what_the_next_request_is_billed(tmp_path: Path, name: str) -> None:
    writer = OF[name]
    path = writer.dialect.count_path
    assert path is not None
    talk = Talk()

    async def counted(play: World) -> int:
        reply = await play.post(play.body(talk.history), path=path)
        tokens: int = json.loads(reply.body)["input_tokens"]
        return tokens

    async with world(tmp_path, writer) as play:
        requests = session(talk)
        for history in (next(requests) for _ in range(12)):
            await play.send(history)
        before = await counted(play)
        assert play.calls == 0
        assert before == play.sent[-1].received.prompt_tokens
        await play.play(requests)
        await until_settled()  # a record may be in the making
        calls = play.calls
        assert await counted(play) == play.sent[-1].received.prompt_tokens
        assert await counted(play) < play.replies[-3].received
        assert play.calls == calls


# Credentials.


@pytest.mark.parametrize(
    ("headers", "is_login"),
    [
        ({"x-api-key": "sk-ant-api03-key"}, False),
        ({"authorization": "Bearer sk-ant-api03-key"}, False),
        ({"authorization": "Bearer sk-ant-oat01-login"}, True),
        ({"authorization": "Bearer login", "anthropic-beta": "oauth-2025-04-20"}, True),
    ],
    ids=["key", "bearer", "login", "login by its beta"],
)
async def test_the_clients_credential_goes_as_it_came_and_a_login_is_never_used_by_us(
    tmp_path: Path, headers: dict[str, str], *, is_login: bool
) -> None:
    async with world(tmp_path, OF["messages"]) as play:
        reply = await play.post(play.body(long(60).history), headers=headers)
        assert (reply.status, told(reply)[0]) == (200, "applied")
        assert (play.calls == 0) == is_login
        names = {"authorization", "x-api-key"}
        for received in play.model.received:
            if received.method == "POST":
                got = {name.decode(): value.decode() for name, value in received.headers}
                assert {name: got[name] for name in names & set(got)} == {
                    name: value for name, value in headers.items() if name in names
                }
        assert all(rule in play.sent[-1].texts for rule in RULES)


@in_each
@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
async def test_a_tenants_key_opens_in_either_header_and_goes_no_further(
    tmp_path: Path, writer: Writer, header: str
) -> None:
    key = "ck-tenant-key"
    tenants = {"acme": {"keys": ["sha256:" + hashlib.sha256(key.encode()).hexdigest()], "api_key": "acmes"}}
    async with world(tmp_path, writer, tenants=tenants) as play:
        value = f"Bearer {key}" if header == "authorization" else key
        reply = await play.post(play.body(long(60).history), headers={header: value})
        assert reply.status == 200, reply.body[:300]
        asked = [dict(received.headers) for received in play.model.received if received.method == "POST"]
        assert len(asked) == 1 + play.calls > 1
        assert all((got.get(b"authorization"), got.get(b"x-api-key")) == (b"Bearer acmes", None) for got in asked)
