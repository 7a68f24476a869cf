"""The tests' model server answers, refuses, counts and summarizes alike in each of its APIs, in that API's words."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp
import msgspec
import pytest

from policies.conversation.transcript import Utterance, render
from policies.record.bisect import SummarizeCall
from policies.record.prompting import Continuity, Prompt, fill, fill_aligned
from policies.record.texts import texts_for
from proxy.dialects.table import CHAT, MESSAGES, RESPONSES
from proxy.wiring import read_prompts
from tests.support.dialects import HISTORY, WRITERS, Called, Style, model, results, user
from tests.support.model_server import ModelServer
from tests.support.servers import serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from proxy.dialects.base import Dialect
    from tests.support.conversations import Json
    from tests.support.dialects import Entry, Writer

pytestmark = pytest.mark.anyio

of_each = pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.dialect.name)
TWO = [writer for writer in WRITERS if writer.dialect is not CHAT]
of_two = pytest.mark.parametrize("writer", TWO, ids=lambda writer: writer.dialect.name)
PLAIN = Style()
TOOLS = {
    "responses": {"type": "function", "name": "look", "parameters": {"properties": {"at": {}}, "required": ["at"]}},
    "messages": {"name": "look", "input_schema": {"properties": {"at": {"type": "string"}}, "required": ["at"]}},
}


class Client:
    """Of one server."""

    def __init__(self, session: aiohttp.ClientSession, address: str) -> None:
        self._session = session
        self._address = address

    async def post(self, path: Sequence[str], body: Json | bytes) -> tuple[int, str]:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self._session.post("/".join((self._address, "v1", *path)), data=content) as response:
            return response.status, await response.text()

    async def asked(self, writer: Writer, items: Sequence[Json], **more: object) -> tuple[int, Json]:
        status, text = await self.post(writer.dialect.path, body_of(writer, items, **more))
        return status, json.loads(text)

    async def events(self, writer: Writer, items: Sequence[Json], **more: object) -> list[Json]:
        _, text = await self.post(writer.dialect.path, body_of(writer, items, stream=True, **more))
        *events, end = text.split("\n\n")
        assert end == ""
        read = []
        for event in events:
            name, data = event.split("\n")
            read.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {read[-1]['type']}"
        return read


@asynccontextmanager
async def talking_to(server: ModelServer) -> AsyncIterator[Client]:
    async with serve(server) as address, aiohttp.ClientSession() as session:
        yield Client(session, address)


def body_of(writer: Writer, items: Sequence[Json], **more: object) -> Json:
    return {"model": "demo-8k", json.loads(writer.dialect.array.key): items, **more}


def items_of(writer: Writer, history: Sequence[Entry], style: Style = PLAIN) -> list[Json]:
    return [item for entry in history for item in writer.items(entry, style)]


@of_each
@pytest.mark.parametrize("style", [PLAIN, Style(parts=True, thinking=True)], ids=["plain", "with thinking"])
async def test_a_conversation_is_answered_and_its_usage_is_what_was_counted(writer: Writer, style: Style) -> None:
    server = ModelServer()
    async with talking_to(server) as client:
        status, answer = await client.asked(writer, items_of(writer, HISTORY, style))
    assert (status, server.defects) == (200, 0)
    usage = writer.dialect.answers.usage([json.dumps(answer).encode()])
    assert usage is not None
    assert usage.prompt_tokens == server.received[0].prompt_tokens > 60
    assert "messages read" in json.dumps(answer)


@of_two
async def test_a_stream_is_the_same_answer_event_by_event(writer: Writer) -> None:
    async with talking_to(ModelServer()) as client:
        _, whole = await client.asked(writer, items_of(writer, HISTORY))
        events = await client.events(writer, items_of(writer, HISTORY))
    pieces = [
        event["delta"] for event in events if "output_text.delta" in event["type"] or "block_delta" in event["type"]
    ]
    text = "".join(piece if isinstance(piece, str) else piece["text"] for piece in pieces)
    assert text in json.dumps(whole)
    assert len(text) > 20
    answers = writer.dialect.answers
    streamed = answers.usage([json.dumps(event).encode() for event in reversed(events)])
    assert streamed == answers.usage([json.dumps(whole).encode()])


@of_two
async def test_it_calls_a_tool_when_told_to(writer: Writer) -> None:
    items = items_of(writer, [user("Use the tool.")])
    tools = [TOOLS[writer.dialect.name]]
    async with talking_to(ModelServer()) as client:
        _, answer = await client.asked(writer, items, tools=tools)
        events = await client.events(writer, items, tools=tools)
    called = (answer.get("output") or answer.get("content"))[0]
    assert called["name"] == "look"
    arguments = called["input"] if "input" in called else json.loads(called["arguments"])
    assert arguments == {"at": "example"}
    pieces = [
        event["delta"] for event in events if "arguments.delta" in event["type"] or "block_delta" in event["type"]
    ]
    streamed = "".join(piece if isinstance(piece, str) else piece["partial_json"] for piece in pieces)
    assert json.loads(streamed) == arguments


@pytest.mark.parametrize(
    ("dialect", "field", "asked", "error"),
    [
        (
            RESPONSES,
            "input",
            {},
            {
                "message": "Your input exceeds the context window of this model. Please adjust your input and try"
                " again.",
                "type": "invalid_request_error",
                "param": "input",
                "code": "context_length_exceeded",
            },
        ),
        (
            MESSAGES,
            "messages",
            {},
            {"type": "invalid_request_error", "message": "prompt is too long: 28 tokens > 20 maximum"},
        ),
        (
            MESSAGES,
            "messages",
            {"short": True, "max_tokens": 50},
            {
                "type": "invalid_request_error",
                "message": "input length and `max_tokens` exceed context limit: 8 + 50 > 20, decrease input length or"
                " `max_tokens` and try again",
            },
        ),
    ],
    ids=["responses", "messages", "messages' output"],
)
async def test_a_prompt_over_the_window_is_refused_in_the_providers_words(
    dialect: Dialect, field: str, asked: Json, error: Json
) -> None:
    text = "hello" if asked.pop("short", None) else "one two three four five six seven eight nine ten " * 2
    body = {"model": "m", field: [{"role": "user", "content": text}], **asked}
    async with talking_to(ModelServer(window=20)) as client:
        status, answer = await client.post(dialect.path, body)
    assert status == 400
    assert json.loads(answer)["error"] == error
    assert ('"type":"error"' in answer) == (dialect is MESSAGES)


CALLED = model("", Called("a"), Called("b"))
WRONG = {
    "orphan": [user("x"), results(a="1")],
    "stranger": [user("x"), CALLED, results(a="1", c="2")],
    "duplicate": [user("x"), CALLED, results(a="1", b="2"), results(a="3")],
    "unanswered": [user("x"), CALLED, results(a="1"), model("Done."), user("y")],
    "unanswered at the end": [user("x"), CALLED],
}


@of_two
@pytest.mark.parametrize("name", WRONG)
async def test_calls_and_results_must_pair(writer: Writer, name: str) -> None:
    server = ModelServer()
    async with talking_to(server) as client:
        status, answer = await client.asked(writer, items_of(writer, WRONG[name]))
    assert status == 400
    assert server.defects > 0
    wording = "No tool" if writer.dialect is RESPONSES else "tool_use"
    assert wording in answer["error"]["message"]


def blocks(role: str, *content: Json) -> Json:
    return {"role": role, "content": content}


TEXT: Json = {"type": "text", "text": "x"}
USE: Json = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
RESULT: Json = {"type": "tool_result", "tool_use_id": "a", "content": "ok"}
SYSTEM: Json = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("messages", "wrong"),
    [
        ([blocks("user", TEXT), blocks("assistant", USE), blocks("user", RESULT, TEXT)], None),
        ([blocks("user", TEXT), blocks("assistant", TEXT), blocks("assistant", USE), blocks("user", RESULT)], None),
        ([blocks("user", TEXT), SYSTEM, SYSTEM, blocks("assistant", USE), blocks("user", RESULT), SYSTEM], None),
        ([blocks("assistant", TEXT)], "first message must use the user role"),
        ([blocks("user", TEXT), blocks("assistant", USE), blocks("user", TEXT, RESULT)], "immediately after: a"),
        ([blocks("user", TEXT), blocks("assistant", USE), SYSTEM, blocks("user", RESULT)], "immediately after: a"),
        ([SYSTEM, blocks("user", TEXT)], "first message must use the user role"),
        ([blocks("user", TEXT), blocks("assistant", TEXT), SYSTEM], "must follow a user message"),
        ([blocks("user", TEXT), SYSTEM, blocks("user", TEXT)], "must come before an assistant message"),
        ([blocks("user", {"type": "text", "text": ""})], "must be non-empty"),
        ([blocks("user")], "non-empty content"),
        ([{"role": "user", "content": ""}], "non-empty content"),
    ],
)
async def test_messages_stand_in_their_order(messages: list[Json], wrong: str | None) -> None:
    async with talking_to(ModelServer()) as client:
        status, answer = await client.post(MESSAGES.path, {"model": "m", "max_tokens": 9, "messages": messages})
    assert (status == 200) == (wrong is None), answer
    assert wrong is None or wrong in answer


THOUGHT: Json = {"type": "reasoning", "id": "rs_1", "summary": []}
CALL: Json = {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"}
OUTPUT: Json = {"type": "function_call_output", "call_id": "a", "output": "ok"}
SAID: Json = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("items", "wrong"),
    [
        ([SAID, THOUGHT, CALL, {**CALL, "call_id": "b"}, {**OUTPUT, "call_id": "b"}, SAID, OUTPUT], None),
        ([{"type": "item_reference", "id": "fc_1"}, OUTPUT, SAID], None),
        ([SAID, {"type": "web_search_call", "id": "ws_1"}, {"type": "tool_search_output", "tools": []}], None),
        ([SAID, THOUGHT, SAID], "required following item"),
        ([SAID, THOUGHT], "required following item"),
        ([{"role": "user", "content": [{"type": "input_text", "text": ""}]}], "empty string"),
        ([{"role": "user", "content": []}], "empty array"),
    ],
)
async def test_items_stand_in_any_order_but_with_what_they_belong_to(items: list[Json], wrong: str | None) -> None:
    async with talking_to(ModelServer()) as client:
        status, answer = await client.post(RESPONSES.path, {"model": "m", "input": items})
    assert (status == 200) == (wrong is None), answer
    assert wrong is None or wrong in answer


@of_two
async def test_tokens_are_counted_as_they_are_billed(writer: Writer) -> None:
    server = ModelServer(window=10)
    assert writer.dialect.count_path is not None
    async with talking_to(server) as client:
        items = items_of(writer, HISTORY)
        _, counted = await client.post(writer.dialect.count_path, body_of(writer, items))
        await client.asked(writer, items)
    assert json.loads(counted)["input_tokens"] == server.received[1].prompt_tokens
    assert ('"object"' in counted) == (writer.dialect is RESPONSES)


def record_prompt() -> Prompt:
    blocks = tuple(render([Utterance(0, "user", "The codename is Heron.")], len))
    return fill(read_prompts(), SummarizeCall(blocks, depth=0), Continuity(), texts_for("en"), 400)


@of_each
async def test_it_writes_the_record_that_a_prompt_of_ours_asks_for(writer: Writer) -> None:
    questions = writer.dialect.questions
    prompt = record_prompt()
    server = ModelServer()
    async with talking_to(server) as client:
        _, answer = await client.post(
            writer.dialect.path, questions.ask("demo-8k", prompt, (questions.OUTPUT_KEY, 4_096), None)
        )
    read = questions.read(answer.encode())
    assert read is not None
    assert "Heron" in read.text
    assert server.summary_calls == 1


@of_each
async def test_it_writes_the_record_that_a_question_behind_a_conversation_asks_for(writer: Writer) -> None:
    """Of what the user said, and not of what the question says."""
    questions, server = writer.dialect.questions, ModelServer(window=16_384)
    question = fill_aligned(read_prompts(), Continuity(), texts_for("en"), 400)
    items = items_of(writer, [user("## The codename is Heron."), *HISTORY[1:], user(question)])
    async with talking_to(server) as client:
        _, answer = await client.post(writer.dialect.path, body_of(writer, items))
    read = questions.read(answer.encode())
    assert read is not None
    assert read.text.startswith("## Goal\n## The codename is Heron.\n")
    assert "Write in English" not in read.text
    assert server.summary_calls == 1


@of_two
@pytest.mark.parametrize(("summaries", "status"), [("down", 500), ("refuse", 401)])
async def test_a_summarizer_fails_in_the_providers_words(writer: Writer, summaries: str, status: int) -> None:
    questions = writer.dialect.questions
    prompt = record_prompt()
    async with talking_to(ModelServer(summaries=summaries)) as client:
        asked = await client.post(writer.dialect.path, questions.ask("m", prompt, (questions.OUTPUT_KEY, 99), None))
    assert asked[0] == status
    assert msgspec.json.decode(asked[1].encode())["error"]["message"]


@of_each
async def test_without_a_window_every_conversation_gets_the_same_answer(writer: Writer) -> None:
    async with talking_to(ModelServer(window=None)) as client:
        for stream in (False, True):
            status, answer = await client.post(writer.dialect.path, {"stream": stream})
            assert status == 200
            assert ("data: " in answer) == stream
            assert "fox" in answer


@of_two
async def test_what_is_no_request_is_refused(writer: Writer) -> None:
    async with talking_to(ModelServer()) as client:
        status, _ = await client.post(writer.dialect.path, b"{}")
    assert status == 400
