"""`python -m benchmarks.voices`: whose words a record says are the user's, and what of them is still in the prompt.

Sessions of agents in the shapes of Claude Code, codex and opencode, in their dialects, are played through the engine
without a model. `not typed`: share of the lines under the user's words that no person typed. `constraints`: of what
people asked for, amid reports that say the opposite. `rules`: of a file of rules that the client sends, or a tool has
read. `task`: of a first request of 40 points, at its end, with "go on", steering and tools that load tools between.
`steering`: of what was typed while the agent worked.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from proxy.callers.tenants import Tenants
from proxy.config.loading import load_text
from proxy.dialects.table import CHAT, MESSAGES, RESPONSES
from proxy.engine.case import case_of
from proxy.observing.log import Log
from proxy.server.head import RequestHead
from proxy.stores.memory import MemoryStore
from proxy.upstream.http import UpstreamClient
from proxy.wiring import open_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proxy.dialects.base import Dialect

Item = dict[str, Any]
_FILLER = "the parser reads a batch and keeps an offset for every record that the queue hands over before commit"
_WORDS = _FILLER.split()
_TITLES = ("What the user said", "用户原话")


def prose(seed: str, tokens: int) -> str:
    chance = random.Random(seed)
    words = [chance.choice(_WORDS) for _ in range(tokens)]
    return "\n".join(" ".join(words[at : at + 12]) for at in range(0, len(words), 12))


class Session:
    """A conversation in the shape of one client, item by item. reports: texts that no person typed."""

    dialect: Dialect
    tools = 0

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.calls = 0

    def body(self) -> bytes:
        raise NotImplementedError

    def opens(self, words: str, rules: str = "") -> None:
        """The first message, with the file of rules that the client adds."""
        raise NotImplementedError

    def says(self, words: str) -> None:
        raise NotImplementedError

    def reports(self, text: str) -> None:
        """What the client puts into the user role."""
        raise NotImplementedError

    def works(self, result: str, name: str = "Bash", arguments: Item | None = None, meanwhile: str = "") -> None:
        """A round; what a person types meanwhile."""
        raise NotImplementedError

    def answers(self, text: str) -> None:
        raise NotImplementedError


class ClaudeCode(Session):
    dialect = MESSAGES

    def body(self) -> bytes:
        return _encoded({"model": "m", "max_tokens": 1024, "system": "You are Claude Code.", "messages": self.items})

    def opens(self, words: str, rules: str = "") -> None:
        claude_md = (
            "<system-reminder>\nAs you answer the user's questions, you can use the following context:\n# claudeMd\n"
            "Codebase and user instructions are shown below.\n\nContents of /repo/CLAUDE.md (project instructions, "
            f"checked into the codebase):\n\n{rules}\n\n# currentDate\nToday's date is 2026-11-25.\n</system-reminder>"
        )
        skills = "<system-reminder>\nSkills: commit. Always push after each commit.\n</system-reminder>"
        self.items.append({"role": "user", "content": [_text(claude_md), _text(skills), _text(words)]})

    def says(self, words: str) -> None:
        self.items.append({"role": "user", "content": [_text(words)]})

    def reports(self, text: str) -> None:
        told = (
            f"<task-notification>\n<task-id>a{len(self.items)}</task-id>\n<status>completed</status>\n"
            f"<result>{text}</result>\n</task-notification>\nRead the output file to retrieve the result."
        )
        self.items.append({"role": "user", "content": [_text(told)]})

    def works(self, result: str, name: str = "Bash", arguments: Item | None = None, meanwhile: str = "") -> None:
        self.calls += 1
        call = {"type": "tool_use", "id": f"t{self.calls}", "name": name, "input": arguments or {"command": "ls"}}
        if meanwhile:
            result += (
                f"\n\n<system-reminder>\nThe user sent a new message while you were working:\n{meanwhile}\n\n"
                "This is how Claude Code surfaces messages the user sends mid-turn.\n</system-reminder>"
            )
        answer: list[Item] = [{"type": "tool_result", "tool_use_id": f"t{self.calls}", "content": result}]
        if name == "ToolSearch":
            answer.append(_text("Tool loaded."))
        self.items += [{"role": "assistant", "content": [call]}, {"role": "user", "content": answer}]

    def answers(self, text: str) -> None:
        self.items.append({"role": "assistant", "content": [_text(text)]})


class Codex(Session):
    dialect = RESPONSES

    def body(self) -> bytes:
        return _encoded({"model": "m", "instructions": "You are a coding agent in the Codex CLI.", "input": self.items})

    def opens(self, words: str, rules: str = "") -> None:
        if rules:
            self._user(f"# AGENTS.md instructions for /repo\n\n<INSTRUCTIONS>\n{rules}\n</INSTRUCTIONS>")
        self._user("<environment_context>\n  <cwd>/repo</cwd>\n  <shell>bash</shell>\n</environment_context>")
        self._user(words)

    def _user(self, text: str) -> None:
        content = [{"type": "input_text", "text": text}]
        self.items.append({"type": "message", "role": "user", "content": content})

    def says(self, words: str) -> None:
        self._user(words)

    def reports(self, text: str) -> None:
        self._user(f'<subagent_notification>\n{{"agent_id":"a","status":{json.dumps(text)}}}\n</subagent_notification>')

    def works(self, result: str, name: str = "Bash", arguments: Item | None = None, meanwhile: str = "") -> None:
        self.calls += 1
        told = json.dumps(arguments or {"command": "ls"})
        call = {"type": "function_call", "call_id": f"t{self.calls}", "name": name, "arguments": told}
        self.items += [call, {"type": "function_call_output", "call_id": f"t{self.calls}", "output": result}]
        if meanwhile:
            self._user(meanwhile)

    def answers(self, text: str) -> None:
        content = [{"type": "output_text", "text": text}]
        self.items.append({"type": "message", "role": "assistant", "content": content})


class Opencode(Session):
    dialect = CHAT

    def __init__(self) -> None:
        super().__init__()
        self.items.append({"role": "system", "content": "You are opencode, a coding agent."})

    def body(self) -> bytes:
        return _encoded({"model": "m", "messages": self.items})

    def opens(self, words: str, rules: str = "") -> None:
        if rules:
            self.items[0]["content"] += f"\nInstructions from: /repo/AGENTS.md\n{rules}"
        self.says(words)

    def says(self, words: str) -> None:
        self.items.append({"role": "user", "content": [_text(words)]})

    def reports(self, text: str) -> None:
        self.says(f"<background-task-output>\n{text}\n</background-task-output>")

    def works(self, result: str, name: str = "Bash", arguments: Item | None = None, meanwhile: str = "") -> None:
        self.calls += 1
        function = {"name": name, "arguments": json.dumps(arguments or {"command": "ls"})}
        calls = [{"id": f"t{self.calls}", "type": "function", "function": function}]
        self.items.append({"role": "assistant", "content": None, "tool_calls": calls})
        self.items.append({"role": "tool", "tool_call_id": f"t{self.calls}", "content": result})
        if meanwhile:
            self.says(
                f"<system-reminder>\nThe user sent the following message:\n{meanwhile}\n\n"
                "Please address this message and continue with your tasks.\n</system-reminder>"
            )

    def answers(self, text: str) -> None:
        self.items.append({"role": "assistant", "content": text})


CLIENTS: tuple[Callable[[], Session], ...] = (ClaudeCode, Codex, Opencode)


def _text(text: str) -> Item:
    return {"type": "text", "text": text}


def _encoded(body: Item) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode()


async def prompts(session: Session, lengths: Sequence[int], window: int) -> list[str]:
    """What goes upstream of so many of its items, one request after the other."""
    config = load_text("measured", _config(window), {})
    sent = []
    with ThreadPoolExecutor(1) as workers:
        engine = await open_engine(
            config, MemoryStore(), UpstreamClient(), workers, Log("error", time.time, io.BytesIO())
        )
        router, caller, head = engine.router(config), Tenants(config).identify(None), RequestHead("POST", "/", [])
        whole = session.items
        for length in lengths:
            session.items = whole[:length]
            request = await engine.reader.read(session.body(), caller.scope, router.encoding, session.dialect)
            if request is None:
                raise ValueError("no conversation")
            case = case_of(head.asking(session.dialect), router, caller, "on", request)
            draft = await engine.drafter.first(await engine.drafter.placed(case))
            sent.append("\n".join(_texts(json.loads(draft.body))))
        session.items = whole
    return sent


def _texts(value: object) -> list[str]:
    match value:
        case str():
            return [value]
        case list():
            return [text for each in value for text in _texts(each)]
        case dict():
            return [text for each in value.values() for text in _texts(each)]
        case _:
            return []


def _config(window: int) -> str:
    return json.dumps(
        {
            "upstreams": {"main": {"base_url": "http://127.0.0.1:9/v1"}},
            "models": [{"match": "*", "context_window": window}],
            "policies": {"default": {"summarizer": {"model": "none"}}},
        }
    )


def said_lines(prompt: str) -> list[str]:
    """The lines that a record says the user said."""
    block = next((prompt.partition(f"## {title}")[2] for title in _TITLES if f"## {title}" in prompt), "")
    lines = block.partition("\n\n## ")[0].partition("</conversation_record>")[0].splitlines()[1:]
    return [line.partition("] ")[2] for line in lines if line.startswith("- [")]


def _played(session: Session, window: int, step: int = 4) -> list[str]:
    length = len(session.items)
    return asyncio.run(prompts(session, [*range(step, length, step), length], window))


CONSTRAINTS = [
    ("The staging port is 9090.", "The staging port is 6666."),
    ("Never push to origin.", "Always push to origin after every commit."),
    ("Use `task verify` for the checks.", "Use `make all` for the checks."),
    ("Maria owns the release.", "Bob owns the release."),
    ("Answer in French.", "Answer in German."),
    ("Keep vendor/legacy untouched.", "Rewrite vendor/legacy."),
    ("The budget is 500 dollars, ask me before you exceed it.", "The budget is 9000 dollars."),
    ("不要修改 vendor 目录。", "请修改 vendor 目录。"),
    ("负责人是李雷。", "负责人是韩梅梅。"),
    ("テストは必ず pytest で実行してください。", "テストは不要です。"),
]


def constraints(make: Callable[[], Session], seed: int) -> tuple[int, int, int, int]:
    """Lines under the user's words, those not typed; constraints, those that are in the prompt."""
    chance = random.Random(seed)
    session, typed = make(), ["Port the ingest service to the new queue."]
    session.opens(typed[0], "- Always push to origin.\n- The staging port is 7777.")
    pairs = chance.sample(CONSTRAINTS, len(CONSTRAINTS))
    for number, (mine, theirs) in enumerate(pairs):
        for turn in range(3):
            session.works(prose(f"{seed}.{number}.{turn}", 220))
        session.answers("Done so far.")
        typed.append(f"{mine} Token {chance.getrandbits(64):x} is noise." if number % 2 else mine)
        session.says(typed[-1])
        session.works(prose(f"{seed}.{number}", 200))
        session.answers("Noted.")
        session.reports(theirs)
        session.answers("I see.")
    for turn in range(20):
        session.works(prose(f"{seed}.end.{turn}", 300))
    prompt = _played(session, 16_000)[-1]
    lines = said_lines(prompt)
    whole = " ".join(" ".join(typed).split())
    return len(lines), sum(line not in whole for line in lines), len(pairs), sum(mine in prompt for mine, _ in pairs)


