"""Tool calls within the text of a response, and the beginnings of messages with their results.

SWE-agent, OpenHands and Qwen (`<function=NAME>` with `<parameter=NAME>`), Hermes (`<tool_call>` with JSON), Anthropic's
old format (`<invoke name="NAME">`), ReAct (`Action:` and `Action Input:`).
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from policies.authorship.arguments import UnreadError, read

_MOST_CALLS = 50
_CALL = re.compile(r"<function=(?P<function>[\w.:/-]{1,80})>|<invoke name=\"(?P<invoke>[\w.:/-]{1,80})\">|<tool_call>")
_PARAMETER = re.compile(r"<parameter(?:=(?P<function>[\w.-]{1,80})|\s{1,4}name=\"(?P<invoke>[\w.-]{1,80})\")>")
_ENDS = {"function": "</function>", "invoke": "</invoke>", None: "</tool_call>"}
_PARAMETER_END = "</parameter>"
# The end of such a text. The last tag may be missing, since servers stop at it.
_END = re.compile(
    r"</(?:function|parameter|invoke|tool_call|function_calls|tool_calls)>(?:\s{0,9}</(?:tool_call|function_calls"
    r"|tool_calls)>)?\s{0,99}\Z"
)
_ACTION = re.compile(r"\s{0,9}(?P<name>[\w .:/-]{1,80}?)[ \t]{0,9}\n\s{0,9}Action Input:(?P<given>[\s\S]*)\Z")
# The end of a text in protocols whose calls `closing_calls` does not parse.
_OTHER_END = re.compile(r"(?:</(?:execute_[a-z]{1,30}|tool_code|tool_use|function_call)>|<end_code>)\s{0,99}\Z")
# A block at the end of a text is a call only after a word with which an agent's protocol introduces it.
_BLOCK_END = re.compile(r"(?:```|</code>)\s{0,99}\Z")
_THOUGHT = re.compile(r"\s{0,9}(?:thought:|discussion[ \t]{0,3}:?[ \t]{0,3}\n)", re.IGNORECASE)
_BLOCK_LABEL = re.compile(r"(?:\A|\n)Action:\s{0,3}\Z")
_FENCE = "```"
# Characters at the end of a text that contain the tags.
_TAIL = 200
# "Output format:" and similar are a person's words. After the label only a number, a tool or a status may follow.
_RESULT = re.compile(
    r"\s{0,20}(?:observation|(?:tool |command |execution |function )?(?:result|output|response)s?)"
    r"(?: ?#?\d{1,6})?(?: (?:of|from) [^:\n]{1,60})?(?: ?[(\[][^:\n]{0,60}[)\]])?[ \t]{0,3}:",
    re.IGNORECASE,
)
_LABEL = re.compile(r"\s{0,20}observation:[ \t]{0,9}\n?", re.IGNORECASE)
_encode = msgspec.json.Encoder().encode


class TextCall(NamedTuple):
    """A call in a text. arguments: JSON, or a text."""

    name: str
    arguments: str


class ClosingCalls(NamedTuple):
    """The calls at the end of a text, and the text before them."""

    before: str
    calls: tuple[TextCall, ...]


def ends_with_call(text: str) -> bool:
    """Return True if a response ends like one that calls a tool in its text."""
    tail = text[-_TAIL:]
    if _END.search(tail) or _OTHER_END.search(tail) or "\nAction Input:" in text[-4_000:]:
        return True
    return _BLOCK_END.search(tail) is not None and (_THOUGHT.match(text) is not None or _is_labelled(text))


def _is_labelled(text: str) -> bool:
    """Return True if `Action:` introduces the block at the end of a text."""
    start = text.rfind(_FENCE, 0, text.rfind(_FENCE)) if _FENCE in text else 0
    return _BLOCK_LABEL.search(text[max(0, start - _TAIL) : start]) is not None


def begins_as_result(text: str) -> bool:
    """Return True if a text in the user role begins like the result of a call in text."""
    return _RESULT.match(text) is not None


def without_label(text: str) -> str:
    """Return a result without its introductory word."""
    label = _LABEL.match(text)
    return text[label.end() :] if label else text


def closing_calls(text: str) -> ClosingCalls | None:
    """Return the calls at the end of a response's text; None if there are none or one cannot be parsed."""
    if _END.search(text[-_TAIL:]) is None:
        return _closing_action(text)
    first_call = _CALL.search(text)
    calls = [*_calls_in(text, first_call.start())] if first_call else []
    if first_call is None or not calls:
        return None
    return ClosingCalls(text[: first_call.start()].removesuffix("<function_calls>\n").rstrip(), tuple(calls))


def _calls_in(text: str, at: int) -> Iterator[TextCall]:
    for _ in range(_MOST_CALLS):
        opening = _CALL.search(text, at)
        if opening is None:
            return
        end = text.find(_ENDS[opening.lastgroup], opening.end())
        end = len(text) if end < 0 else end
        inner = text[opening.end() : end]
        if (name := opening["function"] or opening["invoke"]) is not None:
            yield TextCall(name, _json_arguments(inner) or _encode(dict(_parameters(inner))).decode())
        elif (call := _json_call(inner)) is not None:
            yield call
        elif _CALL.search(inner):  # Qwen nests the other form in this element
            end = opening.end()
        at = end


def _parameters(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while (opening := _PARAMETER.search(text, at)) is not None:
        end = text.find(_PARAMETER_END, opening.end())
        at = len(text) if end < 0 else end
        value = text[opening.end() : at]
        yield opening["function"] or opening["invoke"], value.removeprefix("\n").removesuffix("\n")


def _json_arguments(text: str) -> str | None:
    """Return the arguments of an element with a JSON object; None for any other element."""
    try:
        return text.strip() if isinstance(read(text.strip()), dict) else None
    except UnreadError:
        return None


def _json_call(text: str) -> TextCall | None:
    try:
        call = read(text.strip())
    except UnreadError:
        return None
    if not isinstance(call, dict) or not isinstance(name := call.get("name"), str):
        return None
    arguments = call.get("arguments", call.get("parameters", {}))
    return TextCall(name, arguments if isinstance(arguments, str) else _encode(arguments).decode())


def _closing_action(text: str) -> ClosingCalls | None:
    start = text.rfind("Action:")
    action = _ACTION.match(text, start + len("Action:")) if start >= 0 else None
    if action is None or (start and text[start - 1] != "\n"):
        return None
    arguments = (
        action["given"]
        .partition("\nObservation:")[0]
        .strip()
        .removeprefix("```json")
        .removeprefix("```")
        .removesuffix("```")
        .strip()
    )
    return ClosingCalls(text[:start].rstrip(), (TextCall(action["name"].strip(), arguments),))
