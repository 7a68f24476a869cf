"""Replies of the demo's model: the line of its prompt that answers a question, and summaries for the proxy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files

from proxy.cli.demo.prompt import Chat, PromptMessage

_QUESTION = re.compile(r"\bwhat is (?:the )?(?P<name>[^?\n]+)\?\s*\Z", re.IGNORECASE)
_QUESTION_END = ("?", "？")
_BULLET = re.compile(r"\A\s*- (?:\[\d+\] )?")

_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_USER_LINE = re.compile(r"^\[\d+\] user: (.+)$", re.MULTILINE)
_CALL_LINE = re.compile(r"^  called ([\w-]+)\(", re.MULTILINE)
_CARRIED_LINE = re.compile(r"^- (.+)$", re.MULTILINE)
_MAX_LINE = 90
_MAX_LINES = 5
_NONE = "(none)"
# The proxy's prompts before a transcript, and the one after a session's own messages.
_BEFORE = ("summarize", "merge", "excerpt")
_ALIGNED = "aligned"


def answer(chat: Chat) -> str:
    """Answer the question at the end of the newest message, or else confirm the request."""
    newest = chat.messages[-1] if chat.messages else PromptMessage("user")
    question = _QUESTION.search(newest.text) if newest.role == "user" else None
    if question is None:
        return f"Noted; {len(chat.messages)} messages read."
    return recall(question["name"], chat)


def recall(name: str, chat: Chat) -> str:
    """Return the newest line of the prompt that contains the name and is no question."""
    for message in reversed(chat.messages):
        for line in reversed(message.text.splitlines()) if message.role != "assistant" else ():
            if name.lower() in line.lower() and not line.rstrip().endswith(_QUESTION_END):
                return _BULLET.sub("", line).strip()
    return f"Nothing in this conversation says what {name} is."


def asks_for_summary(chat: Chat) -> bool:
    """Return True if the proxy requests a summary, before a transcript or after a session."""
    openings = tuple(map(_first_sentence, _BEFORE))
    return bool(chat.messages) and (chat.messages[0].text.startswith(openings) or _is_aligned(chat))


def requested_headings(chat: Chat) -> list[str]:
    """Return the headings of the requested record; none if the proxy requests an excerpt."""
    prompt = _newest_of_user(chat).last_text if _is_aligned(chat) else chat.messages[0].text
    return _HEADING.findall(prompt)


def summarize(chat: Chat) -> str:
    """Return the requested record, or one line if the proxy requests an excerpt."""
    lines = _transcript(chat.messages) if _is_aligned(chat) else (message.text for message in chat.messages[1:])
    transcript = "\n".join(lines)
    headings = requested_headings(chat)
    return _record(headings, transcript) if headings else f"A long message of {len(transcript)} characters."


@cache
def _first_sentence(prompt: str) -> str:
    return (files("policies") / "prompts" / f"{prompt}.md").read_text(encoding="utf-8").partition(".")[0]


def _is_aligned(chat: Chat) -> bool:
    return _newest_of_user(chat).last_text.startswith(_first_sentence(_ALIGNED))


def _newest_of_user(chat: Chat) -> PromptMessage:
    """Return the user's newest message. Instructions may follow it."""
    return next((message for message in reversed(chat.messages) if message.role == "user"), PromptMessage("user"))


def _transcript(messages: Sequence[PromptMessage]) -> Iterator[str]:
    """Yield the lines of a session that a record is built from: an earlier record, the user's words, tool calls."""
    for number, message in enumerate(messages):
        is_record = message.text.startswith("<conversation_record>")
        if message.role == "user" and not message.last_text.startswith(_first_sentence(_ALIGNED)):
            yield message.text if is_record else f"[{number}] user: {message.text}"
        yield from (f"  called {call.function.name}()" for call in message.tool_calls or ())


def _record(headings: Sequence[str], transcript: str) -> str:
    lines = [_shorten(line) for line in _USER_LINE.findall(transcript) or _CARRIED_LINE.findall(transcript)] or [_NONE]
    tools = sorted(set(_CALL_LINE.findall(transcript)))
    sections = [_NONE] * len(headings)
    sections[0] = lines[0]
    sections[1] = "\n".join(f"- {line}" for line in lines[:_MAX_LINES])
    sections[2] = f"- {', '.join(tools)}" if tools else _NONE
    sections[-1] = lines[-1]
    return "\n\n".join(f"## {heading}\n{section}" for heading, section in zip(headings, sections, strict=True))


def _shorten(line: str) -> str:
    return line if len(line) <= _MAX_LINE else f"{line[: _MAX_LINE - 1]}…"
