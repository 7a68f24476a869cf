"""Pydantic AI with Anthropic's compaction: ADDRESS ROUNDS edit|demand.

By the edit all is one run of the agent, compacted between calls of tools; on demand it is a session of turns.
"""

from __future__ import annotations

import asyncio
import sys

from anthropic import AsyncAnthropic
from pydantic_ai import Agent
from pydantic_ai.models import ModelRequestContext, ModelRequestParameters
from pydantic_ai.models.anthropic import AnthropicCompaction, AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.usage import UsageLimits
from reading import TASK, part, said

# Turns after which the application has its history compacted.
EVERY = 10


def read_part(number: int) -> str:
    """Read one part."""
    return part(number)


def agent_of(address: str, *compactions: AnthropicCompaction) -> Agent:
    client = AsyncAnthropic(base_url=address, api_key="sk-test", max_retries=0)
    model = AnthropicModel("claude-opus-5", provider=AnthropicProvider(anthropic_client=client))
    return Agent(model, instructions="You read parts.", tools=[read_part], capabilities=[*compactions])


async def by_edit(address: str) -> None:
    agent = agent_of(address, AnthropicCompaction(token_threshold=50_000))
    await agent.run(TASK, usage_limits=UsageLimits(request_limit=None))


async def on_demand(address: str, turns: int) -> None:
    agent = agent_of(address)
    history = []
    for turn in range(1, turns + 1):
        result = await agent.run(said(turn), message_history=history)
        history = result.all_messages()
        if turn % EVERY == 0:
            context = ModelRequestContext(
                model=agent.model,
                messages=history,
                model_settings=None,
                model_request_parameters=ModelRequestParameters(),
            )
            history = [await agent.model.compact_messages(context)]


way = by_edit(sys.argv[1]) if sys.argv[3] == "edit" else on_demand(sys.argv[1], int(sys.argv[2]))
asyncio.run(way)
