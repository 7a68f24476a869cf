"""The part of a conversation to summarize, as text. For a summarizer it is data, not messages to it."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Literal

from policies.authorship.wrappers import DISTINCT, Voice
from policies.conversation.lookalikes import fold_lookalikes
from policies.conversation.message import Role

Part = Literal["text", "tool", "reasoning"]

CountTokens = Callable[[str], int]

MAX_ARGUMENTS = 1_500
MAX_RESULT = 2_000
HEAD_SHARE = 0.6

OPENING = "<transcript>"
CLOSING = "</transcript>"
# The proxy's own tags. In other text they are escaped, so that no text can close or imitate them.
MARKERS = ("transcript", "previous_summary", "conversation_record", "timeline", "part", "statements", "recalled")

# Control characters, terminal sequences, text directions and invisible letters: readers do not see them, tokenizers do.
# Joiners and variation selectors stay, because languages and emoji need them.
_UNSEEN = re.compile(
    r"\x1b\[[0-?]{0,32}[ -/]{0,8}[@-~]|\x1b\][^\x07\x1b]{0,500}(?:\x07|\x1b\\)|\r\n"
    "|[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)
# Characters that may occur between the letters of a word without changing it for a reader: joiners and combining
# accents.
_BETWEEN = "[\u200c\u200d\ufe00-\ufe0f\u0300-\u036f]{0,4}"
_GAP = r"[\s\u200c\u200d\ufe00-\ufe0f]{0,8}+"
# Characters that may replace a letter but also have their own meaning.
_LETTERS = {"i": "[il1|]", "l": "[il1|]", "o": "[o0]", "_": r"[\W_]{0,4}"}
# Markers of chat templates: Gemma, Llama 2, Mistral, GLM, Cohere, Qwen, Nemotron, Seed, Kimi, EXAONE. Some servers
# parse them as the end of a message, wherever they occur. ChatML and similar: `<|` and `|>`.
_TEMPLATE_TAG = (
    r"(?:start|end)_of_(?:turn|image)|(?:bos|eos|pad|unk)(?:_token)?|s|sys|[se]op|tool_(?:call|response)"
    r"|(?:extra_id|special)_\d{1,4}|seed:\w{1,20}"
)
# Tags of agents' harnesses. In a tool's result they may be an attempt to imitate one. Grouped by first letters, since a
# pattern tries alternatives one by one.
_HARNESS_TAG = "|".join(
    f"{letter}(?:{'|'.join(re.sub('[-_ :]', '[-_ :]', name[1:]) for name in names)})"
    for letter, names in groupby(sorted({name.lower() for name in DISTINCT}), key=itemgetter(0))
)
_TEMPLATE_WORD = r"inst|system_prompt|available_tools|tool_(?:calls|results|content)|[gs]mask|bos|eos|eot|\|\w{1,40}\|"


def _spell_marker(marker: str) -> str:
    return _BETWEEN.join(_LETTERS.get(sign, sign) for sign in marker)


# For folded text, without lookalikes: the proxy's tags as a lenient reader sees them, and exact markers of chat
# templates.
_TAG = re.compile(
    rf"<(?={_GAP}/?{_GAP}(?:{'|'.join(map(_spell_marker, MARKERS))}|(?:{_HARNESS_TAG})\b)|/?(?:{_TEMPLATE_TAG})>"
    r"|\|/?\w[\w -]{0,40}\|>)"
    rf"|\[(?=/?(?:{_TEMPLATE_WORD})\])",
    re.IGNORECASE,
)
# The labels of texts in a user's name by their voice, for a summarizer.
_VOICES: Mapping[Voice, str] = {
    "person": "user",
    "harness": "harness",
    "report": "report",
    "summary": "client's summary",
    "instructions": "rules",
}
_BY = 80
# The label that `render` puts before an utterance and its calls.
_LABEL = re.compile(r"^(?=[ \t]*(?:\[\d+\] [a-z]|called [\w.-]+\(|thought: ))", re.MULTILINE)
_INSTEAD = {"<": "&lt;", "[": "&#91;", "": "> "}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of an assistant.

    arguments: the JSON text as written.
    id: repeated by its result.
    """

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Utterance:
    """The text of one role in one message of the covered span, without media. Reasoning is separate.

    position: of the message in the body.
    answers, tool: for a result, the id of its call and the tool.
    voice:    for a text in a user's name, its author. by: the element, file or client, unless it is a person's.
    error:    for a result, True if the protocol marks it as an error; None if the protocol has no mark.
    """

    position: int
    role: Role
    text: str
    calls: tuple[ToolCall, ...] = ()
    answers: str | None = None
    tool: str | None = None
    reasoning: str = ""
    voice: Voice = "person"
    by: str = ""
    error: bool | None = None

    @property
    def is_persons(self) -> bool:
        """Return True for a person's words, False for text of a client or a model."""
        return self.role == "user" and self.voice == "person"