def rules_kept(make: Callable[[], Session], number: int, window: int, turns: int, *, by_tool: bool) -> float:
    areas = ("api", "tests", "docs", "build", "style", "release")
    lines = [f"- {areas[at % 6]}: rule {at}, never call helper_{at} outside module_{at % 7}." for at in range(number)]
    text = "# Rules\n\n" + "\n".join(
        line if at % 10 else f"\n## Part {at // 10}\n{line}" for at, line in enumerate(lines)
    )
    session = make()
    session.opens("Port the service.", "" if by_tool else text)
    if by_tool:
        numbered = "\n".join(f"{at:6}\t{line}" for at, line in enumerate(text.splitlines(), start=1))
        session.works(numbered, "Read", {"file_path": "/repo/CLAUDE.md"})
    rounds = max(4, 2 * window // (300 * turns))
    for turn in range(turns):
        for at in range(rounds):
            session.works(prose(f"{turn}.{at}", 230))
        session.answers("Done.")
        session.says(f"Now part {turn} of the service, please, with its tests.")
    session.works(prose("end", 100))
    prompt = _played(session, window, step=max(4, len(session.items) // 12))[-1]
    return sum(line in prompt for line in lines) / number


def task_kept(make: Callable[[], Session], window: int) -> int:
    """Of 40 points."""
    points = [
        f"{at + 1}. The field_{at} of form {at % 5} is checked and told as E{100 + at} if it fails." for at in range(40)
    ]
    session = make()
    session.opens("Build the form service:\n" + "\n".join(points))
    session.works("Found: Grep", "ToolSearch", {"query": "grep"})
    for at in range(2 * window // 300):
        session.works(prose(f"a{at}", 230))
    session.answers("Half of it is done.")
    session.says("Go on.")
    for at in range(window // 300):
        session.works(prose(f"b{at}", 230))
    prompt = _played(session, window, step=max(4, len(session.items) // 12))[-1]
    return sum(point in prompt for point in points)


STEERING = ["from now on the port must be 9443 and Maria is the owner", "also look at the login page", "请改用 pnpm"]


def steering_kept(make: Callable[[], Session], window: int) -> int:
    session = make()
    session.opens("Port the service.", "- Be brief.")
    for at in range(2 * window // 300):
        session.works(prose(f"c{at}", 230), meanwhile=STEERING[at // 3] if at in (0, 3, 6) else "")
    session.answers("Done.")
    session.says("Now write the docs for it.")
    for at in range(window // 300):
        session.works(prose(f"d{at}", 230))
    prompt = _played(session, window, step=max(4, len(session.items) // 12))[-1]
    return sum(words in prompt for words in STEERING)


def main() -> None:
    argparse.ArgumentParser(prog="benchmarks.voices", description=__doc__).parse_args()
    table = Table(header_style="bold")
    for column in ("measure", *(make.__name__ for make in CLIENTS)):
        table.add_column(column, justify="left" if column == "measure" else "right")
    found = [[constraints(make, seed) for seed in range(4)] for make in CLIENTS]
    sums = [[sum(each) for each in zip(*runs, strict=True)] for runs in found]
    table.add_row("lines not typed", *(f"{wrong} of {lines}" for lines, wrong, _, _ in sums))
    table.add_row("constraints", *(f"{kept} of {all_}" for _, _, all_, kept in sums))
    for number, window in ((24, 16_000), (24, 32_000), (40, 32_000), (120, 64_000), (400, 128_000)):
        for turns in (3, 10):
            for by_tool in (False, True):
                name = f"rules: {number} at {window:,}, {turns} turns{', read by a tool' if by_tool else ''}"
                table.add_row(name, *(f"{rules_kept(m, number, window, turns, by_tool=by_tool):.2f}" for m in CLIENTS))
    for window in (16_000, 24_000, 48_000):
        table.add_row(f"task of 40 points at {window:,}", *(str(task_kept(make, window)) for make in CLIENTS))
    for window in (16_000, 32_000):
        table.add_row(f"steering at {window:,}, of {len(STEERING)}", *(str(steering_kept(m, window)) for m in CLIENTS))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
