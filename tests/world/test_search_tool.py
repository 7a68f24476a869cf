"""`recall: tool`: a model searches its own conversation, and the client sees one answer, in every dialect."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from proxy.demo.answers import Usage
from proxy.demo.apis import APIS
from proxy.demo.model_server import Fault
from proxy.demo.prompt import Call, Function
from proxy.demo.replies import Reply
from proxy.dialects.searching import NAME
from tests.support.dialects import WRITERS, model, user
from tests.support.scenarios import prose
from tests.support.worlds import world

if TYPE_CHECKING:
    from pathlib import Path

    from proxy.demo.answers import Answer
    from proxy.demo.apis import Api
    from tests.support.conversations import Json
    from tests.support.dialects import Entry, Writer
    from tests.support.worlds import World

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
in_each = pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.dialect.name)
in_both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])

FACT = "The spare key of the boathouse hangs behind the third oar."
ANSWER = "It hangs behind an oar."
TOOL: dict[str, object] = {"policies": {"default": {"summarizer": {"model": "none"}, "recall": "tool"}}}
SEARCH = Reply(call=Call("", Function(NAME, '{"query": "boathouse key"}')))
OTHER = Reply(call=Call("call_1", Function("bash", '{"path": "a.py"}')))
_USED = Usage(100, 10)


def api_of(writer: Writer) -> Api:
    return next(api for api in APIS if api.path.strip("/") == "/".join(writer.dialect.path))


def chat(exchanges: int = 40) -> list[Entry | Json]:
    said: list[Entry | Json] = [user("Let us plan the summer.")]
    for number in range(exchanges):
        said.append(model(FACT if number == 6 else prose(("model", number), 180)))
        said.append(user(f"Go on with part {number}, please."))
    return said


def as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


class Asked:
    """A provider that answers with these in turn, and with the last one from then on."""

    def __init__(self, writer: Writer, *answers: Reply | Answer, stream: bool) -> None:
        self.api, self.answers, self.stream = api_of(writer), list(answers), stream
        self.bodies: list[Json] = []

    def __call__(self, _number: int, body: bytes) -> Fault:
        self.bodies.append(json.loads(body))
        said = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if not isinstance(said, Reply):
            return Fault(said)
        if said.call is not None:
            said = Reply(call=Call(f"call_{len(self.bodies)}", said.call.function))
        write = self.api.stream if self.stream else self.api.whole
        return Fault(write(said, "gpt-4o", len(self.bodies), _USED))


async def ask(play: World, history: list[Entry | Json], *, stream: bool, **more: object) -> str:
    fields = {"store": False} if play.writer.dialect.name == "responses" else {}
    reply = await play.post(play.body(history, stream=stream, **fields, **more))
    assert reply.status == 200, reply.body
    assert play.provider.invalid == []
    return reply.body.decode()


def names(body: Json) -> list[object]:
    tools = body.get("tools") or []
    assert isinstance(tools, list)
    return [tool.get("function", tool).get("name") for tool in tools]


@in_each
@in_both
async def test_a_search_is_answered_before_the_client_sees_anything(
    tmp_path: Path, writer: Writer, *, stream: bool
) -> None:
    script = Asked(writer, SEARCH, Reply(ANSWER), stream=stream)
    async with world(tmp_path, writer, more=script, **TOOL) as play:
        got = await ask(play, chat(), stream=stream)
        assert NAME not in got
        assert all(word in got for word in ANSWER.split())
        first, second = script.bodies
        assert names(first) == names(second) == ["bash", NAME]
        assert first[play.key] == second[play.key][: len(first[play.key])]
        assert FACT in as_json(second[play.key][len(first[play.key]) :])
        assert FACT not in as_json(first[play.key])
        metrics = await play.metrics()
        assert re.search(r'concertina_searches_total{.*tenant="default",upstream="main"} 1.0', metrics)


@in_each
@in_both
async def test_the_tokens_of_all_turns_are_told(tmp_path: Path, writer: Writer, *, stream: bool) -> None:
    script = Asked(writer, SEARCH, SEARCH, Reply(ANSWER), stream=stream)
    async with world(tmp_path, writer, more=script, **TOOL) as play:
        got = await ask(play, chat(), stream=stream)
        data = (
            [line.removeprefix("data: ") for line in got.splitlines() if line.startswith("data: {")]
            if stream
            else [got]
        )
        used = writer.dialect.answers.usage([each.encode() for each in reversed(data) if '"usage"' in each])
        assert used is not None
        assert (used.prompt_tokens, used.completion_tokens) == (300, 30)


@in_each
@in_both
async def test_an_answer_that_searches_nothing_keeps_its_bytes(tmp_path: Path, writer: Writer, *, stream: bool) -> None:
    script = Asked(writer, Reply(""), stream=stream)
    async with world(tmp_path, writer, more=script, **TOOL) as play:
        for reply in (Reply(prose("long", 200)), Reply("Short."), OTHER):
            script.answers, script.bodies = [reply], []
            got = await ask(play, chat(3), stream=stream)
            write = script.api.stream if stream else script.api.whole
            assert got.encode() == b"".join(write(reply, "gpt-4o", 1, _USED).chunks)


@in_each
@in_both
async def test_a_model_that_never_ends_searching_is_asked_without_the_tool(
    tmp_path: Path, writer: Writer, *, stream: bool
) -> None:
    script = Asked(writer, SEARCH, SEARCH, SEARCH, Reply(ANSWER), stream=stream)
    async with world(tmp_path, writer, more=script, **TOOL) as play:
        assert "oar." in await ask(play, chat(), stream=stream)
        assert [NAME in names(body) for body in script.bodies] == [True, True, True, False]


@in_each
@in_both
async def test_what_fails_behind_a_search_is_asked_again_without_it(
    tmp_path: Path, writer: Writer, *, stream: bool
) -> None:
    failed = api_of(writer).refused(500, "The server had an error.")
    script = Asked(writer, SEARCH, failed, Reply(ANSWER), stream=stream)
    async with world(tmp_path, writer, more=script, **TOOL) as play:
        assert "oar." in await ask(play, chat(), stream=stream)
        assert [NAME in names(body) for body in script.bodies] == [True, True, False]


@in_each
async def test_where_the_tool_is_refused_the_clients_own_request_goes(tmp_path: Path, writer: Writer) -> None:
    refused = api_of(writer).refused(400, "Unknown tools are not allowed here.")
    script = Asked(writer, refused, Reply(ANSWER), stream=False)
    async with world(tmp_path, writer, more=script, **TOOL) as play:
        assert "oar." in await ask(play, chat(3), stream=False)
        assert [names(body) for body in script.bodies] == [["bash", NAME], ["bash"]]
        await ask(play, chat(3), stream=False)
        assert names(script.bodies[-1]) == ["bash"]


_FORCED = {
    "chat": ({"tool_choice": "none"}, {"tool_choice": "required"}, {"functions": [{"name": "f"}]}),
    "responses": ({"tool_choice": "required"}, {"store": True}, {"max_tool_calls": 1}),
    "messages": ({"tool_choice": {"type": "any"}}, {"thinking": {"type": "enabled", "budget_tokens": 1_024}}),
}


@in_each
async def test_the_tool_is_not_offered_where_it_has_no_place(tmp_path: Path, writer: Writer) -> None:
    own = json.loads(as_json(_tools(writer)).replace("bash", NAME))
    fields = {"store": False} if writer.dialect.name == "responses" else {}
    script = Asked(writer, Reply(ANSWER), stream=False)
    async with world(tmp_path, writer, more=script, **TOOL) as play:
        await play.post(play.body(chat(3), **fields))
        assert names(script.bodies[-1]) == ["bash", NAME]
        for more in ({"tools": []}, *_FORCED[writer.dialect.name]):
            await play.post(play.body(chat(3), **{**fields, **more}))
            assert NAME not in names(script.bodies[-1]), more
        await play.post(play.body(chat(3), **fields, tools=own))
        assert as_json(script.bodies[-1]).count(NAME) == 1


def _tools(writer: Writer) -> list[Json]:
    tools = writer.fields()["tools"]
    assert isinstance(tools, list)
    return tools


@in_each
async def test_only_this_mode_of_recall_offers_it(tmp_path: Path, writer: Writer) -> None:
    script = Asked(writer, Reply(ANSWER), stream=False)
    async with world(tmp_path, writer, more=script) as play:
        await ask(play, chat(3), stream=False)
        assert names(script.bodies[0]) == ["bash"]
