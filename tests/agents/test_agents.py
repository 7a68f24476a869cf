"""Real agents from the registries, unchanged and at pinned versions, work through four windows' worth of history.

One streams and one does not. Without the proxy both end with an error after a dozen rounds.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from proxy.cli.demo.prompt import Function
from proxy.cli.demo.serving import serving as serve
from tests.agents.running import ended, lines_of, parts, run
from tests.agents.starting import ALONE, QWEN, qwen
from tests.agents.strict_upstream import StrictUpstream
from tests.support.upstreams import config_for, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ROUNDS = 65
WINDOWS = 4
MODEL = "gpt-4o"
TASK = "Read every part, in order. Never change a part."
ROOT = Path(__file__).parents[2]
MINI = ROOT / "var" / "agents"


@dataclass(frozen=True)
class Agent:
    """How an agent is started, and how it runs a command.

    installed: a file that is there where it is installed. runs_on: what runs it.
    command:   its arguments, for its home.
    window:    of the model; characters: of what one command prints, so that 65 of them fill four windows.
    most_calls: to the summarizer: summaries, and excerpts of large results.
    """

    installed: Path
    runs_on: str
    command: Callable[[Path], list[str]]
    env: Mapping[str, str]
    tool: Callable[[str], Function]
    last: Function | str
    window: int
    characters: int
    most_calls: tuple[int, int]


def bash(command: str) -> Function:
    return Function("bash", json.dumps({"command": command}))


def shell(command: str) -> Function:
    return Function("run_shell_command", json.dumps({"command": command, "is_background": False}))


def mini(home: Path) -> list[str]:
    unlimited = ("agent.step_limit=0", "agent.cost_limit=0")
    settings = [part for setting in ("mini.yaml", *unlimited) for part in ("-c", setting)]
    given = ["-m", f"openai/{MODEL}", "-t", TASK, "-o", str(home / "trajectory.json")]
    return ["-m", "minisweagent.run.mini", "--yolo", "--exit-immediately", *given, *settings]


AGENTS = {
    "mini-swe-agent, which does not stream": Agent(
        installed=MINI / "minisweagent" / "__init__.py",
        runs_on=sys.executable,
        command=mini,
        env={
            "PYTHONPATH": str(MINI),
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            **ALONE,
        },
        tool=bash,
        last=bash("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
        window=16_000,
        characters=3_600,
        most_calls=(13, 0),
    ),
    "qwen-code, which streams and has a head of 17k tokens": Agent(
        installed=QWEN,
        runs_on="node",
        command=lambda home: qwen(TASK, MODEL)(home, ""),
        env={},
        tool=shell,
        last="All parts are read.",
        window=48_000,
        characters=9_500,
        most_calls=(13, 2),
    ),
}


@pytest.mark.parametrize("name", AGENTS)
async def test_a_real_agent_reads_four_windows_and_finds_its_work_whole(
    tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    agent = AGENTS[name]
    if not agent.installed.is_file() or shutil.which(agent.runs_on) is None:
        pytest.skip(f"{name.partition(',')[0]} is not installed: run `make agents` (needs Node 20)")
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    home.mkdir()
    parts(work, ROUNDS, agent.characters)
    upstream = StrictUpstream(
        window=agent.window,
        rounds=ROUNDS,
        call=lambda number: agent.tool(f"echo {number} >> journal.txt; cat part_{number}.txt"),
        marker=ended,
        last=agent.last,
    )
    models = [{"match": MODEL, "context_window": agent.window}]
    async with serve(upstream) as behind:
        config = config_for(tmp_path, behind, models=models, logging={"level": "info"})
        async with serving(config) as address:
            given = {"OPENAI_API_KEY": "sk-test", "OPENAI_BASE_URL": f"{address}/v1", **agent.env}
            code, said = await run([agent.runs_on, *agent.command(home)], given, work, home)
    assert (code, upstream.problems, upstream.overflows) == (0, [], 0), said[-2_000:]
    assert (work / "journal.txt").read_text().split() == [str(number) for number in range(1, ROUNDS + 1)]
    assert upstream.done == ROUNDS + 1
    most_summaries, most_excerpts = agent.most_calls
    assert 0 < upstream.summaries <= most_summaries
    assert upstream.excerpts <= most_excerpts
    requests = [line for line in map(json.loads, lines_of(capfd.readouterr().err)) if line["event"] == "request"]
    assert {(line["status"], line["end"]) for line in requests} == {(200, "complete")}
    assert requests[-1]["tokens_received"] > WINDOWS * agent.window
