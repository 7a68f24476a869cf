"""Real agents that read a file again behind a compaction: the model gets its text, also if they only point to it.

qwen-code answers the second reading with a pointer. Claude Code did up to 2.1.315; since then it sends the file again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from proxy.cli.demo.serving import serving as serve
from tests.agents import starting
from tests.agents.running import ended, lines_of, parts, run
from tests.agents.speaking import Chat, Messages, Speech
from tests.agents.working import WorkingServer
from tests.support.conversations import Json
from tests.support.upstreams import config_for, serving

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ROUNDS = 24
WINDOW = 52_000
CHARACTERS = 7_500
TASK = "Read the first part, work through all others, and read the first part again."
POINTER = "unchanged since"


@dataclass(frozen=True)
class Agent:
    """How an agent is started, reads a file and runs a command. transcript: below its home, its own history."""

    program: Callable[[], list[str]]
    model: str
    speech: Speech
    arguments: starting.Arguments
    env: Callable[[str], Mapping[str, str]]
    read: str
    run: str
    beside: Json
    transcript: str

    def tool(self, work: Path, part: str) -> tuple[str, Json]:
        """Return the call for a part: the first one is read as a file, all others are printed."""
        if part == "1":
            return self.read, {"file_path": str(work / "part_1.txt")}
        return self.run, {"command": f"cat part_{part}.txt", **self.beside}


AGENTS = {
    "Claude Code": Agent(
        lambda: [str(path) for path in [*starting.installed(starting.CLAUDE)][:1]],
        "claude-sonnet-4-5",
        Messages(),
        starting.claude("claude-sonnet-4-5", TASK),
        starting.claudes,
        "Read",
        "Bash",
        {"description": "Print a part"},
        ".claude/projects/*/*.jsonl",
    ),
    "qwen-code": Agent(
        lambda: ["node"] if starting.QWEN.is_file() else [],
        "gpt-5",
        Chat(),
        starting.qwen(TASK, "gpt-5"),
        lambda address: {"OPENAI_API_KEY": starting.KEY, "OPENAI_BASE_URL": f"{address}/v1"},
        "read_file",
        "run_shell_command",
        {"is_background": False},
        ".qwen/projects/*/chats/*.jsonl",
    ),
}


async def played(agent: Agent, folder: Path, env: Mapping[str, str], again: int = 0) -> WorkingServer:
    """Play a session of two windows. again: the round in which the first part is read once more."""
    work, home = folder / "work", folder / "home"
    work.mkdir()
    home.mkdir()
    parts(work, ROUNDS, CHARACTERS)

    def part(number: int) -> int:
        return 1 if number == again else number

    upstream = WorkingServer(
        agent.speech,
        WINDOW,
        ROUNDS,
        partial(agent.tool, work),
        command=lambda number: str(part(number)),
        marker=lambda number: ended(part(number)),
        task=TASK,
    )
    models = [{"match": agent.model, "context_window": WINDOW}]
    async with serve(upstream) as behind:
        # Tools and system prompt take half of the window.
        policy: Json = {"extends": "default", "pins": {"budget_ratio": 0.3}}
        config = config_for(folder, behind, models=models, policies={"default": policy}, logging={"level": "info"})
        async with serving(config) as address:
            command = [*installed_program(agent), *agent.arguments(home, address)]
            code, said = await run(command, {**agent.env(address), **env}, work, home)
    assert (code, upstream.problems, upstream.overflows) == (0, [], 0), said[-2_000:]
    assert upstream.done == ROUNDS + 1
    return upstream


def installed_program(agent: Agent) -> list[str]:
    if not (program := agent.program()):
        pytest.skip("It is not installed for this machine: run `make agents` (needs Node 20)")
    return program


def requests_in(capfd: pytest.CaptureFixture[str]) -> list[Json]:
    return [line for line in map(json.loads, lines_of(capfd.readouterr().err)) if line["event"] == "request"]


async def test_a_file_that_a_header_pins_is_in_every_prompt(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # Of its usual 32,000 tokens of output the window would have no room for a record beside tools and system prompt.
    env = {"ANTHROPIC_CUSTOM_HEADERS": "x-compaction-pin: file:part_1.txt", "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "4000"}
    upstream = await played(AGENTS["Claude Code"], tmp_path, env)
    assert all(ended(1) in json.dumps(body) for body in upstream.received[1:])
    behind = [line for line in requests_in(capfd) if line.get("checkpoint")]
    assert len(behind) > ROUNDS // 2
    assert {(line["pins"], line.get("pins_left_out", 0)) for line in behind} == {(1, 0)}


@pytest.mark.parametrize("name", AGENTS)
async def test_a_file_that_is_read_again_is_in_the_prompt(
    tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    agent = AGENTS[name]
    await played(agent, tmp_path, {}, again=ROUNDS)
    requests = requests_in(capfd)
    history = "".join(path.read_text() for path in (tmp_path / "home").glob(agent.transcript))
    assert ended(ROUNDS - 1) in history
    assert requests[-1].get("restored", 0) == (POINTER in history)
    assert name != "qwen-code" or POINTER in history
