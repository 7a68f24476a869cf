"""Lossless shortening of results: repetitions are stated once (docs/memory.md, "What a result says twice").

There are three forms. A result that repeats an earlier one becomes a line that names that call. JSON loses its
whitespace outside of strings but is never parsed and written again: 1.0, 1e3, large integers and duplicate keys stay.
Terminal output loses escapes and overwritten lines. Texts of files stay unchanged because edits quote them.
"""

import re
from collections.abc import Iterable, Sequence

import msgspec

from policies.authorship.arguments import path_of
from policies.conversation.transcript import ToolCall, shorten
from policies.pointers import Exchange, changes_path, normalized
from policies.settings import ShortenSettings
from policies.tool_calls.calls import Done, Judge, judge_call
from policies.tool_calls.tools import reads_file, shows_text

LEAST_REPEAT = 100
"""Minimum tokens of a repeated result that becomes a line."""
# Minimum characters that a form must save.
_LEAST_SAVED = 40
_SHOWN = 200
# Maximum calls between two equal results. With more between them, the second stays.
MOST_BETWEEN = 400
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|[ \t\r\n]++', re.DOTALL)
# Colors and cursor movements, window titles, and other sequences. None of them is shown.
_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|[\]PX^_][^\x07\x1b]{0,2000}(?:\x07|\x1b\\)|[ -/]{0,4}[0-OQ-WYZ\\`-~])"
)
# An escape that erases the line.
_ERASES = re.compile(r"\x1b\[[0-2]?K")


def compacted(exchange: Exchange, text: str, settings: ShortenSettings, judge: Judge = judge_call) -> str | None:
    """Return the text of a call's result in fewer characters; None if it stays unchanged."""
    is_json = settings.json_ and text.lstrip(" \t\r\n")[:1] in ("{", "[")
    is_terminal = settings.terminal and ("\x1b" in text or "\r" in text)
    if not (is_json or is_terminal) or _is_of_file(exchange, judge):
        return None
    short = _without_whitespace(text) if is_json else text
    short = _as_terminal_shows(short) if is_terminal and short == text else short
    return short if len(text) - len(short) >= _LEAST_SAVED else None


def is_repeat(exchange: Exchange, between: Iterable[Exchange], judge: Judge = judge_call) -> bool:
    """Return True if a result repeats an earlier one, of an equal call and with an equal text.

    between: the calls between the two. If one of them changed the file, or any file if this call reads none, the equal
    result is new information.
    """
    judged_calls = _done(exchange, judge)
    if any(done.outcome.result == "failed" for done in judged_calls):
        return False
    paths = [path_of(done.arguments) if _reads(done) else None for done in judged_calls]
    names = [normalized(path) for path in paths if path]
    return not any(
        any(changes_path(done, name) for name in names) if len(names) == len(judged_calls) else _changes_anything(done)
        for other in between
        for done in _done(other, judge)
    )


def repeat_text(call: ToolCall) -> str:
    """Return the line for a result that repeats that of an earlier equal call."""
    arguments = shorten(" ".join(call.arguments.split()), _SHOWN).replace("\n", " ")
    return (
        f"[the same result as that of the earlier call {call.name} {arguments}, byte for byte; "
        "the gateway left it out here, and sends it whole if the call is made again]"
    )


def _changes_anything(done: Done) -> bool:
    return done.outcome.result != "failed" and (bool(done.effects) or done.kind in ("change", "agent"))


def _is_of_file(exchange: Exchange, judge: Judge) -> bool:
    """Return True if a result shows the text of a file, which an edit may have to quote."""
    return any(_reads(done) or shows_text(done.commands) for done in _done(exchange, judge))


def _done(exchange: Exchange, judge: Judge) -> Sequence[Done]:
    return judge(exchange.call, exchange.made, exchange.answer)


def _reads(done: Done) -> bool:
    return not done.commands and reads_file(done.words, done.arguments)


def _without_whitespace(text: str) -> str:
    """Return a text without whitespace outside of strings, if it is JSON."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return text
    return _TOKEN.sub(lambda match: match[0] if match[0][0] == '"' else "", text)


def _as_terminal_shows(text: str) -> str:
    """Return a text as a terminal finally shows it: without escapes and overwritten parts."""
    if "\r" in text:
        text = "\n".join(map(_line_as_terminal_shows, text.split("\n")))
    return _ESCAPE.sub("", text)


def _line_as_terminal_shows(line: str) -> str:
    """Return a line without the parts that later ones overwrite after a carriage return."""
    ending = "\r" if line.endswith("\r") else ""
    if "\r" not in line.removesuffix(ending):
        return line
    visible_parts: list[str] = []
    longest = 0
    for part in reversed(line.removesuffix(ending).split("\r")):
        shown = len(_ESCAPE.sub("", part))
        if shown > longest:
            visible_parts.append(part)
            longest = shown
        if _ERASES.match(part):
            break
    return "\r".join(reversed(visible_parts)) + ending
