"""The official SDKs run unchanged through the proxy: chat, streams, tools, a long session, errors as they know them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import openai
import pytest

from tests.support.model_server import Fault, ModelServer, answers
from tests.support.scenarios import MODEL, prose, stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.scenarios import Stage

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

NODE = Path(__file__).parents[1] / "sdk"
HELLO = [{"role": "user", "content": "hello"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}},
            "required": ["path"],
            "additionalProperties": False,
        },
    },
}
UNAUTHORIZED = answers.error(
    401, "Incorrect API key provided: sk-test.", kind="invalid_request_error", code="invalid_api_key"
)
LIMITED = answers.Answer(
    429,
    (answers.JSON, (b"retry-after", b"7"), (b"x-request-id", b"req_1")),
    (b'{"error":{"message":"Rate limit reached.","type":"requests","param":null,"code":"rate_limit_exceeded"}}',),
)


def on_demand(number: int, body: bytes) -> Fault | None:
    """Errors for those who ask for one."""
    if b"answer 401" in body:
        return Fault(UNAUTHORIZED)
    return Fault(LIMITED) if b"answer 429" in body else None


@pytest.fixture
async def play(tmp_path: Path) -> AsyncIterator[Stage]:
    # Else an early compaction, or one made ahead, may leave none for a request to make.
    late = {"default": {"economy": 0, "soft_threshold": 0.8}}
    async with stage(tmp_path, ModelServer(script=on_demand), policies=late) as play:
        yield play


@pytest.fixture
async def client(play: Stage) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{play.addresses[0]}/v1", api_key="sk-test", max_retries=0) as client:
        yield client


async def test_python_chats(play: Stage, client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=HELLO)
    assert answer.choices[0].message.content == "Noted; 1 messages read."
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 8
    assert (b"authorization", b"Bearer sk-test") in play.model.received[0].headers


async def test_python_streams(client: openai.AsyncOpenAI) -> None:
    options = {"include_usage": True}
    stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True, stream_options=options)
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "Noted; 1 messages read."
    assert chunks[-1].usage.prompt_tokens == 8


async def test_python_uses_tools(play: Stage, client: openai.AsyncOpenAI) -> None:
    messages = [{"role": "user", "content": "Use the tool."}]
    asked = await client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])
    call = asked.choices[0].message.tool_calls[0]
    assert (call.function.name, call.function.arguments) == ("read_file", '{"path":"example"}')
    messages += [asked.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "42 lines"}]
    answer = await client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])
    assert answer.choices[0].finish_reason == "stop"
    assert play.model.defects == 0


async def test_python_streams_tool_calls(client: openai.AsyncOpenAI) -> None:
    messages = [{"role": "user", "content": "Use the tool."}]
    async with client.chat.completions.stream(model=MODEL, messages=messages, tools=[TOOL]) as stream:
        call = (await stream.get_final_completion()).choices[0].message.tool_calls[0]
    assert (call.function.name, call.function.arguments) == ("read_file", '{"path":"example"}')


@pytest.mark.requirement("R1 11")
async def test_python_keeps_a_long_session(play: Stage, client: openai.AsyncOpenAI) -> None:
    messages = [{"role": "user", "content": "The task is: never delete src/main.py."}]
    compactions = set()
    for number in range(40):
        raw = await client.chat.completions.with_raw_response.create(model=MODEL, messages=messages)
        compactions.add(raw.headers["x-compaction"])
        messages.append({"role": "assistant", "content": raw.parse().choices[0].message.content})
        messages.append({"role": "user", "content": prose(number, 220)})
    messages.append({"role": "user", "content": "What is the task?"})
    answer = await client.chat.completions.create(model=MODEL, messages=messages)
    assert "never delete src/main.py" in answer.choices[0].message.content
    assert compactions == {"none", "applied", "reused"}
    assert play.model.summary_calls > 0


async def test_python_lists_the_upstreams_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["demo-8k"]


async def test_python_sees_an_overflow_that_nothing_can_solve_as_the_upstream_told_it(
    client: openai.AsyncOpenAI,
) -> None:
    system = [{"role": "system", "content": "too long " * 20_000}]
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model=MODEL, messages=[*system, *HELLO])
    assert caught.value.code == "context_length_exceeded"
    assert "This model's maximum context length is 8192 tokens. However, your messages" in caught.value.message


async def test_python_sees_a_refused_key(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.AuthenticationError) as caught:
        await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "answer 401"}])
    assert caught.value.code == "invalid_api_key"
    assert caught.value.response.content == UNAUTHORIZED.chunks[0]


async def test_python_sees_a_rate_limit_with_its_headers(play: Stage, client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.RateLimitError) as caught:
        await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "answer 429"}])
    assert caught.value.response.headers["retry-after"] == "7"
    assert caught.value.request_id == "req_1"
    assert caught.value.response.content == LIMITED.chunks[0]
    assert len(play.model.received) == 1


async def test_node_runs_all_of_this(play: Stage) -> None:
    node = shutil.which("node")
    if node is None or not (NODE / "node_modules" / "openai").is_dir():
        missing = "openai for Node is not installed: run `npm ci` in tests/sdk (needs Node 20)"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    env = {"OPENAI_BASE_URL": f"{play.addresses[0]}/v1", "OPENAI_API_KEY": "sk-test", "PATH": os.environ["PATH"]}
    running = await asyncio.create_subprocess_exec(
        node, "session.mjs", cwd=NODE, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, errors = await asyncio.wait_for(running.communicate(), 60)
    assert running.returncode == 0, errors.decode()
    steps = [json.loads(line) for line in out.splitlines()]
    told = {step.pop("step"): step for step in steps}
    assert told["chat"] == told["stream"] == {"text": "Noted; 1 messages read.", "tokens": 8}
    assert told["tools"] == {"name": "read_file", "arguments": '{"path":"example"}', "finish": "stop"}
    assert told["long"]["compactions"] == ["applied", "none", "reused"]
    assert "never delete src/main.py" in told["long"]["text"]
    assert (told["overflow"]["name"], told["overflow"]["code"]) == ("BadRequestError", "context_length_exceeded")
    assert (told["unauthorized"]["name"], told["unauthorized"]["code"]) == ("AuthenticationError", "invalid_api_key")
    assert (told["limited"]["name"], told["limited"]["retryAfter"]) == ("RateLimitError", "7")
    assert play.model.defects == 0
