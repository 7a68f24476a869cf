"""The part of a conversation that is to be summarized, as text: data for a summarizer, never messages to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from policies.conversation import Role

CountTokens = Callable[[str], int]

MAX_ARGUMENTS = 1_500
MAX_RESULT = 2_000
HEAD_SHARE = 0.6

OPENING = "<transcript>"
CLOSING = "</transcript>"
# Every tag of ours; the same characters in anybody's text are escaped, so that nothing can close or imitate them.
MARKERS = ("transcript", "previous_summary", "conversation_record", "timeline", "part")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call an assistant made; arguments as the JSON text it wrote."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Utterance:
    """One message of the covered span, decoded: text without media and reasoning. `position` counts in the body."""

    position: int
    role: Role
    text: str
    calls: tuple[ToolCall, ...] = ()
    tool: str | None = None


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


def shorten(text: str, limit: int) -> str:
    """Head (60 %) and tail (40 %) of a text of over `limit` characters, visibly marked; the text itself below."""
    if len(text) <= limit:
        return text
    head = int(limit * HEAD_SHARE)
    tail = limit - head
    removed = len(text) - head - tail
    return f"{text[:head]}\n[… {removed:,} characters left out …]\n{text[len(text) - tail :] if tail else ''}"


def render(utterances: Sequence[Utterance], count: CountTokens) -> list[Block]:
    """One block an utterance, oldest first; arguments and results capped, head and tail."""
    blocks = []
    for utterance in utterances:
        text = escape(_lines(utterance))
        blocks.append(Block(text, count(text), cut_before=utterance.role != "tool"))
    return blocks


def _lines(utterance: Utterance) -> str:
    if utterance.role == "tool":
        label = f"tool result ({utterance.tool})" if utterance.tool else "tool result"
        return f"[{utterance.position}] {label}: {shorten(utterance.text, MAX_RESULT)}"
    calls = [f"  called {call.name}({shorten(call.arguments, MAX_ARGUMENTS)})" for call in utterance.calls]
    return "\n".join([f"[{utterance.position}] {utterance.role}: {utterance.text}", *calls])
