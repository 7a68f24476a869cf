"""Agents without tool calls: a block of code ends what the assistant says, and the next user message is its output.

Read as text alone, their commands are prose and every output is the user's word. Here they become calls and results.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil
from typing import NamedTuple

from policies.authorship.text_calls import closing_calls, without_label
from policies.conversation.transcript import ToolCall, Utterance

# Of a conversation's first messages, so that what comes later never changes how the others were read.
OPENING = 24
_LEAST_PAIRS = 3
_MOST = 0.8
_FENCE = "```"
_UNNAMED = "run"
_NAME = re.compile(r"[\w.+-]{1,40}")
_TAG = re.compile(r"</([A-Za-z]\w{0,40})>\Z")
# Of an output, its beginning and its last line: what frames all outputs of a harness.
_BEGINNING = 8
_LAST_LINE = 80
_LEAST_FRAME = 3
_DIGITS = re.compile(r"\d+")


class _ClosingBlock(NamedTuple):
    """The block that ends a text: what is said before it, how it is named, and what it holds."""

    before: str
    name: str
    code: str


def has_tools_in_text(opening: Sequence[Utterance]) -> bool:
    """Whether a conversation that begins so has its tools in text.

    Nearly all of the assistant's messages end with a call, or with a block where what follows is framed alike: people
    who are shown code do not begin or end every message with the same words.
    """
    if any(said.calls or said.answers is not None for said in opening):
        return False
    pairs = [(said, then) for said, then in pairwise(opening) if (said.role, then.role) == ("assistant", "user")]
    if sum(closing_calls(said.text) is not None for said, _ in pairs) >= max(_LEAST_PAIRS, ceil(_MOST * len(pairs))):
        return True
    outputs = [then.text for said, then in pairs if _block(said.text)]
    if len(outputs) < max(_LEAST_PAIRS, ceil(_MOST * len(pairs))):
        return False
    return _are_alike(text[:_BEGINNING] for text in outputs) or _are_alike(map(_last_line, outputs))


def as_tools(said: Sequence[Utterance], before: Utterance | None, after: Utterance | None = None) -> list[Utterance]:
    """The utterances with calls in the place of the blocks that end them, and with results in that of what follows.

    before: the utterance right before them, since the first may be its output. after: the one right behind them; where
    it is the output of the last call, it is read with them.
    """
    read: list[Utterance] = []
    call: ToolCall | None = None
    if before is not None:
        _, call = _call_in(before)
    for utterance in said:
        if utterance.role == "user" and call is not None:
            read.append(_as_result(utterance, call))
            call = None
        else:
            as_called, call = _call_in(utterance)
            read.append(as_called)
    if call is not None and said and after is not None and after.role == "user":
        read.append(_as_result(after, call))
    return read


def _as_result(said: Utterance, call: ToolCall) -> Utterance:
    return replace(said, text=without_label(said.text), role="tool", answers=call.id, tool=call.name)


def _call_in(said: Utterance) -> tuple[Utterance, ToolCall | None]:
    """Return the utterance with calls in the place of those in its text, and the last of them. As it is without any."""
    if said.role == "assistant" and (closing := closing_calls(said.text)) is not None:
        calls = tuple(
            ToolCall(call.name, call.arguments, f"text:{said.position}" + (f".{number}" if number else ""))
            for number, call in enumerate(reversed(closing.calls))
        )[::-1]
        return replace(said, text=closing.before, calls=calls), calls[-1]
    block = _block(said.text) if said.role == "assistant" else None
    if block is None:
        return said, None
    call = ToolCall(block.name, block.code, f"text:{said.position}")
    return replace(said, text=block.before, calls=(call,)), call


def _block(text: str) -> _ClosingBlock | None:
    text = text.rstrip()
    tag = _TAG.search(text)
    if tag and (start := text.rfind(f"<{tag[1]}>")) >= 0:
        return _ClosingBlock(text[:start].rstrip(), tag[1], text[start + len(tag[1]) + 2 : tag.start()].strip())
    text = text.removesuffix("<end_code>").rstrip()
    if not text.endswith(_FENCE):
        return None
    before, fence, inside = text.removesuffix(_FENCE).rpartition(_FENCE)
    name, newline, code = inside.partition("\n")
    if not (fence and newline and code.strip()):
        return None
    return _ClosingBlock(before.rstrip(), name.strip() if _NAME.fullmatch(name.strip()) else _UNNAMED, code.strip())


def _are_alike(frames: Iterable[str]) -> bool:
    seen = Counter(_DIGITS.sub("0", frame).strip() for frame in frames)
    ((frame, times),) = seen.most_common(1)
    return len(frame) >= _LEAST_FRAME and times >= _MOST * seen.total()


def _last_line(text: str) -> str:
    return text.rstrip().rpartition("\n")[2][-_LAST_LINE:]
