"""The same conversation in every dialect: told once, in words of no dialect, and written by one writer each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from msgspec import structs

from policies.conversation.conversation import Conversation
from policies.conversation.message import Message
from policies.conversation.transcript import Utterance
from proxy.dialects import json_array
from proxy.dialects.base import Dialect, Usage
from proxy.dialects.history import History
from proxy.dialects.table import CHAT, MESSAGES, RESPONSES
from tests.support.conversations import Json, count


@dataclass(frozen=True, slots=True)
class Called:
    """A tool call: its id, and what is called with which arguments."""

    id: str
    tool: str = "bash"
    path: str = "a.py"


@dataclass(frozen=True, slots=True)
class Entry:
    """What one side says at once: words, calls, or results by the ids of their calls."""

    role: str
    text: str = ""
    calls: tuple[Called, ...] = ()
    results: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Style:
    """What clients change about a conversation without saying anything else.

    marked: a cache's mark on every text. parts: texts as lists of one part. thinking: beside what the model says.
    """

    marked: bool = False
    parts: bool = False
    thinking: bool = False


def user(text: str) -> Entry:
    return Entry("user", text)


def model(text: str = "", *calls: Called) -> Entry:
    return Entry("assistant", text, calls)


def results(**texts: str) -> Entry:
    """All results of a round, in this order."""
    return Entry("tool", results=tuple(texts.items()))


HISTORY = (
    user("Fix the build."),
    model("I look.", Called("c1", "read_file"), Called("c2", "run_tests")),
    results(c1="def f(): ...", c2="Error: 3 failed"),
    model("", Called("c3", "write_file", "b.py")),
    results(c3="ok"),
    model("Done."),
    user("Now the docs."),
    model("", Called("c4", "read_file", "README.md")),
    results(c4="# Title"),
    model("They are fine."),
    user("Thanks."),
)
# Entries of it that begin a unit, and those before which it may be cut.
UNITS = (0, 1, 3, 5, 6, 7, 9, 10)
CUTS = (3, 5, 6, 9, 10)


def renamed(history: Sequence[Entry]) -> list[Entry]:
    """With other ids for the calls."""
    return [
        replace(
            entry,
            calls=tuple(replace(call, id=f"other_{call.id}") for call in entry.calls),
            results=tuple((f"other_{call}", text) for call, text in entry.results),
        )
        for entry in history
    ]


class Writer(Protocol):
    """Writes conversations in one dialect, and answers as its servers do."""

    dialect: Dialect

    def items(self, entry: Entry, style: Style) -> list[Json]:
        """An entry as the items of a request."""

    def fields(self) -> Json:
        """What stands beside the items: a model, tools, and a limit of 99 tokens for the answer."""

    def answer(self, text: str, usage: Usage) -> bytes:
        """A whole answer of a model."""

    def events(self, text: str, usage: Usage) -> list[bytes]:
        """The data of a stream's events: announcements, then the text, then the rest."""


class ChatWriter:
    """Of chat completions."""

    dialect = CHAT

    def items(self, entry: Entry, style: Style) -> list[Json]:
        if entry.results:
            return [
                {"role": "tool", "tool_call_id": call, "content": _content(text, style)} for call, text in entry.results
            ]
        message: Json = {"role": entry.role, "content": _content(entry.text, style) if entry.text else None}
        if entry.calls:
            message["tool_calls"] = [_chat_call(call) for call in entry.calls]
        if style.thinking and entry.role == "assistant":
            message["reasoning_content"] = "because"
        return [message]

    def fields(self) -> Json:
        return {"model": "m", "max_tokens": 99, "tools": [{"type": "function", "function": {"name": "bash"}}]}

    def answer(self, text: str, usage: Usage) -> bytes:
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return json.dumps({"id": "1", "choices": [choice], "usage": _chat_usage(usage)}).encode()

    def events(self, text: str, usage: Usage) -> list[bytes]:
        deltas: list[Json] = [{"role": "assistant", "content": ""}, {"content": text}, {}]
        chunks: list[Json] = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        return [json.dumps(chunk).encode() for chunk in [*chunks, {"choices": [], "usage": _chat_usage(usage)}]]


def _content(text: str, style: Style) -> object:
    mark = {"cache_control": {"type": "ephemeral"}} if style.marked else {}
    return [{"type": "text", "text": text} | mark] if style.parts or style.marked else text


