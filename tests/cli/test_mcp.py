"""`concertina mcp`, asked by the official client over standard input and output."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest

from tests.support.stages import DUE, stage

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

mcp = pytest.importorskip("mcp", reason="mcp is not installed: run `make setup`")


async def answers(config: Path, *questions: dict[str, str]) -> tuple[list[object], list[str]]:
    """The server's tools, and what it answers."""
    arguments = ["-m", "proxy", "mcp", "--config", str(config)]
    server = mcp.StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))
    async with mcp.stdio_client(server) as (read, write), mcp.ClientSession(read, write) as session:
        begun = await session.initialize()
        assert (begun.server_info.name, begun.server_info.version) == ("concertina", version("concertina"))
        tools = (await session.list_tools()).tools
        found = [await session.call_tool("conversation_search", question) for question in questions]
        return tools, [result.content[0].text for result in found]


async def test_an_agent_finds_what_the_records_carry_and_nothing_else(tmp_path: Path) -> None:
    store = {"url": f"sqlite:///{tmp_path}/concertina.db"}
    async with stage(tmp_path, store=store) as play:
        labelled = DUE.replace(b'"model"', b'"prompt_cache_key": "ingest-42", "model"', 1)
        assert (await play.send(labelled)).status == 200
        await play.settled()
    tools, found = await answers(
        tmp_path / "config.yaml",
        {"query": "the client's words"},
        {"query": "client's words", "session": "ingest-42"},
        {"query": "client's words", "session": "nobody"},
        {"query": "zebra crossing"},
    )
    (tool,) = tools
    assert tool.annotations.read_only_hint
    assert "ingest-42" in found[0]
    assert "the client's own words" in found[0]
    assert found[1] == found[0]
    assert found[2] == "Nothing was found in 0 conversations."
    assert found[3] == "Nothing was found in 1 conversations."


async def test_a_store_that_nothing_can_be_read_from_is_said_so(tmp_path: Path) -> None:
    async with stage(tmp_path):
        pass
    _, found = await answers(tmp_path / "config.yaml", {"query": "anything"})
    assert found[0].startswith("The store cannot be searched: store.url: memory://")
