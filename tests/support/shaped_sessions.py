"""Conversations in the shapes of Claude Code, codex and opencode, each in its dialect, and what is sent of them."""

from __future__ import annotations

import io
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from proxy.callers.api_head import ApiHead
from proxy.callers.tenants import Tenants
from proxy.compaction.plan_input import plan_input_of
from proxy.config.loading import load_text
from proxy.dialects.table import CHAT, MESSAGES, RESPONSES
from proxy.sessions.stores.memory import MemoryStore
from proxy.telemetry.log import Log
from proxy.upstreams.http import UpstreamClient
from proxy.wiring import open_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proxy.dialects.base import Dialect

Item = dict[str, Any]
_FILLER = "the parser reads a batch and keeps an offset for every record that the queue hands over before commit"
_WORDS = _FILLER.split()
_TITLES = ("What the user said", "用户原话", "ユーザーの発言")


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


class _UnlistedClient(Session):
    """A client that is in no table: nothing that it sends introduces it."""

    def opens(self, words: str, rules: str = "") -> None:
        self.says("\n\n".join(filter(None, (rules, words))))


class UnlistedMessages(_UnlistedClient, ClaudeCode):
    def body(self) -> bytes:
        return _encoded({"model": "m", "max_tokens": 1024, "system": "You help with code.", "messages": self.items})

    def reports(self, text: str) -> None:
        self.says(text)

    def works(self, result: str, name: str = "Bash", arguments: Item | None = None, meanwhile: str = "") -> None:
        super().works(result, name, arguments)
        if meanwhile:
            self.items[-1]["content"].append(_text(meanwhile))


class UnlistedResponses(_UnlistedClient, Codex):
    def body(self) -> bytes:
        return _encoded({"model": "m", "instructions": "You help with code.", "input": self.items})

    def reports(self, text: str) -> None:
        self.says(text)


class UnlistedChat(_UnlistedClient, Opencode):
    def __init__(self) -> None:
        super().__init__()
        self.items[0]["content"] = "You help with code."

    def reports(self, text: str) -> None:
        self.says(text)

    def works(self, result: str, name: str = "Bash", arguments: Item | None = None, meanwhile: str = "") -> None:
        super().works(result, name, arguments)
        if meanwhile:
            self.says(meanwhile)


CLIENTS: tuple[Callable[[], Session], ...] = (ClaudeCode, Codex, Opencode)
UNLISTED_CLIENTS: tuple[Callable[[], Session], ...] = (UnlistedMessages, UnlistedResponses, UnlistedChat)


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
        router, caller, head = engine.router(config), Tenants(config).identify(None), ApiHead("POST", "/", [])
        whole = session.items
        for length in lengths:
            session.items = whole[:length]
            request = await engine.reader.read(session.body(), caller.scope, router.encoding, session.dialect)
            if request is None:
                raise ValueError("no conversation")
            case = plan_input_of(head.asking(session.dialect), router, caller, "on", request)
            prompt = await engine.prompt_builder.build_first(await engine.prompt_builder.place(case))
            sent.append("\n".join(_texts(json.loads(prompt.body))))
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
