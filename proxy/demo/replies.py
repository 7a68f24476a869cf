"""What the bundled model server says: lines of its prompt when asked for one, tool calls when told to, records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec

from proxy.demo.prompt import Chat, Function, PromptCall, PromptMessage

Summaries = Literal["faithful", "useless", "garbage", "slow", "refuse", "down"]
"""How it summarizes: well, fluently about nothing, without headings, when let, not with this key, not at all."""

_QUESTIONS = (
    re.compile(r"\bwhat is (?:the )?(?P<name>[^?\n]+)\?\s*\Z", re.IGNORECASE),
    re.compile(r"(?P<name>[^\s，。？！,.?!]+?)(?:现在)?是什么[？?]\s*\Z"),
)
_QUESTION_END = ("?", "？")
_BULLET = re.compile(r"\A\s*- (?:\[\d+\] )?")
_ORDER = "use the tool"

_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_SAID = re.compile(r"^\[\d+\] user: (.+)$", re.MULTILINE)
_CALLED = re.compile(r"^  called ([\w-]+)\(", re.MULTILINE)
_CARRIED = re.compile(r"^- (.+)$", re.MULTILINE)
_MAX_LINE = 90
_MAX_LINES = 5
_BEFORE = ("summarize", "merge", "excerpt")
_EXCERPT = "A long message of"
_NONSENSE = "Various matters were looked at, and in due course several of them were considered to be of interest."

_EXAMPLES: Mapping[str, object] = {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}


@dataclass(frozen=True, slots=True)
class Reply:
    """Text, or one tool call."""

    text: str = ""
    call: PromptCall | None = None

    @property
    def finish_reason(self) -> str:
        return "stop" if self.call is None else "tool_calls"


class _Parameters(msgspec.Struct):
    properties: dict[str, dict[str, object]] = {}
    required: list[str] = []


class _Declared(msgspec.Struct):
    name: str
    parameters: _Parameters = msgspec.field(default_factory=_Parameters)


class _Tool(msgspec.Struct):
    function: _Declared


def ordinary(chat: Chat, number: int) -> Reply:
    """The answer to a request of a client; `number` makes the id of a tool call."""
    last = chat.messages[-1] if chat.messages else PromptMessage("user")
    if chat.tools and last.role == "user" and _ORDER in last.text.lower():
        return Reply(call=_call(msgspec.json.decode(chat.tools[0], type=_Tool), number))
    for question in _QUESTIONS if last.role == "user" else ():
        if asked := question.search(last.text):
            return Reply(_recall(asked["name"], chat.messages))
    return Reply(f"Noted; {len(chat.messages)} messages read.")


def _recall(name: str, messages: Sequence[PromptMessage]) -> str:
    """The newest line of the prompt that holds the name and is no question itself."""
    for line in _lines_backwards(messages):
        if name.lower() in line.lower() and not line.rstrip().endswith(_QUESTION_END):
            return _BULLET.sub("", line).strip()
    return f"Nothing in this conversation says what {name} is."


def _lines_backwards(messages: Sequence[PromptMessage]) -> Iterator[str]:
    for message in reversed(messages):
        if message.role != "assistant":
            yield from reversed(message.text.splitlines())


def _call(tool: _Tool, number: int) -> PromptCall:
    declared = tool.function.parameters
    arguments = {name: _example(declared.properties.get(name, {})) for name in declared.required}
    return PromptCall(f"call_{number:08d}", Function(tool.function.name, msgspec.json.encode(arguments).decode()))


def _example(schema: Mapping[str, object]) -> object:
    kinds = schema.get("enum")
    if isinstance(kinds, list) and kinds:
        return kinds[0]
    return _EXAMPLES.get(str(schema.get("type")), "example")


def asks_for_summary(chat: Chat) -> bool:
    """Whether a prompt of ours stands before a transcript, or behind a session's own messages."""
    return chat.messages[0].text.startswith(tuple(map(_opening, _BEFORE))) or _is_behind(chat)


def summary(chat: Chat, summaries: Summaries) -> Reply:
    """The record that a summarizer's prompt asks for, under the headings it asks for; a line where it asks for none."""
    if _is_behind(chat):
        prompt, transcript = _newest(chat).last_text, "\n".join(_retold(chat.messages))
    else:
        prompt, transcript = chat.messages[0].text, "\n".join(message.text for message in chat.messages[1:])
    headings = _HEADING.findall(prompt)
    if not headings:
        return Reply(f"{_EXCERPT} {len(transcript)} characters.")
    match summaries:
        case "garbage":
            return Reply(" ".join([_NONSENSE] * 4))
        case "useless":
            return Reply("\n\n".join(f"## {heading}\n{_NONSENSE}" for heading in headings))
        case _:
            return Reply(_record(headings, transcript))


@cache
def _opening(prompt: str) -> str:
    """Its first sentence."""
    return (files("policies") / "prompts" / f"{prompt}.md").read_text(encoding="utf-8").partition(".")[0]


def _is_behind(chat: Chat) -> bool:
    return _newest(chat).last_text.startswith(_opening("aligned"))


def _newest(chat: Chat) -> PromptMessage:
    """The user's newest message; instructions may follow it."""
    return next((message for message in reversed(chat.messages) if message.role == "user"), PromptMessage("user"))


def _retold(messages: Sequence[PromptMessage]) -> Iterator[str]:
    """What a transcript would show of a session: the record so far, what the user said, what was called."""
    for number, message in enumerate(messages):
        is_ours = message.text.startswith("<conversation_record>")
        if message.role == "user" and not message.last_text.startswith(_opening("aligned")):
            yield message.text if is_ours else f"[{number}] user: {message.text}"
        yield from (f"  called {call.function.name}()" for call in message.tool_calls or ())


def _record(headings: Sequence[str], transcript: str) -> str:
    said = [_short(line) for line in _SAID.findall(transcript) or _CARRIED.findall(transcript)] or ["(none)"]
    called = sorted(set(_CALLED.findall(transcript)))
    lines = ["(none)"] * len(headings)
    lines[0] = said[0]
    lines[1] = "\n".join(f"- {line}" for line in said[:_MAX_LINES])
    lines[2] = f"- {', '.join(called)}" if called else "(none)"
    lines[-1] = said[-1]
    return "\n\n".join(f"## {heading}\n{line}" for heading, line in zip(headings, lines, strict=True))


def _short(line: str) -> str:
    return line if len(line) <= _MAX_LINE else f"{line[: _MAX_LINE - 1]}…"