@dataclass(frozen=True, slots=True)
class Block:
    """A rendered utterance.

    cut_before: True if a span may be cut before it. False if it continues a round.
    """

    text: str
    tokens: int
    cut_before: bool


def escape(text: str) -> str:
    """Return foreign text without invisible characters, with the proxy's and chat templates' tags made harmless."""
    if text.isascii() and text.isprintable() and "<" not in text and "[" not in text:  # as nearly every line
        return text
    return disarm(visible(text))


def disarm(text: str) -> str:
    """Return the text with these tags made harmless and everything else unchanged."""
    return _mark_matches(_TAG, text)


def visible(text: str) -> str:
    """Return the text without invisible characters. Lines end with \\n only."""
    return _UNSEEN.sub(_replace_unseen, text)


def _replace_unseen(unseen: re.Match[str]) -> str:
    if unseen[0] == "\r\n":
        return "\n"
    return " " if unseen[0].isspace() else ""


def shorten(text: str, limit: int | None, left_out: int = 0) -> str:
    """Return the head (60 %) and tail (40 %) of a text above `limit` characters with a mark; a shorter text unchanged.

    left_out: characters already missing from its middle.
    """
    if limit is None or len(text) <= limit:
        return text
    head = int(limit * HEAD_SHARE)
    tail = limit - head
    removed = len(text) - head - tail + left_out
    return f"{text[:head]}\n[… {removed:,} characters left out …]\n{text[len(text) - tail :] if tail else ''}"


def newest_within(lines: Sequence[str], budget: int, count: CountTokens) -> list[str]:
    """Return the newest lines that fit, in their order."""
    newest: list[str] = []
    for text in reversed(lines):
        budget -= count(text) + 1
        if budget < 0:
            break
        newest.append(text)
    return newest[::-1]


def render(utterances: Sequence[Utterance], count: CountTokens, whole: Sequence[Part] = ("text",)) -> list[Block]:
    """Return one block for each utterance, oldest first.

    Parts not in `whole` are shortened to head and tail, and reasoning is left out (R3's partsToKeep).
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
        label += ", failed" if utterance.error else ""
        text = shorten(utterance.text, None if tools_whole else MAX_RESULT)
        return f"[{utterance.position}] {label}: {_quote_lines(text)}"
    text = shorten(utterance.text, None if "text" in whole else MAX_RESULT)
    lines = [f"[{utterance.position}] {_label(utterance)}: {_quote_lines(text)}"]
    if utterance.reasoning and "reasoning" in whole:
        lines.append(f"  thought: {_quote_lines(utterance.reasoning)}")
    limit = None if tools_whole else MAX_ARGUMENTS
    lines += [f"  called {call.name}({_quote_lines(shorten(call.arguments, limit))})" for call in utterance.calls]
    return "\n".join(lines)


def _label(utterance: Utterance) -> str:
    """Return the label of an utterance. In the user's role it names the author: a person, client, tool or file."""
    if utterance.role != "user" or utterance.voice == "person":
        return utterance.role
    by = " ".join(utterance.by.split())[:_BY]
    return f"{_VOICES[utterance.voice]} ({by})" if by else _VOICES[utterance.voice]


def _quote_lines(text: str) -> str:
    """Return the text with a mark before lines that look like another utterance's label."""
    return _mark_matches(_LABEL, text)


def _mark_matches(pattern: re.Pattern[str], text: str) -> str:
    """Return the text with a replacement for every match in its folded form."""
    parts, end = [], 0
    for match in pattern.finditer(fold_lookalikes(text)):
        parts += [text[end : match.start()], _INSTEAD[match[0]]]
        end = match.end()
    return "".join([*parts, text[end:]])
