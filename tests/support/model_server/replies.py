"""Replies of the model server: those of the demo, tool calls when a user asks for one, and bad records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from proxy.cli.demo.prompt import Chat, Function, PromptCall, PromptMessage
from proxy.cli.demo.replies import answer, recall, requested_headings, summarize

Summaries = Literal["faithful", "useless", "garbage", "slow", "refuse", "down"]
"""How it summarizes: well, fluently about nothing, without headings, when let, not with this key, not at all."""

_CHINESE_QUESTION = re.compile(r"(?P<name>[^\s，。？！,.?!]+?)(?:现在)?是什么[？?]\s*\Z")
_ORDER = "use the tool"
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
    """Return the reply to a request of a client. `number` makes the id of a tool call."""
    last = chat.messages[-1] if chat.messages else PromptMessage("user")
    if chat.tools and last.role == "user" and _ORDER in last.text.lower():
        return Reply(call=_call(msgspec.json.decode(chat.tools[0], type=_Tool), number))
    if last.role == "user" and (question := _CHINESE_QUESTION.search(last.text)):
        return Reply(recall(question["name"], chat))
    return Reply(answer(chat))


def _call(tool: _Tool, number: int) -> PromptCall:
    declared = tool.function.parameters
    arguments = {name: _example(declared.properties.get(name, {})) for name in declared.required}
    return PromptCall(f"call_{number:08d}", Function(tool.function.name, msgspec.json.encode(arguments).decode()))


def _example(schema: Mapping[str, object]) -> object:
    kinds = schema.get("enum")
    if isinstance(kinds, list) and kinds:
        return kinds[0]
    return _EXAMPLES.get(str(schema.get("type")), "example")


def summary(chat: Chat, summaries: Summaries) -> Reply:
    """Return the record that a summarizer's prompt asks for, or a bad one."""
    headings = requested_headings(chat)
    if headings and summaries == "garbage":
        return Reply(" ".join([_NONSENSE] * 4))
    if headings and summaries == "useless":
        return Reply("\n\n".join(f"## {heading}\n{_NONSENSE}" for heading in headings))
    return Reply(summarize(chat))