def _chat_call(call: Called) -> Json:
    arguments = json.dumps({"path": call.path}, separators=(",", ":"))
    return {"id": call.id, "type": "function", "function": {"name": call.tool, "arguments": arguments}}


def _chat_usage(usage: Usage) -> Json:
    return {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}


class MessagesWriter:
    """Of the Messages API: all results of a round in one message."""

    dialect = MESSAGES

    def items(self, entry: Entry, style: Style) -> list[Json]:
        if entry.results:
            return [{"role": "user", "content": [_tool_result(call, text, style) for call, text in entry.results]}]
        thoughts: list[Json] = []
        if style.thinking and entry.role == "assistant":
            thoughts = [{"type": "thinking", "thinking": "because", "signature": "s"}]
        if not (thoughts or entry.calls):
            return [{"role": entry.role, "content": _content(entry.text, style)}]
        mark: Json = {"cache_control": {"type": "ephemeral"}} if style.marked else {}
        text: list[Json] = [{"type": "text", "text": entry.text} | mark] if entry.text else []
        calls = [
            {"type": "tool_use", "id": c.id, "name": c.tool, "input": {"path": c.path}} | mark for c in entry.calls
        ]
        return [{"role": entry.role, "content": [*thoughts, *text, *calls]}]

    def fields(self) -> Json:
        tools = [{"name": "bash", "input_schema": {"type": "object"}}]
        return {"model": "m", "max_tokens": 99, "system": "You code.", "tools": tools}

    def answer(self, text: str, usage: Usage) -> bytes:
        content = [{"type": "text", "text": text}]
        return json.dumps(_message(content, "end_turn", _messages_usage(usage, usage.completion_tokens))).encode()

    def events(self, text: str, usage: Usage) -> list[bytes]:
        events: list[Json] = [
            {"type": "message_start", "message": _message([], None, _messages_usage(usage, 1))},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "ping"},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
            {"type": "content_block_stop", "index": 0},
            {
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn", "stop_sequence": None},
                "usage": {"output_tokens": usage.completion_tokens},
            },
            {"type": "message_stop"},
        ]
        return [json.dumps(event).encode() for event in events]


def _tool_result(call: str, text: str, style: Style) -> Json:
    mark: Json = {"cache_control": {"type": "ephemeral"}} if style.marked else {}
    return {"type": "tool_result", "tool_use_id": call, "content": _content(text, replace(style, marked=False))} | mark


def _message(content: list[Json], reason: str | None, usage: Json) -> Json:
    said: Json = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": content}
    return {**said, "stop_reason": reason, "stop_sequence": None, "usage": usage}


def _messages_usage(usage: Usage, output: int) -> Json:
    cached: Json = {"cache_creation_input_tokens": 200, "cache_read_input_tokens": 1_000}
    return {"input_tokens": usage.prompt_tokens - 1_200, **cached, "output_tokens": output}


class ResponsesWriter:
    """Of the Responses API: one item for everything that is said."""

    dialect = RESPONSES

    def items(self, entry: Entry, style: Style) -> list[Json]:
        if entry.results:
            return [
                {"type": "function_call_output", "call_id": call, "output": _parts(text, "input_text", style)}
                for call, text in entry.results
            ]
        kind = "output_text" if entry.role == "assistant" else "input_text"
        said: list[Json] = [{"role": entry.role, "content": _parts(entry.text, kind, style)}] if entry.text else []
        if style.parts:
            said = [{"type": "message", "id": "msg_1", "status": "completed", **item} for item in said]
        thought: Json = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "because"}
        thoughts = [thought] if style.thinking and entry.role == "assistant" else []
        return [*thoughts, *said, *map(_function_call, entry.calls)]

    def fields(self) -> Json:
        tools = [{"type": "function", "name": "bash", "parameters": {}}]
        return {"model": "m", "instructions": "You code.", "max_output_tokens": 99, "tools": tools}

    def answer(self, text: str, usage: Usage) -> bytes:
        return json.dumps(_response("completed", [_output(text)], usage)).encode()

    def events(self, text: str, usage: Usage) -> list[bytes]:
        part = {"type": "output_text", "text": "", "annotations": []}
        empty = {**_output(""), "content": []}
        events: list[Json] = [
            {"type": "response.created", "response": _response("in_progress", [], None)},
            {"type": "response.in_progress", "response": _response("in_progress", [], None)},
            {"type": "response.output_item.added", "output_index": 0, "item": empty},
            {"type": "response.content_part.added", "output_index": 0, "content_index": 0, "part": part},
            {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": text},
            {"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": text},
            {"type": "response.output_item.done", "output_index": 0, "item": _output(text)},
            {"type": "response.completed", "response": _response("completed", [_output(text)], usage)},
        ]
        return [json.dumps({**event, "sequence_number": at}).encode() for at, event in enumerate(events)]


def _parts(text: str, kind: str, style: Style) -> object:
    mark = {"prompt_cache_breakpoint": {"mode": "explicit"}} if style.marked else {}
    return [{"type": kind, "text": text} | mark] if style.parts or style.marked else text


def _function_call(call: Called) -> Json:
    arguments = json.dumps({"path": call.path}, separators=(",", ":"))
    return {
        "type": "function_call",
        "id": f"fc_{call.id}",
        "call_id": call.id,
        "name": call.tool,
        "arguments": arguments,
    }


def _output(text: str) -> Json:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [part]}


