"""The demo's model answers clients of chat completions, so that one can be pointed at the demo while it stays up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from openai import AsyncOpenAI, BadRequestError

from proxy.cli.demo.chat_server import MODEL, ChatServer
from tests.support.servers import serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from openai.types.chat import ChatCompletionUserMessageParam

pytestmark = pytest.mark.anyio

MESSAGES: list[ChatCompletionUserMessageParam] = [
    {"role": "user", "content": "The codename is Heron."},
    {"role": "user", "content": "What is the codename?"},
]


@pytest.fixture
async def client() -> AsyncIterator[AsyncOpenAI]:
    async with (
        serve(ChatServer(window=40).app) as address,
        AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


async def test_a_question_is_answered_from_the_prompt(client: AsyncOpenAI) -> None:
    response = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert response.choices[0].message.content == "The codename is Heron."
    assert response.usage is not None
    # 3 for each message, 1 for each role, 7 and 6 for the texts, 3 for the start of the response
    assert (response.usage.prompt_tokens, response.usage.completion_tokens) == (24, 7)


async def test_a_stream_has_the_same_text_and_usage(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    *chunks, usage = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "The codename is Heron."
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert usage.usage is not None
    assert usage.usage.total_tokens == 31


async def test_a_prompt_and_an_output_over_the_window_are_refused(client: AsyncOpenAI) -> None:
    with pytest.raises(
        BadRequestError, match=r"requested 41 tokens \(24 in the messages, 17 in the completion\)"
    ) as error:
        await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=17)
    assert error.value.code == "context_length_exceeded"


async def test_it_lists_its_model(client: AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL]


async def test_a_body_that_is_no_request_is_refused(client: AsyncOpenAI) -> None:
    with pytest.raises(BadRequestError, match="could not parse"):
        await client.post("/chat/completions", cast_to=object, body=[])
