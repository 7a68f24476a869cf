"""The tests' model server is like the real thing: window, errors, streams, tools, records, and faults on demand."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp
import pytest

from policies.conversation.transcript import Utterance, render
from policies.record.bisect import SummarizeCall
from policies.record.prompting import Continuity, fill
from policies.record.texts import texts_for
from policies.record.validation import Invalid, SummaryAnswer, Valid, validate
from proxy.models.tokenizer import DEFAULT_ENCODING, Tokenizer
from proxy.wiring import read_prompts
from tests.support.model_server import Fault, ModelServer, answers
from tests.support.servers import serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from policies.record.texts import Language

pytestmark = pytest.mark.anyio

TOKENIZER = Tokenizer()
TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "parameters": {"properties": {"path": {"type": "string"}, "line": {"type": "integer"}}, "required": ["path"]},
    },
}


class Client:
    """Talks to one server."""

    def __init__(self, session: aiohttp.ClientSession, address: str) -> None:
        self.session = session
        self.address = address
        self.url = f"{address}/v1/chat/completions"

    async def post(self, *messages: object, **more: object) -> tuple[int, dict]:
        body = {"model": "demo-8k", "messages": messages, **more}
        async with self.session.post(self.url, json=body) as response:
            return response.status, await response.json()

    async def say(self, text: str, *before: object) -> str:
        _, answer = await self.post(*before, user(text))
        return answer["choices"][0]["message"]["content"]

    async def events(self, *messages: object, **more: object) -> list[object]:
        body = {"model": "demo-8k", "messages": messages, "stream": True, **more}
        async with self.session.post(self.url, json=body) as response:
            assert response.content_type == "text/event-stream"
            *chunks, done, empty = (await response.text()).split("\n\n")
        assert (done, empty) == ("data: [DONE]", "")
        return [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]


@asynccontextmanager
async def talking_to(server: ModelServer) -> AsyncIterator[Client]:
    async with serve(server) as address, aiohttp.ClientSession() as session:
        yield Client(session, address)


def user(text: str) -> dict[str, object]:
    return {"role": "user", "content": text}


def calls(*ids: str) -> dict[str, object]:
    made = [{"id": i, "type": "function", "function": {"name": "read_file", "arguments": "{}"}} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": made}


def result(call: str) -> dict[str, object]:
    return {"role": "tool", "tool_call_id": call, "content": "ok"}


async def test_an_answer_reports_the_tokens_it_counted() -> None:
    server = ModelServer()
    async with talking_to(server) as client:
        status, answer = await client.post(user("hello"))
    assert status == 200
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["finish_reason"] == "stop"
    # 3 for the message, 1 for the role, 1 for the text, 3 for the answer's start
    assert answer["usage"]["prompt_tokens"] == server.received[0].prompt_tokens == 8


async def test_the_token_ratio_makes_every_token_dearer() -> None:
    server = ModelServer(token_ratio=4)
    async with talking_to(server) as client:
        await client.post(user("hello"))
    assert server.received[0].prompt_tokens == 32


async def test_a_prompt_over_the_window_gets_the_literal_error_of_openai() -> None:
    async with talking_to(ModelServer(window=20)) as client:
        status, answer = await client.post(
            user("one two three four five six seven eight nine ten eleven twelve thirteen fourteen")
        )
    assert status == 400
    assert answer == {
        "error": {
            "message": "This model's maximum context length is 20 tokens. "
            "However, your messages resulted in 21 tokens. Please reduce the length of the messages.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }
    }


async def test_too_much_requested_output_is_told_apart() -> None:
    async with talking_to(ModelServer(window=20)) as client:
        status, answer = await client.post(user("hello"), max_tokens=13)
    assert status == 400
    assert answer["error"]["message"] == (
        "This model's maximum context length is 20 tokens. However, you requested 21 tokens (8 in the messages, "
        "13 in the completion). Please reduce the length of the messages or completion."
    )


async def test_every_model_may_have_a_window_of_its_own() -> None:
    async with talking_to(ModelServer(windows={"tiny": 5})) as client:
        assert (await client.post(user("hello"), model="tiny"))[0] == 400
        assert (await client.post(user("hello")))[0] == 200


async def test_a_stream_is_the_answer_in_openais_chunks() -> None:
    async with talking_to(ModelServer()) as client:
        whole = await client.say("hello")
        first, *words, last, usage = await client.events(user("hello"), stream_options={"include_usage": True})
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(word["choices"][0]["delta"]["content"] for word in words) == whole
    assert last["choices"][0]["finish_reason"] == "stop"
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens"] == 8


async def test_usage_is_streamed_only_if_asked_for() -> None:
    async with talking_to(ModelServer()) as client:
        assert all(chunk["choices"] for chunk in await client.events(user("hello")))


@pytest.mark.parametrize(
    ("messages", "wrong"),
    [
        ((user("a"), calls("1"), result("1")), None),
        ((user("a"), calls("1", "2"), result("2"), result("1"), user("b")), None),
        ((user("a"), result("1")), "must be a response to a preceeding message with 'tool_calls'"),
        ((user("a"), calls("1"), result("2")), "'tool_call_id' of '2' not found in 'tool_calls' of previous message"),
        ((user("a"), calls("1"), result("1"), result("1")), "Duplicate value for 'tool_call_id' of '1' in message[3]"),
        ((user("a"), calls("1", "2"), result("1"), user("b")), "did not have response messages: 2"),
        ((user("a"), calls("1")), "did not have response messages: 1"),
    ],
    ids=["paired", "shuffled", "orphan", "stranger", "duplicate", "unanswered", "unanswered at the end"],
)
async def test_tool_calls_and_their_answers_must_pair(messages: tuple[object, ...], wrong: str | None) -> None:
    server = ModelServer()
    async with talking_to(server) as client:
        status, answer = await client.post(*messages)
    if wrong is None:
        assert (status, server.defects) == (200, 0)
    else:
        assert status == 400
        assert server.defects > 0
        assert wrong in answer["error"]["message"]


async def test_a_question_is_answered_with_the_newest_line_that_names_it() -> None:
    facts = (
        user("The budget is 40 EUR.\nThe codename is Heron.\nWhat is the budget?"),
        user("Now: the budget is 55 EUR."),
    )
    async with talking_to(ModelServer()) as client:
        assert await client.say("What is the budget?", *facts) == "Now: the budget is 55 EUR."
        assert await client.say("So, what is the codename?", *facts) == "The codename is Heron."
        assert await client.say("What is the port?", *facts) == "Nothing in this conversation says what port is."


async def test_a_chinese_question_is_answered_too() -> None:
    async with talking_to(ModelServer()) as client:
        assert await client.say("发布代号是什么？", user("发布代号是苍鹭。\n预算是四百元。")) == "发布代号是苍鹭。"


async def test_it_calls_a_tool_only_when_told_to() -> None:
    async with talking_to(ModelServer()) as client:
        assert "tool_calls" not in (await client.post(user("hello"), tools=[TOOL]))[1]["choices"][0]["message"]
        _, answer = await client.post(user("Use the tool."), tools=[TOOL])
        chunks = await client.events(user("Use the tool."), tools=[TOOL])
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "read_file", "arguments": '{"path":"example"}'}
    deltas = [chunk["choices"][0]["delta"]["tool_calls"][0] for chunk in chunks[1:-1]]
    assert deltas[0]["function"]["name"] == "read_file"
    assert "".join(delta["function"]["arguments"] for delta in deltas) == '{"path":"example"}'


def record_prompt(language: Language, said: str) -> tuple[str, str]:
    prompts = read_prompts()
    spoken = [Utterance(i, "user" if i % 2 == 0 else "assistant", f"{said} {i}") for i in range(60)]
    blocks = tuple(render(spoken, lambda text: len(text) // 4))
    prompt = fill(prompts, SummarizeCall(blocks, depth=0), Continuity(), texts_for(language), 400)
    return prompt.system, prompt.user


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("summaries", ["faithful", "useless", "garbage"])
async def test_its_records_pass_validation_unless_they_are_meant_not_to(summaries: str, language: Language) -> None:
    system, transcript = record_prompt(language, "Look at src/app.py" if language == "en" else "请看 src/app.py 的代码")
    server = ModelServer(summaries=summaries)
    async with talking_to(server) as client:
        _, answer = await client.post({"role": "system", "content": system}, user(transcript), max_tokens=1024)

    def count(text: str) -> int:
        return TOKENIZER.count(text, DEFAULT_ENCODING)

    choice = answer["choices"][0]
    headings = texts_for(language).headings
    verdict = validate(
        SummaryAnswer(choice["message"]["content"], choice["finish_reason"]),
        source=transcript,
        source_tokens=count(transcript),
        cap=300,
        headings=headings,
        count=count,
    )
    assert isinstance(verdict, Invalid if summaries == "garbage" else Valid)
    assert server.summary_calls == 1
    assert server.received[0].is_summary


@pytest.mark.parametrize(("summaries", "status"), [("down", 500), ("refuse", 401)])
async def test_a_summarizer_that_fails_answers_everybody_else(summaries: str, status: int) -> None:
    system, transcript = record_prompt("en", "Look at src/app.py")
    async with talking_to(ModelServer(summaries=summaries)) as client:
        assert (await client.post({"role": "system", "content": system}, user(transcript)))[0] == status
        assert (await client.post(user("hello")))[0] == 200


async def test_a_slow_summarizer_waits_until_it_is_let_go() -> None:
    system, transcript = record_prompt("en", "Look at src/app.py")
    server = ModelServer(summaries="slow")
    async with talking_to(server) as client:
        asked = asyncio.create_task(client.post({"role": "system", "content": system}, user(transcript)))
        assert (await client.post(user("hello")))[0] == 200
        assert not asked.done()
        server.let_summaries_go.set()
        assert (await asked)[0] == 200


async def test_without_a_window_nothing_is_read_and_every_chat_gets_the_same_answer() -> None:
    server = ModelServer(window=None)
    async with talking_to(server) as client:
        assert (await client.post(result("x")))[0] == 200
        words = [chunk["choices"][0]["delta"].get("content", "") for chunk in await client.events(user("hello"))]
    assert "".join(words).startswith("The quick brown fox")
    assert server.received[0].prompt_tokens == 0


async def test_other_paths_echo_what_arrived() -> None:
    async with talking_to(ModelServer()) as client, client.session.put(client.url, data=b"x") as response:
        digest = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
        assert await response.json() == {"method": "PUT", "path": "/v1/chat/completions", "sha256": digest}


async def test_it_lists_its_models() -> None:
    async with talking_to(ModelServer()) as client, client.session.get(f"{client.address}/v1/models") as response:
        assert [model["id"] for model in (await response.json())["data"]] == ["demo-8k"]


@asynccontextmanager
async def faulty(fault: Fault, *, stream: bool = True) -> AsyncIterator[tuple[ModelServer, aiohttp.ClientResponse]]:
    server = ModelServer(script=lambda number, body: fault)
    body = {"model": "demo-8k", "messages": [user("hello")], "stream": stream}
    async with talking_to(server) as client, client.session.post(client.url, json=body) as response:
        yield server, response


async def test_a_scripted_answer_is_sent_as_it_is() -> None:
    limited = answers.plain(429, {"error": {"message": "slow down"}}, (b"retry-after", b"7"))
    async with faulty(Fault(limited)) as (_, response):
        assert (response.status, response.headers["retry-after"]) == (429, "7")
        assert await response.json() == {"error": {"message": "slow down"}}


async def test_a_scripted_stream_may_begin_with_an_error() -> None:
    first = answers.event({"error": {"message": "overloaded"}})
    async with faulty(Fault(answers.events(first))) as (_, response):
        assert await response.read() == b'data: {"error":{"message":"overloaded"}}\n\n'


@pytest.mark.parametrize("stream", [True, False])
async def test_a_scripted_cut_ends_the_connection_and_not_the_answer(*, stream: bool) -> None:
    async with faulty(Fault(cut_after=250), stream=stream) as (_, response):
        assert len(await response.content.readexactly(250)) == 250
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


async def test_a_scripted_pause_lasts_until_it_is_lifted() -> None:
    event = asyncio.Event()
    async with faulty(Fault(between=event.wait)) as (_, response):
        first = await response.content.readuntil(b"\n\n")
        event.set()
        assert b'"role":"assistant"' in first
        assert (await response.read()).endswith(answers.DONE)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_scripted_compression_can_be_undone(*, stream: bool) -> None:
    async with faulty(Fault(gzip=True), stream=stream) as (_, response):
        assert response.headers["content-encoding"] == "gzip"
        assert b"messages" in await response.read()


async def test_a_client_that_leaves_while_it_waits_is_noticed() -> None:
    async with faulty(Fault(between=asyncio.Event().wait)) as (server, response):
        await response.content.readuntil(b"\n\n")
        response.close()
        await asyncio.wait_for(server.disconnected.wait(), 30)
