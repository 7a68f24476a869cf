"""Tool calls inside a script: codex's code mode runs all tools in JavaScript, `tools.exec_command({cmd: "ls"})`.

A small reader of literals, no interpreter. It reads calls that run for certain and whose arguments are literals:
strings, templates without substitution, objects, lists, and constants that stand for a text. All else is left unread.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from policies.memo import memoize
from policies.transcript import ToolCall
from policies.voices.arguments import UnreadError, read
from policies.work.javascript import Token, tokens_of

_MOST_CHARACTERS = 200_000
_REMEMBERED = 1_000_000
_MOST_CALLS = 50
_MOST_NESTED = 20
_MOST_SKIPPED = 200
_SCRIPT_KEYS = ("input", "code", "script", "source")
_SCRIPT = re.compile(r"\btools\s{0,4}[.\[]|\A\s{0,99}(?:text|notify|store|exit)\(|\bALL_TOOLS\b")
# What stands before the output of a script.
_HEADER = re.compile(
    r"\s{0,9}Script (completed|failed|running|terminated|yielded)\b[^\n]{0,200}(?:\n|\Z)"
    r"(?:Wall time[^\n]{0,80}(?:\n|\Z))?(?:Output:\s{0,9})?",
    re.IGNORECASE,
)
_encode = msgspec.json.Encoder().encode
_WORDS: Mapping[str, object] = {"true": True, "false": False, "null": None, "undefined": None}
# What comes behind one of these may not run, or more than once.
_CONDITIONS = frozenset({"if", "for", "while", "switch", "catch", "with"})
_CONDITIONAL = _CONDITIONS | {"else", "do", "case", "default", "function", "class"}
_CONDITIONAL_SIGNS = frozenset({"=>", "&&", "||", "??", "?", "?.", "&&=", "||=", "??="})
_ENDING = frozenset({"return", "throw", "exit", "break", "continue"})
_ASSIGNING = frozenset({"=", "+=", "-=", "*=", "/=", "%=", "++", "--", "&&=", "||=", "??="})
_CLOSING = {"(": ")", "[": "]", "{": "}"}
# Arguments without which a call still says what it does.
_BESIDE = frozenset(
    [
        *("workdir", "yield_time_ms", "max_output_tokens", "timeout_ms", "timeout", "login", "shell", "tty"),
        *("justification", "sandbox_permissions", "prefix_rule", "with_escalated_permissions", "explanation"),
    ]
)


class ScriptCall(NamedTuple):
    """A call of a tool in a script, and what it was given: an object, or a text."""

    name: str
    arguments: object


class _UnreadValueError(Exception):
    """A value is not a literal."""


class ScriptResult(NamedTuple):
    """What a script ended with: `completed`, `failed`, `running`, or empty if the result does not say it."""

    state: str
    output: str


def script_in(name: str, arguments: str) -> str | None:
    """Return the script of code mode that a call runs; None for every other call."""
    if name.rpartition(".")[2] != "exec":
        return None
    code: object = arguments
    if arguments[:1] in ("{", '"'):
        try:
            code = read(arguments)
        except UnreadError:
            return None
    if isinstance(code, dict):
        code = next((code[key] for key in _SCRIPT_KEYS if key in code), None)
    return code if isinstance(code, str) and _SCRIPT.search(code) else None


@memoize(characters=_REMEMBERED)
def calls_in_script(code: str) -> tuple[ScriptCall, ...]:
    """Return the tool calls that a script makes for certain, in their order."""
    return tuple(_ScriptReader([*tokens_of(code[:_MOST_CHARACTERS])]).read())


def inner_calls(call: ToolCall) -> tuple[ToolCall, ...]:
    """Return the calls in the script that a call runs; nothing if it runs none, or none can be read."""
    code = script_in(call.name, call.arguments)
    if code is None:
        return ()
    return tuple(
        ToolCall(
            one.name, one.arguments if isinstance(one.arguments, str) else _encode(one.arguments).decode(), call.id
        )
        for one in calls_in_script(code)
    )


def answered_call(call: ToolCall) -> ToolCall:
    """Return the call whose result the result of this one is: the only call of its script, else itself."""
    inner = inner_calls(call)
    return inner[0] if len(inner) == 1 else call


def script_result(text: str) -> ScriptResult:
    """Return how a script ended, and what it printed."""
    header = _HEADER.match(text)
    if header is None:
        return ScriptResult("", text)
    return ScriptResult(header[1].lower(), text[header.end() :])


def printed_text(text: str) -> str:
    """Return a result as its tools printed it: of a script's, without its header, and outputs out of their JSON."""
    header = _HEADER.match(text)
    if header is None:
        return text
    return "\n".join(map(_printed_line, text[header.end() :].split("\n")))