def _response(status: str, output: list[Json], usage: Usage | None) -> Json:
    billed = usage and {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
    fields: Json = {"id": "resp_1", "object": "response", "created_at": 1, "status": status, "error": None}
    return {**fields, "incomplete_details": None, "model": "m", "output": output, "usage": billed}


WRITERS: tuple[Writer, ...] = (ChatWriter(), ResponsesWriter(), MessagesWriter())
_INSTRUCTIONS = {"responses": "instructions", "messages": "system"}


def key_of(dialect: Dialect) -> str:
    """The field in which the items stand."""
    key: str = json.loads(dialect.array.key)
    return key


def path_of(dialect: Dialect) -> str:
    return "/".join(("/v1", *dialect.path))


def request_body(dialect: Dialect, system: str, items: Sequence[Json], fields: Json) -> Json:
    """A request's body, its instructions where the dialect has them."""
    key, field = key_of(dialect), _INSTRUCTIONS.get(dialect.name)
    if field is None:
        return {**fields, key: [{"role": "system", "content": system}, *items]}
    return {**fields, field: system, key: [*items]}


def taken_apart(dialect: Dialect, body: Json) -> tuple[object, list[Json]]:
    """A request's instructions, and the items behind them."""
    items = body[key_of(dialect)]
    assert isinstance(items, list)
    field = _INSTRUCTIONS.get(dialect.name)
    return (items[0], items[1:]) if field is None else (body.get(field), items)


@dataclass(frozen=True, slots=True)
class Written:
    """A conversation as bytes, and as it is read. starts: the first message of every entry, and the end of the last."""

    dialect: Dialect
    body: bytes
    parsed: json_array.Parsed
    messages: list[Message]
    starts: list[int]

    @property
    def conversation(self) -> Conversation:
        return Conversation(self.messages)

    @property
    def utterances(self) -> list[Utterance]:
        """Of the whole conversation, which has no instructions at its beginning."""
        tools = self.conversation.tools_answered
        return [
            said
            for position, (first, last) in enumerate(self.parsed.spans)
            for item in json_array.split_items(self.body[first:last])
            for said in self.dialect.items.utterances(json.loads(item), position, tools[position])
        ]


PLAIN = Style()


def written(writer: Writer, history: Sequence[Entry], style: Style = PLAIN) -> Written:
    items = [writer.items(entry, style) for entry in history]
    body = json.dumps(
        {
            **writer.fields(),
            key_of(writer.dialect): [item for of_entry in items for item in of_entry],
            "temperature": 0.5,
        }
    ).encode()
    parsed = json_array.parse(body, writer.dialect.array)
    assert parsed is not None
    described = [writer.dialect.items.describe(json.loads(body[first:last]), count) for first, last in parsed.spans]
    found = [message for message in described if message is not None]
    ends = [sum(map(len, items[:end])) for end in range(len(items) + 1)]
    starts = [sum(not message.silent for message in found[:end]) for end in ends]
    (read,) = History().longer(found, ())
    return Written(writer.dialect, body, structs.replace(parsed, spans=read.spans(parsed.spans)), read.messages, starts)
