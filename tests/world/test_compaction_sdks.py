"""Both providers' SDKs ask for compactions, take ours as their provider's, and send them back by themselves."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import anthropic
import openai
import pytest

from tests.support.items import HEAD, MODEL, TASK, TRIGGER, called, rounds, said, uses
from tests.support.stages import Stage, stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from anthropic.types.beta import BetaMessage
    from openai.types.responses import Response

    from tests.support.conversations import Json

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

HISTORY = [HEAD, said(TASK), *rounds(12)]
NEXT = said("And now the docs.")
THRESHOLD = [{"type": "compaction", "compact_threshold": 2_000}]
either = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streaming"])


@pytest.fixture
async def play(tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage(tmp_path) as play:
        yield play


def sent(play: Stage) -> list[Json]:
    """What the upstream got last."""
    body = json.loads(play.sent[-1].body)
    assert not {"context_management", "compaction", "betas"} & body.keys()
    return list(body["input"] if "input" in body else body["messages"])


def is_record(item: Json) -> bool:
    return item["role"] == "user" and "<conversation_record>" in json.dumps(item) and TASK in json.dumps(item)


@pytest.fixture
async def chatgpt(play: Stage) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{play.address}/v1", api_key="sk-test", max_retries=0) as client:
        yield client


async def responded(client: openai.AsyncOpenAI, items: list[object], *, stream: bool, **more: object) -> Response:
    """What is answered, put together by the SDK where it is a stream."""
    if not stream:
        return await client.responses.create(model=MODEL, input=items, **more)
    async with client.responses.stream(model=MODEL, input=items, **more) as streamed:
        return await streamed.get_final_response()


# A user's text in an answer is in no type of the SDK, whoever answers.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@either
async def test_openais_sdk_goes_on_from_what_the_endpoint_answers(
    play: Stage, chatgpt: openai.AsyncOpenAI, stream: bool
) -> None:
    compacted = await chatgpt.responses.compact(model=MODEL, input=HISTORY)
    assert (compacted.object, [item.type for item in compacted.output]) == (
        "response.compaction",
        ["message", "compaction"],
    )
    assert compacted.usage.total_tokens > 0
    answer = await responded(chatgpt, [HEAD, *compacted.output, NEXT], stream=stream)
    items = sent(play)
    assert answer.output_text
    assert [items[0], items[1]["content"], items[-1]] == [HEAD, said(TASK)["content"], NEXT]
    assert is_record(items[2])
    assert items[3:-1] == called(11)


@either
async def test_openais_sdk_goes_on_behind_a_threshold(play: Stage, chatgpt: openai.AsyncOpenAI, stream: bool) -> None:
    answer = await responded(chatgpt, HISTORY, stream=stream, context_management=THRESHOLD)
    assert [item.type for item in answer.output] == ["compaction", "message"]
    before = sent(play)
    await responded(chatgpt, [*HISTORY, *answer.output, NEXT], stream=stream, context_management=THRESHOLD)
    after = sent(play)
    assert is_record(before[1])
    assert after[: len(before)] == before, "in the provider's cache"
    assert [item["role"] for item in after[len(before) :]] == ["assistant", "user"]
    assert after[-2]["content"][0]["text"] == answer.output_text


async def test_openais_stream_tells_the_item_before_the_models_words(chatgpt: openai.AsyncOpenAI) -> None:
    async with chatgpt.responses.stream(model=MODEL, input=HISTORY, context_management=THRESHOLD) as streamed:
        events = [event async for event in streamed]
    done = [event.item.type for event in events if event.type == "response.output_item.done"]
    assert done == ["compaction", "message"]
    words = [event for event in events if event.type == "response.output_text.delta"]
    assert {event.output_index for event in words} == {1}
    assert words[-1].snapshot == events[-1].response.output_text


@either
async def test_openais_sdk_gets_one_item_for_a_trigger(play: Stage, chatgpt: openai.AsyncOpenAI, stream: bool) -> None:
    answer = await responded(chatgpt, [*HISTORY, TRIGGER], stream=stream)
    assert ([item.type for item in answer.output], answer.status) == (["compaction"], "completed")
    assert not play.sent
    await responded(chatgpt, [HEAD, said(TASK), *answer.output], stream=stream)
    items = sent(play)
    assert items[:2] == [HEAD, said(TASK)]
    assert is_record(items[2])
    assert items[3:] == called(11)


LONG = [{"role": "user", "content": TASK}, *uses(60)]
SHORT = [{"role": "user", "content": TASK}, *uses(12)]
GO_ON = {"role": "user", "content": "Go on."}
EDIT = {"edits": [{"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 50_000}}]}
EDITS, ON_DEMAND = "compact-2026-01-12", "compact-2026-09-04"


@pytest.fixture
async def claude(play: Stage) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=play.address, api_key="sk-test", max_retries=0) as client:
        yield client


async def told(
    client: anthropic.AsyncAnthropic, messages: list[object], beta: str, *, stream: bool, **more: object
) -> BetaMessage:
    asked = {"model": MODEL, "max_tokens": 256, "messages": messages, "betas": [beta], **more}
    if not stream:
        return await client.beta.messages.create(**asked)
    async with client.beta.messages.stream(**asked) as streamed:
        return await streamed.get_final_message()


@either
async def test_anthropics_sdk_goes_on_behind_an_edit(
    play: Stage, claude: anthropic.AsyncAnthropic, stream: bool
) -> None:
    answer = await told(claude, LONG, EDITS, stream=stream, context_management=EDIT)
    assert [block.type for block in answer.content] == ["compaction", "text"]
    assert answer.content[0].encrypted_content.startswith("ccn1.")
    assert [entry.type for entry in answer.usage.iterations] == ["compaction", "message"]
    before = sent(play)
    more = [*LONG, {"role": "assistant", "content": answer.content}, GO_ON]
    await told(claude, more, EDITS, stream=stream, context_management=EDIT)
    after = sent(play)
    assert after[: len(before)] == before, "in the provider's cache"
    assert [after[-2]["content"][0]["text"], after[-1]] == [answer.content[1].text, GO_ON]
    assert len(after) == len(before) + 2
    assert is_record(before[0])


@either
async def test_anthropics_sdk_goes_on_behind_what_it_demanded(
    play: Stage, claude: anthropic.AsyncAnthropic, stream: bool
) -> None:
    answer = await told(claude, SHORT, ON_DEMAND, stream=stream, compaction={"type": "summarize"})
    (block,) = answer.content
    assert (answer.stop_reason, block.type, block.signature[:5]) == ("compaction", "compaction", "ccn1.")
    assert not play.sent
    assert [answer.usage.input_tokens, answer.usage.iterations[0].type] == [0, "compaction"]
    more = [{"role": "assistant", "content": answer.content}, GO_ON]
    await told(claude, more, ON_DEMAND, stream=stream)
    items = sent(play)
    assert is_record(items[0])
    assert items[1:] == [SHORT[0], *SHORT[-2:], GO_ON]


async def test_anthropics_tool_runner_compacts_before_its_next_turn(
    play: Stage, claude: anthropic.AsyncAnthropic
) -> None:
    @anthropic.beta_async_tool
    async def read_file(path: str) -> str:
        """Read a file."""
        return f"42 lines of {path}"

    messages = [*SHORT, {"role": "assistant", "content": "Read."}, {"role": "user", "content": "Use the tool."}]
    runner = claude.beta.messages.tool_runner(
        model=MODEL, max_tokens=256, messages=messages, tools=[read_file], betas=[ON_DEMAND]
    )
    reasons = []
    async for message in runner:
        reasons.append(message.stop_reason)
        if len(reasons) == 1:
            runner.compact_before_next_turn()
    assert reasons == ["tool_use", "compaction", "end_turn"]
    items = sent(play)
    assert is_record(items[0])
    assert "42 lines of example" in json.dumps(items[1:])
