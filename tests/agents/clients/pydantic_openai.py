"""Pydantic AI with OpenAI's compaction: ADDRESS ROUNDS threshold|endpoint.

By a threshold all is one run of the agent, compacted between calls of tools; by the endpoint it is a session of turns.
"""

from __future__ import annotations

import asyncio
import sys

from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAICompaction, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits
from reading import TASK, part, said


def read_part(number: int) -> str:
    """Read one part."""
    return part(number)


def agent_of(address: str, compaction: OpenAICompaction) -> Agent:
    client = AsyncOpenAI(base_url=f"{address}/v1", api_key="sk-test", max_retries=0)
    model = OpenAIResponsesModel("gpt-5", provider=OpenAIProvider(openai_client=client))
    return Agent(model, instructions="You read parts.", tools=[read_part], capabilities=[compaction])


async def by_threshold(address: str) -> None:
    agent = agent_of(address, OpenAICompaction(token_threshold=20_000))
    await agent.run(TASK, usage_limits=UsageLimits(request_limit=None))


async def by_endpoint(address: str, turns: int) -> None:
    agent = agent_of(address, OpenAICompaction(message_count_threshold=20))
    history = []
    for turn in range(1, turns + 1):
        result = await agent.run(said(turn), message_history=history)
        history = result.all_messages()


way = by_threshold(sys.argv[1]) if sys.argv[3] == "threshold" else by_endpoint(sys.argv[1], int(sys.argv[2]))
asyncio.run(way)
