"""The part of a conversation that is to be summarized, as text: data for a summarizer, never messages to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from policies.conversation import Role

Part = Literal["text", "tool", "reasoning"]

CountTokens = Callable[[str], int]

MAX_ARGUMENTS = 1_500
MAX_RESULT = 2_000
HEAD_SHARE = 0.6

OPENING = "<transcript>"
CLOSING = "</transcript>"
# Every tag of ours; the same characters in anybody's text are escaped, so that nothing can close or imitate them.
MARKERS = ("transcript", "previous_summary", "conversation_record", "timeline", "part", "statements")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call an assistant made; arguments as the JSON text it wrote."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Utterance:
    """One message of the covered span, decoded: text without media, reasoning apart. `position` counts in the body."""

    position: int
    role: Role
    text: str
    calls: tuple[ToolCall, ...] = ()
    tool: str | None = None
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """One utterance, rendered. A span may be cut before it unless it continues a round."""

    text: str
    tokens: int
    cut_before: bool


def escape(text: str) -> str:
    """Make our own tags harmless in somebody else's text."""
    for marker in MARKERS:
        for tag in (f"<{marker}", f"</{marker}"):
            if tag in text:
                text = text.replace(tag, tag.replace("<", "&lt;"))
    return text


def shorten(text: str, limit: int | None) -> str:
    """Head (60 %) and tail (40 %) of a text of over `limit` characters, visibly marked; the text itself below."""
    if limit is None or len(text) <= limit:
        return text
    head = int(limit * HEAD_SHARE)
    tail = limit - head
    removed = len(text) - head - tail
    return f"{text[:head]}\n[… {removed:,} characters left out …]\n{text[len(text) - tail :] if tail else ''}"


def newest_within(lines: Sequence[str], budget: int, count: CountTokens) -> list[str]:
    """The newest lines that fit, in their order."""
    kept: list[str] = []
    for text in reversed(lines):
        budget -= count(text) + 1
        if budget < 0:
            break
        kept.append(text)
    return kept[::-1]


def render(utterances: Sequence[Utterance], count: CountTokens, whole: Sequence[Part] = ("text",)) -> list[Block]:
    """One block an utterance, oldest first.

    What is not of the parts that stay `whole` is capped, head and tail; reasoning is left out then (R3's partsToKeep).
    """
    blocks = []
    for utterance in utterances:
        text = escape(_lines(utterance, whole))
        blocks.append(Block(text, count(text), cut_before=utterance.role != "tool"))
    return blocks


def _lines(utterance: Utterance, whole: Sequence[Part]) -> str:
    tools_whole = "tool" in whole
    if utterance.role == "tool":
        label = f"tool result ({utterance.tool})" if utterance.tool else "tool result"
        text = shorten(utterance.text, None if tools_whole else MAX_RESULT)
        return f"[{utterance.position}] {label}: {text}"
    text = shorten(utterance.text, None if "text" in whole else MAX_RESULT)
    lines = [f"[{utterance.position}] {utterance.role}: {text}"]
    if utterance.reasoning and "reasoning" in whole:
        lines.append(f"  thought: {utterance.reasoning}")
    limit = None if tools_whole else MAX_ARGUMENTS
    lines += [f"  called {call.name}({shorten(call.arguments, limit)})" for call in utterance.calls]
    return "\n".join(lines)
