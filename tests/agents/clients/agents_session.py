"""A session of OpenAI's Agents SDK that has the endpoint compact it: ADDRESS TURNS MODE [stream]."""

from __future__ import annotations

import asyncio
import sys

from agents import Agent, OpenAIResponsesModel, Runner, SQLiteSession, function_tool
from agents.memory import OpenAIResponsesCompactionSession
from openai import AsyncOpenAI
from reading import part, said


@function_tool
def read_part(number: int) -> str:
    """Read one part.

    Args:
        number: of the part.
    """
    return part(number)


async def main(address: str, turns: int, mode: str, *, stream: bool) -> None:
    client = AsyncOpenAI(base_url=f"{address}/v1", api_key="sk-test", max_retries=0)
    agent = Agent(
        name="Reader",
        instructions="You read parts.",
        tools=[read_part],
        model=OpenAIResponsesModel("gpt-5", openai_client=client),
    )
    session = OpenAIResponsesCompactionSession(
        "session", SQLiteSession("session"), client=client, model="gpt-5", compaction_mode=mode
    )
    for turn in range(1, turns + 1):
        if stream:
            async for _ in Runner.run_streamed(agent, said(turn), session=session).stream_events():
                pass
        else:
            await Runner.run(agent, said(turn), session=session)


asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], stream="stream" in sys.argv[4:]))
