"""Tool calls of agents without a tool protocol.

Such an agent ends its message with a block of code, and the next user message is the output. These blocks become calls
and results, so that commands do not count as prose and outputs do not count as the user's words.
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

# Messages at the beginning of a conversation that decide. Later messages then never change how earlier ones are parsed.
OPENING = 24
_LEAST_PAIRS = 3
_MOST = 0.8
_FENCE = "```"
_UNNAMED = "run"
_NAME = re.compile(r"[\w.+-]{1,40}")
_TAG = re.compile(r"</([A-Za-z]\w{0,40})>\Z")
# Characters at the beginning of an output, and of its last line, which frame all outputs of a harness.
_BEGINNING = 8
_LAST_LINE = 80
_LEAST_FRAME = 3
_DIGITS = re.compile(r"\d+")


class _ClosingBlock(NamedTuple):
    """The block at the end of a text: the text before it, its name and its contents."""

    before: str
    name: str
    code: str


def has_tools_in_text(opening: Sequence[Utterance]) -> bool:
    """Return True if a conversation that begins with these utterances has its tool calls in text.

    Nearly all messages of the assistant must end with a call, or with a block followed by outputs with the same frame.
    People who are shown code do not begin or end every message with the same words.
    """
    if any(message.calls or message.answers is not None for message in opening):
        return False
    pairs = [
        (message, following)
        for message, following in pairwise(opening)
        if (message.role, following.role) == ("assistant", "user")
    ]
    if sum(closing_calls(message.text) is not None for message, _ in pairs) >= max(
        _LEAST_PAIRS, ceil(_MOST * len(pairs))
    ):
        return True
    outputs = [following.text for message, following in pairs if _block(message.text)]
    if len(outputs) < max(_LEAST_PAIRS, ceil(_MOST * len(pairs))):
        return False
    return _are_alike(text[:_BEGINNING] for text in outputs) or _are_alike(map(_last_line, outputs))


def as_tools(
    utterances: Sequence[Utterance], before: Utterance | None, after: Utterance | None = None
) -> list[Utterance]:
    """Return the utterances with calls in place of the blocks at their ends, and with results for the outputs.

    before: the utterance right before them: the first one may be its output.
    after: the utterance right after them, which is included if it is the output of the last call.
    """
    parsed: list[Utterance] = []
    call: ToolCall | None = None
    if before is not None:
        _, call = _call_in(before)
    for utterance in utterances:
        if utterance.role == "user" and call is not None:
            parsed.append(_as_result(utterance, call))
            call = None
        else:
            as_called, call = _call_in(utterance)
            parsed.append(as_called)
    if call is not None and utterances and after is not None and after.role == "user":
        parsed.append(_as_result(after, call))
    return parsed


def _as_result(utterance: Utterance, call: ToolCall) -> Utterance:
    return replace(utterance, text=without_label(utterance.text), role="tool", answers=call.id, tool=call.name)


def _call_in(utterance: Utterance) -> tuple[Utterance, ToolCall | None]:
    """Return the utterance with its calls parsed from its text, and the last call; unchanged if there is none."""
    if utterance.role == "assistant" and (closing := closing_calls(utterance.text)) is not None:
        calls = tuple(
            ToolCall(call.name, call.arguments, f"text:{utterance.position}" + (f".{number}" if number else ""))
            for number, call in enumerate(reversed(closing.calls))
        )[::-1]
        return replace(utterance, text=closing.before, calls=calls), calls[-1]
    block = _block(utterance.text) if utterance.role == "assistant" else None
    if block is None:
        return utterance, None
    call = ToolCall(block.name, block.code, f"text:{utterance.position}")
    return replace(utterance, text=block.before, calls=(call,)), call


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
    counts = Counter(_DIGITS.sub("0", frame).strip() for frame in frames)
    ((frame, times),) = counts.most_common(1)
    return len(frame) >= _LEAST_FRAME and times >= _MOST * counts.total()


def _last_line(text: str) -> str:
    return text.rstrip().rpartition("\n")[2][-_LAST_LINE:]
