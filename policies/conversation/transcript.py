"""The part of a conversation that is to be summarized, as text: data for a summarizer, never messages to it."""

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
# Every tag of ours; the same characters in anybody's text are escaped, so that nothing can close or imitate them.
MARKERS = ("transcript", "previous_summary", "conversation_record", "timeline", "part", "statements", "recalled")

# Controls, terminal sequences, reading directions, invisible letters: no reader sees them, a tokenizer does. Joiners
# and variation selectors stay, since languages and emoji are written with them.
_UNSEEN = re.compile(
    r"\x1b\[[0-?]{0,32}[ -/]{0,8}[@-~]|\x1b\][^\x07\x1b]{0,500}(?:\x07|\x1b\\)|\r\n"
    "|[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)
# What may stand between the letters of a word, and leave it the same to a reader: joiners, accents of their own.
_BETWEEN = "[\u200c\u200d\ufe00-\ufe0f\u0300-\u036f]{0,4}"
_GAP = r"[\s\u200c\u200d\ufe00-\ufe0f]{0,8}+"
# Signs in the place of a letter that are signs of their own elsewhere.
_LETTERS = {"i": "[il1|]", "l": "[il1|]", "o": "[o0]", "_": r"[\W_]{0,4}"}
# What chat templates of models put around messages: Gemma, Llama 2, Mistral, GLM, Cohere, Qwen, Nemotron, Seed, Kimi,
# EXAONE. Some servers take it for the end of a message, wherever it stands. ChatML and its kin: `<|` and `|>`.
_TEMPLATE_TAG = (
    r"(?:start|end)_of_(?:turn|image)|(?:bos|eos|pad|unk)(?:_token)?|s|sys|[se]op|tool_(?:call|response)"
    r"|(?:extra_id|special)_\d{1,4}|seed:\w{1,20}"
)
# What agents' harnesses say their own words with: in a tool's result it is somebody's who wants to be taken for one.
# By first letters, since a pattern tries the names one by one.
_HARNESS_TAG = "|".join(
    f"{letter}(?:{'|'.join(re.sub('[-_ :]', '[-_ :]', name[1:]) for name in names)})"
    for letter, names in groupby(sorted({name.lower() for name in DISTINCT}), key=itemgetter(0))
)
_TEMPLATE_WORD = r"inst|system_prompt|available_tools|tool_(?:calls|results|content)|[gs]mask|bos|eos|eot|\|\w{1,40}\|"


def _spell_marker(marker: str) -> str:
    return _BETWEEN.join(_LETTERS.get(sign, sign) for sign in marker)


# Over folded text, in which what looks like a sign is that sign: our tags as a lenient reader takes them, and those of
# chat templates as they are.
_TAG = re.compile(
    rf"<(?={_GAP}/?{_GAP}(?:{'|'.join(map(_spell_marker, MARKERS))}|(?:{_HARNESS_TAG})\b)|/?(?:{_TEMPLATE_TAG})>"
    r"|\|/?\w[\w -]{0,40}\|>)"
    rf"|\[(?=/?(?:{_TEMPLATE_WORD})\])",
    re.IGNORECASE,
)
# Of what came in a user's name, whose words it is, to a summarizer.
_VOICES: Mapping[Voice, str] = {
    "person": "user",
    "harness": "harness",
    "report": "report",
    "summary": "client's summary",
    "instructions": "rules",
}
_BY = 80
# What `render` puts before an utterance and its calls.
_LABEL = re.compile(r"^(?=[ \t]*(?:\[\d+\] [a-z]|called [\w.-]+\(|thought: ))", re.MULTILINE)
_INSTEAD = {"<": "&lt;", "[": "&#91;", "": "> "}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call an assistant made; arguments as the JSON text it wrote, and the id by which a result names it."""

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Utterance:
    """What one role says in one message of the covered span: text without media, reasoning apart.

    position: of the message, in the body. answers, tool: of a result, the id of its call and the tool that was called.
    voice:    of one in a user's name, whose words it is. by: which element, file or client, where it is no person's.
    error:    of a result, whether the protocol says that it is one; None if that says nothing.
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
        """Return True for a person's words, False for what a client or a model has put there."""
        return self.role == "user" and self.voice == "person"


@dataclass(frozen=True, slots=True)
class Block:
    """One utterance, rendered. A span may be cut before it unless it continues a round."""

    text: str
    tokens: int
    cut_before: bool


def escape(text: str) -> str:
    """Make our own tags and those of chat templates harmless in somebody else's text, however they are spelled; without
    what cannot be seen."""
    if text.isascii() and text.isprintable() and "<" not in text and "[" not in text:  # as nearly every line
        return text
    return disarm(visible(text))


def disarm(text: str) -> str:
    """Make the same tags harmless, and leave all else of the text as it is."""
    return _mark_matches(_TAG, text)


def visible(text: str) -> str:
    """The text without what cannot be seen; lines end with \\n alone."""
    return _UNSEEN.sub(_seen_as, text)


def _seen_as(unseen: re.Match[str]) -> str:
    if unseen[0] == "\r\n":
        return "\n"
    return " " if unseen[0].isspace() else ""


def shorten(text: str, limit: int | None, left_out: int = 0) -> str:
    """Head (60 %) and tail (40 %) of a text of over `limit` characters, visibly marked; the text itself below.

    left_out: characters that are missing from its middle already.
    """
    if limit is None or len(text) <= limit:
        return text
    head = int(limit * HEAD_SHARE)
    tail = limit - head
    removed = len(text) - head - tail + left_out
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
    """Whose words they are: a person's, or which client's, tool's or file's that stand in the user's role."""
    if utterance.role != "user" or utterance.voice == "person":
        return utterance.role
    by = " ".join(utterance.by.split())[:_BY]
    return f"{_VOICES[utterance.voice]} ({by})" if by else _VOICES[utterance.voice]


def _quote_lines(text: str) -> str:
    """With a mark before lines that look like another utterance's."""
    return _mark_matches(_LABEL, text)


def _mark_matches(pattern: re.Pattern[str], text: str) -> str:
    """The text with something else in the place of every match in its folded form."""
    parts, end = [], 0
    for match in pattern.finditer(fold_lookalikes(text)):
        parts += [text[end : match.start()], _INSTEAD[match[0]]]
        end = match.end()
    return "".join([*parts, text[end:]])