def exit_codes(output: str) -> list[int]:
    """Return the exit codes of the results that a script printed as JSON."""
    results = (result for line in output.split("\n") if (result := _result_in(line)) is not None)
    return [code for result in results if isinstance(code := result.get("exit_code"), int)]


def _printed_line(line: str) -> str:
    result = _result_in(line)
    output = result.get("output") if result is not None else None
    return output if isinstance(output, str) else line


def _result_in(line: str) -> Mapping[str, object] | None:
    if not line.startswith("{") or '"output"' not in line:
        return None
    try:
        result = read(line)
    except UnreadError:
        return None
    return result if isinstance(result, dict) else None


class _ScriptReader:
    """Walks over the tokens of a script once."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._constants: dict[str, str] = {}
        # Characters that constants may still stand for: a few lines can double a text many times.
        self._room = 2 * _MOST_CHARACTERS
        self._assigned = _times_assigned(tokens)
        # Of every bracket that is open: its sign, and whether what stands in it may not run.
        self._open: list[tuple[str, bool]] = []
        self._is_conditional = False
        self._is_condition = False

    def read(self) -> list[ScriptCall]:
        found: list[ScriptCall] = []
        previous = Token("newline", "\n")
        at = 0
        while at < len(self._tokens) and len(found) < _MOST_CALLS:
            token = self._tokens[at]
            if token.kind == "name" and token.text in _ENDING and not self._may_not_run() and not self._open:
                break
            if token.text == "tools" and token.kind == "name" and previous.text != "." and not self._may_not_run():
                call = self._call(at)
                found += [call] if call is not None else []
            elif token.text in ("const", "let", "var") and token.kind == "name":
                self._bind(at)
            self._see(token, previous)
            previous = token if token.kind != "newline" else previous
            at += 1
        return found

    def _may_not_run(self) -> bool:
        return self._is_conditional or (bool(self._open) and self._open[-1][1])

    def _see(self, token: Token, previous: Token) -> None:
        """Follow the brackets and what may not run."""
        text = token.text
        if token.kind == "newline":
            ends_condition = previous.text in (")", "else", "do") and self._is_condition
            if not self._open_parenthesis() and not ends_condition and previous.text not in _CONDITIONAL_SIGNS:
                self._is_conditional = False
        elif token.kind == "name":
            self._is_conditional = self._is_conditional or text in _CONDITIONAL
            self._is_condition = text in _CONDITIONAL or (self._is_condition and bool(self._open_parenthesis()))
        elif token.kind == "sign":
            if text in _CLOSING:
                self._open.append((text, self._may_not_run()))
                self._is_conditional = self._is_conditional and text != "{"
            elif text in ")]}" and self._open:
                self._open.pop()
                self._is_conditional = self._is_conditional and text != "}"
            elif text == ";":
                self._is_conditional = self._is_conditional and self._open_parenthesis()
            elif text in _CONDITIONAL_SIGNS:
                self._is_conditional = True

    def _open_parenthesis(self) -> bool:
        return bool(self._open) and self._open[-1][0] != "{"

    def _bind(self, at: int) -> None:
        """Keep the literal that a constant stands for."""
        name, equals = self._text(at + 1), self._text(at + 2)
        if equals != "=" or self._assigned.get(name) != 1 or self._may_not_run():
            return
        try:
            value, end = self._value(at + 3, 0)
        except _UnreadValueError:
            return
        if isinstance(value, str) and self._text(end) in (";", "\n", "") and not self._open:
            self._constants[name] = value

    def _call(self, at: int) -> ScriptCall | None:
        """Return the tool call at a token; None if there is none, or if its arguments are not literals."""
        if self._text(at + 1) == "." and self._kind(at + 2) == "name":
            name, at = self._text(at + 2), at + 3
        elif self._text(at + 1) == "[" and self._kind(at + 2) == "string" and self._text(at + 3) == "]":
            name, at = self._tokens[at + 2].value or "", at + 4
        else:
            return None
        if self._text(at) != "(":
            return None
        try:
            given, end = ({}, at + 1) if self._text(at + 1) == ")" else self._value(self._skip(at + 1), 0)
        except _UnreadValueError:
            return None
        end = self._skip(end)
        is_whole = self._text(end) == ")" or (self._text(end) == "," and self._text(self._skip(end + 1)) == ")")
        return ScriptCall(name, given) if is_whole and isinstance(given, (dict, str)) else None

    def _value(self, at: int, depth: int) -> tuple[object, int]:
        """Return the literal at a token and the position behind it; raises _UnreadValueError."""
        value, at = self._operand(self._skip(at), depth)
        while self._text(after := self._skip(at)) == "+" and isinstance(value, str):
            other, at = self._operand(self._skip(after + 1), depth)
            if not isinstance(other, str):
                raise _UnreadValueError
            value += other
        return value, at

    def _operand(self, at: int, depth: int) -> tuple[object, int]:
        kind, text = self._kind(at), self._text(at)
        if depth > _MOST_NESTED:
            raise _UnreadValueError
        if kind in ("string", "template"):
            return self._tokens[at].value, at + 1
        if kind == "number":
            return _number(text), at + 1
        if text == "String" and [self._text(at + 1), self._text(at + 2), self._kind(at + 3)] == [
            ".",
            "raw",
            "template",
        ]:
            return self._text(at + 3), at + 4
        if kind == "name" and text in _WORDS:
            return _WORDS[text], at + 1
        if kind == "name" and text in self._constants and self._text(at + 1) not in (".", "[", "(", "?."):
            value = self._constants[text]
            self._room -= len(value)
            if self._room < 0:
                raise _UnreadValueError
            return value, at + 1
        if kind == "sign" and text == "[":
            return self._list(at + 1, depth)
        if kind == "sign" and text == "{":
            return self._object(at + 1, depth)
        raise _UnreadValueError

    def _list(self, at: int, depth: int) -> tuple[object, int]:
        values: list[object] = []
        while self._text(at := self._skip(at)) != "]":
            value, at = self._value(at, depth + 1)
            values.append(value)
            at = self._behind_comma(at, "]")
        texts = [value for value in values if isinstance(value, str)]
        joins = [self._text(at + 1), self._text(at + 2), self._text(at + 3), self._kind(at + 4), self._text(at + 5)]
        if joins == [".", "join", "(", "string", ")"] and len(texts) == len(values):
            separator = self._tokens[at + 4].value or ""
            self._room -= len(separator) * len(texts)
            if self._room < 0:
                raise _UnreadValueError
            return separator.join(texts), at + 6
        return values, at + 1

    def _object(self, at: int, depth: int) -> tuple[object, int]:
        values: dict[str, object] = {}
        while self._text(at := self._skip(at)) != "}":
            if self._kind(at) not in ("name", "string", "number"):
                raise _UnreadValueError
            name, after = self._tokens[at].value or self._text(at), self._skip(at + 1)
            try:
                value, at = self._value(after + 1, depth + 1) if self._text(after) == ":" else self._operand(at, depth)
                values[name] = value
                at = self._behind_comma(at, "}")
            except _UnreadValueError:
                if depth or name not in _BESIDE:
                    raise
                values.pop(name, None)
                at = self._behind_comma(self._end_of_member(after), "}")
        return values, at + 1

    def _end_of_member(self, at: int) -> int:
        """Return the position of the comma or closing bracket that ends a member's value."""
        depth = 0
        for end in range(at, min(at + _MOST_SKIPPED, len(self._tokens))):
            text = self._tokens[end].text if self._tokens[end].kind == "sign" else ""
            if depth == 0 and text in (",", "}"):
                return end
            depth += (text in _CLOSING) - (text in (")", "]", "}"))
        raise _UnreadValueError

    def _behind_comma(self, at: int, closing: str) -> int:
        at = self._skip(at)
        if self._text(at) == ",":
            return at + 1
        if self._text(at) != closing:
            raise _UnreadValueError
        return at

    def _skip(self, at: int) -> int:
        while at < len(self._tokens) and self._tokens[at].kind == "newline":
            at += 1
        return at

    def _text(self, at: int) -> str:
        return self._tokens[at].text if at < len(self._tokens) else ""

    def _kind(self, at: int) -> str:
        return self._tokens[at].kind if at < len(self._tokens) else ""


def _number(text: str) -> object:
    try:
        return int(text.replace("_", ""))
    except ValueError:
        return text


def _times_assigned(tokens: Sequence[Token]) -> dict[str, int]:
    """How often each name is given a value."""
    times: dict[str, int] = {}
    for token, following in pairwise(tokens):
        if token.kind == "name" and following.kind == "sign" and following.text in _ASSIGNING:
            times[token.text] = times.get(token.text, 0) + 1
    return times
