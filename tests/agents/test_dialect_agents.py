"""The most used coding agents, unchanged and at pinned versions, each in its own dialect: over two windows of history.

They never compact by themselves, since they are billed for what was really sent, and their own transcripts are whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from proxy.cli.demo.serving import serving as serve
from tests.agents.running import ended, lines_of, parts, run
from tests.agents.speaking import Chat, Messages, Responses, Speech
from tests.agents.starting import (
    CLAUDE,
    CODEX,
    KEY,
    OPENCODE,
    QUIET_OPENCODE,
    Arguments,
    claude,
    claudes,
    codex,
    installed,
    opencode,
)
from tests.agents.working import WorkingServer
from tests.support.conversations import Json
from tests.support.strict_messages import Signer
from tests.support.upstreams import config_for, serving

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ROUNDS = 45
TASK = "Read every part, in order. Never change a part."


@dataclass(frozen=True)
class Agent:
    """How an agent is started, and how it runs a command.

    program:    below node_modules, with * for what is named after this machine.
    transcript: below its home, where it keeps its own history.
    window:     of the model; characters: of what one command prints, so that all of them fill two windows.
    binds:      whether the model binds what it thinks to its prompt. unbound: requests that may be refused for that.
    """

    program: str
    model: str
    speech: Speech
    tool: Callable[[str], tuple[str, Json]]
    arguments: Arguments
    env: Callable[[str], Mapping[str, str]]
    transcript: str
    window: int
    characters: int
    binds: bool = False
    unbound: int = 0


AGENTS = {
    "Claude Code": Agent(
        program=CLAUDE,
        model="claude-sonnet-4-5",
        speech=Messages(),
        tool=lambda command: ("Bash", {"command": command, "description": "Read a part"}),
        arguments=claude("claude-sonnet-4-5", TASK),
        env=claudes,
        transcript=".claude/projects/*/*.jsonl",
        window=52_000,
        characters=7_500,
    ),
    "codex": Agent(
        program=CODEX,
        model="gpt-5",
        speech=Responses(),
        tool=lambda command: ("exec_command", {"cmd": command}),
        arguments=codex(TASK),
        env=lambda _: {"OPENAI_API_KEY": KEY},
        transcript=".codex/sessions/*/*/*/*.jsonl",
        window=24_000,
        characters=3_500,
    ),
    "opencode": Agent(
        program=OPENCODE,
        model="gpt-4o",
        speech=Chat(),
        tool=lambda command: ("bash", {"command": command, "description": "Read a part"}),
        arguments=opencode(TASK, "gpt-4o", 40_000),
        env=lambda _: QUIET_OPENCODE,
        transcript=".local/share/opencode/opencode.db",
        window=24_000,
        characters=3_500,
    ),
}


# A model that is known to bind thinking, and one of which that is learned by one refusal; both have instructions inside
# of the conversation, after every result.
for model, refusals in (("claude-opus-5-5", 0), ("claude-opus-4-8", 1)):
    bound = replace(AGENTS["Claude Code"], model=model, arguments=claude(model, TASK), binds=True, unbound=refusals)
    AGENTS[f"Claude Code with {model}"] = bound


@pytest.mark.parametrize("name", AGENTS)
async def test_an_agent_reads_two_windows_and_finds_its_work_whole(
    tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    agent = AGENTS[name]
    program = next(installed(agent.program), None)
    if program is None:
        pytest.skip(f"{name} is not installed for this machine: run `make agents` (needs Node 20)")
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    home.mkdir()
    parts(work, ROUNDS, agent.characters)
    upstream = WorkingServer(
        agent.speech,
        agent.window,
        ROUNDS,
        agent.tool,
        command=lambda number: f"echo {number} >> journal.txt; cat part_{number}.txt",
        marker=ended,
        task=TASK,
        signer=Signer() if agent.binds else None,
    )
    models = [{"match": agent.model, "context_window": agent.window}]
    async with serve(upstream) as behind:
        config = config_for(tmp_path, behind, models=models, logging={"level": "info"})
        async with serving(config) as address:
            code, said = await run([str(program), *agent.arguments(home, address)], agent.env(address), work, home)
    assert (code, upstream.problems, upstream.overflows) == (0, [], 0), said[-2_000:]
    assert (work / "journal.txt").read_text().split() == [str(number) for number in range(1, ROUNDS + 1)]
    assert upstream.unbound == agent.unbound, "thinking was sent behind another prompt"
    assert upstream.done == ROUNDS + 1, "one request a round: it never compacted by itself"
    assert 0 < upstream.summaries <= 7, "and excerpts of large results, which are cheaper"
    assert upstream.excerpts <= 2 * upstream.summaries + 2, "an early compaction covers some that stood ready"
    assert not missing_in(agent, home), "its own transcript is whole"
    requests = [line for line in map(json.loads, lines_of(capfd.readouterr().err)) if line["event"] == "request"]
    assert {(line["status"], line["end"]) for line in requests} == {(200, "complete")}
    assert max(line["tokens_received"] for line in requests) > 2 * agent.window


def missing_in(agent: Agent, home: Path) -> list[int]:
    """Rounds whose end is not in the agent's own history."""
    kept = b"".join(path.read_bytes() for path in home.glob(f"{agent.transcript}*"))
    return [number for number in range(1, ROUNDS + 1) if ended(number).encode() not in kept]
