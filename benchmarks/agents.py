"""`python -m benchmarks.agents [AGENT ...]`: what real agents are billed alone and through the proxy.

The agents of `make agents` work through one script of steps on a project (`benchmarks/agent_project.py`), before a
scripted provider with a window and a prompt cache (`benchmarks/agent_upstream.py`), once directly and once under each
policy. All calls count, at list price (`policies/price.py`): the agent's, its own compactions, and our summaries.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks.agent_project import TASK, Step, make_project
from benchmarks.agent_upstream import PricedServer, Tool
from proxy.cli.demo.serving import serving
from tests.agents import starting
from tests.agents.running import run
from tests.agents.speaking import Chat, Messages, Responses, Speech
from tests.support.conversations import Json
from tests.support.servers import configured, proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_SECONDS = 900
_OFF: Json = {"extends": "default", "large_messages": {"roles": []}}
POLICIES: Mapping[str, Json | None] = {
    "alone": None,
    "default": {"extends": "default"},
    "cost": {"extends": "cost"},
    "default, not cooled": _OFF,
}


@dataclass(frozen=True)
class Agent:
    """How an agent is started, told its window, and works.

    program:   its command's first words; nothing where it is not installed.
    arguments: for a window. rounds: by window, so that each session fills it two to four times.
    """

    program: Callable[[], list[str]]
    speech: Speech
    tool: Tool
    arguments: Callable[[int], starting.Arguments]
    env: Callable[[str], Mapping[str, str]]
    rounds: Mapping[int, int]


@dataclass(frozen=True)
class Given:
    """What holds for all sessions: see the options of `main`."""

    again: int
    size: int
    log: str


def _native(program: str) -> Callable[[], list[str]]:
    return lambda: [str(path) for path in list(starting.installed(program))[:1]]


def _qwen() -> list[str]:
    return ["node"] if starting.QWEN.is_file() and shutil.which("node") else []


def _tools(read: str, edit: str, run: str, names: tuple[str, str, str], beside: Json) -> Tool:
    """Of an agent with tools of these names. names: of their arguments for a path, an old text and a new one; beside:
    what its shell takes beside a command."""
    path_key, old_key, new_key = names

    def tool(step: Step, folder: str) -> tuple[str, Json]:
        path = f"{folder}/{step.path}"
        match step.kind:
            case "read":
                return read, {path_key: path}
            case "edit":
                return edit, {path_key: path, old_key: step.old, new_key: step.new}
            case _:
                return run, {"command": step.command, **beside}

    return tool


_SNAKE, _CAMEL = ("file_path", "old_string", "new_string"), ("filePath", "oldString", "newString")
_DESCRIBED: Json = {"description": "Look at the ledger"}


def _codex_tool(step: Step, _folder: str) -> tuple[str, Json]:
    return "exec_command", {"cmd": step.command}


def _cline_tool(step: Step, folder: str) -> tuple[str, Json]:
    if step.kind == "read":
        return "read_files", {"files": [{"path": f"{folder}/{step.path}"}]}
    return "run_commands", {"commands": [step.command]}


def _codex(window: int) -> starting.Arguments:
    return starting.codex(
        TASK, f"model_context_window = {window}\nmodel_auto_compact_token_limit = {window * 9 // 10}\n"
    )


_MODEL = "gpt-5"
_WIDE = {64_000: 120, 128_000: 200}
AGENTS = {
    "claude-code": Agent(
        _native(starting.CLAUDE),
        Messages(),
        _tools("Read", "Edit", "Bash", _SNAKE, _DESCRIBED),
        lambda _: starting.claude("claude-sonnet-4-5", TASK),
        starting.claudes,
        {64_000: 120, 48_000: 120, 200_000: 300},
    ),
    "codex": Agent(
        _native(starting.CODEX),
        Responses(),
        _codex_tool,
        _codex,
        lambda _: {"OPENAI_API_KEY": starting.KEY},
        _WIDE,
    ),
    "opencode": Agent(
        _native(starting.OPENCODE),
        Chat(),
        _tools("read", "edit", "bash", _CAMEL, _DESCRIBED),
        lambda window: starting.opencode(TASK, _MODEL, window),
        lambda _: starting.QUIET_OPENCODE,
        _WIDE,
    ),
    "qwen-code": Agent(
        _qwen,
        Chat(),
        _tools("read_file", "edit", "run_shell_command", _SNAKE, {"is_background": False}),
        lambda window: starting.qwen(TASK, _MODEL, window),
        lambda address: {"OPENAI_API_KEY": starting.KEY, "OPENAI_BASE_URL": f"{address}/v1"},
        _WIDE,
    ),
    "cline": Agent(
        _native(starting.CLINE),
        Chat(),
        _cline_tool,
        lambda window: starting.cline(TASK, f"local/{_MODEL}", window),
        lambda _: starting.ALONE,
        # It recovers from one refusal a session, and ends at the next.
        {64_000: 75, 128_000: 150},
    ),
}


async def session(agent: Agent, window: int, policy: Json | None, given: Given) -> PricedServer:
    """One session: the server has its bill.

    Raises RuntimeError where the agent did not end its work.
    """
    rounds = agent.rounds[window] // (1 + given.size // 2)
    with tempfile.TemporaryDirectory() as folder:
        work, home = make_project(Path(folder), rounds, given.size)
        upstream = PricedServer(agent.speech, window, rounds, agent.tool, str(work), given.again)
        async with serving(upstream) as behind, _through(behind, window, policy, Path(folder), given.log) as address:
            command = [*agent.program(), *agent.arguments(window)(home, address)]
            code, said = await run(command, agent.env(address), work, home, _SECONDS)
    if upstream.done <= rounds:
        raise RuntimeError(f"it ended with {code} after {upstream.done} of {rounds} rounds: {said[-1_000:]}")
    return upstream


@asynccontextmanager
async def _through(behind: str, window: int, policy: Json | None, folder: Path, log: str) -> AsyncIterator[str]:
    if policy is None:
        yield behind
        return
    settings: Json = {
        "upstreams": {"main": {"base_url": f"{behind}/v1"}},
        "models": [{"match": "*", "context_window": window}],
        "policies": {"default": policy},
        "store": {"url": "memory://"},
        "logging": {"level": log},
    }
    async with proxy(configured(folder, settings)) as address:
        yield address


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.agents", description=__doc__)
    parser.add_argument("agents", nargs="*", default=[*AGENTS], help=f"of {', '.join(AGENTS)}")
    parser.add_argument("--windows", type=int, nargs="*", help="of those of each agent")
    parser.add_argument("--policies", nargs="*", default=[*POLICIES], choices=[*POLICIES])
    parser.add_argument("--again", type=int, default=0, help="tokens of files read again after an agent's own summary")
    parser.add_argument(
        "--trace", type=Path, help="a folder for every call of each session, and the proxy's log on stderr"
    )
    parser.add_argument("--size", type=int, default=1, help="times 1 to 8 kB that a module has; more: fewer rounds")
    options = parser.parse_args()
    given = Given(options.again, options.size, "info" if options.trace else "error")
    console = Console(width=140)
    table = Table(header_style="bold")
    for column in ("agent", "window", "policy"):
        table.add_column(column)
    for column in ("USD", "against alone", "work", "own", "ours", "breaks", "refused", "peak"):
        table.add_column(column, justify="right")
    for name in options.agents:
        agent = AGENTS[name]
        if not agent.program():
            console.print(f"{name} is not installed: run `make agents`")
            continue
        for window in (window for window in agent.rounds if not options.windows or window in options.windows):
            alone: float | None = None
            for policy in options.policies:
                try:
                    server = asyncio.run(session(agent, window, POLICIES[policy], given))
                except RuntimeError as error:
                    console.print(f"{name}, {window:,}, {policy}: {error}")
                    continue
                alone = server.bill.usd() if policy == "alone" else alone
                row = _row(server, alone)
                table.add_row(name, f"{window:,}", policy, *row)
                console.print(name, window, policy, *row)
                _report(server, options.trace, f"{name}-{window}-{policy}", console)
    console.print(table)


def _row(server: PricedServer, alone: float | None) -> list[str]:
    bill = server.bill
    usd = bill.usd()
    kinds = [bill.number(kind) for kind in ("work", "own summary", "our summary")]
    peak = max(call.tokens.prompt for call in bill.calls if call.kind == "work")
    against = f"{usd / alone - 1:+.1%}" if alone else ""
    return [f"{usd:.3f}", against, *map(str, kinds), str(bill.breaks), str(server.overflows), f"{peak:,}"]


def _report(server: PricedServer, folder: Path | None, name: str, console: Console) -> None:
    for odd in sorted(set(server.odd)):
        console.print(f"not in order: {odd}")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in server.trace))


if __name__ == "__main__":
    main()
