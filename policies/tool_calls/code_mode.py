"""Tool calls inside a script: codex's code mode runs all tools in JavaScript, `tools.exec_command({cmd: "ls"})`.

A small reader of literals, not an interpreter. It reads calls that certainly run and have literal arguments: strings,
templates, objects, lists, and constants with such values. A function of the script is read at each call with its
literal arguments. Everything else is ignored.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from policies.authorship.arguments import UnreadError, read
from policies.conversation.transcript import ToolCall
from policies.memo import memoize
from policies.tool_calls.javascript import Token, tokens_of
from policies.vocabulary import arguments_of_sort

_MOST_CHARACTERS = 200_000
_REMEMBERED = 1_000_000
_MOST_CALLS = 50
_MOST_NESTED = 20
_MOST_SKIPPED = 200
# Limits for functions, which are read at each call: the calls, their nesting, and the tokens in all.
_MOST_RUNS = 50
_DEEPEST_RUN = 3
_MOST_RUN_TOKENS = 20_000
_SCRIPT_KEYS = arguments_of_sort("script")
_SCRIPT = re.compile(r"\btools\s{0,4}[.\[]|\A\s{0,99}(?:text|notify|store|exit)\(|\bALL_TOOLS\b")
# The header before the output of a script.
_HEADER = re.compile(
    r"\s{0,9}Script (completed|failed|running|terminated|yielded)\b[^\n]{0,200}(?:\n|\Z)"
    r"(?:Wall time[^\n]{0,80}(?:\n|\Z))?(?:Output:\s{0,9})?",
    re.IGNORECASE,
)
_encode = msgspec.json.Encoder().encode
_WORDS: Mapping[str, object] = {"true": True, "false": False, "null": None, "undefined": None}
# Code after one of these may not run, or may run several times.
_CONDITIONS = frozenset({"if", "for", "while", "switch", "catch", "with"})
_CONDITIONAL = _CONDITIONS | {"else", "do", "case", "default", "function", "class"}
_CONDITIONAL_SIGNS = frozenset({"=>", "&&", "||", "??", "?", "?.", "&&=", "||=", "??="})
_ENDING = frozenset({"return", "throw", "exit", "break", "continue"})
_ASSIGNING = frozenset({"=", "+=", "-=", "*=", "/=", "%=", "++", "--", "&&=", "||=", "??="})
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_DECLARING = frozenset({"const", "let", "var"})
_ENDS_STATEMENT = (";", "\n", "")
# Members that do not change a list.
_UNCHANGING = frozenset({"join", "length"})
_TRIMMING = {"trim": str.strip, "trimStart": str.lstrip, "trimEnd": str.rstrip}
# A statement continues after or before one of these.
_CONTINUING = frozenset({".", "?.", "+", ",", "=", "await", "=>", "||", "&&", "??", "?", ":"})
# Words allowed before a function that is called in place.
_BEFORE_CALLED = frozenset({"await", "return", "void"})
# Optional arguments. Without them a call is still understood.
_OPTIONAL_ARGUMENTS = frozenset(
    [
        *("workdir", "yield_time_ms", "max_output_tokens", "timeout_ms", "timeout", "login", "shell", "tty"),
        *("justification", "sandbox_permissions", "prefix_rule", "with_escalated_permissions", "explanation"),
    ]
)


class ScriptCall(NamedTuple):
    """A call of a tool in a script. arguments: an object or a text."""

    name: str
    arguments: object


class _UnreadValueError(Exception):
    """The value is not a literal."""


class _Function(NamedTuple):
    """A function of a script: its parameters and the range of its body's tokens."""

    parameters: tuple[str, ...]
    start: int
    end: int


class _Bounds:
    """The limits that all readers of one script share."""

    def __init__(self) -> None:
        """Start with the full limits."""
        # Characters that constants may still add. A few lines can double a text many times.
        self.room = 2 * _MOST_CHARACTERS
        self.runs = _MOST_RUNS
        self.tokens = _MOST_RUN_TOKENS

    def take(self, characters: int) -> None:
        """Use up characters. Raises _UnreadValueError if none are left."""
        self.room -= characters
        if self.room < 0:
            raise _UnreadValueError


class ScriptResult(NamedTuple):
    """The state of a script (`completed`, `failed`, `running`, or empty if unknown) and its output."""

    state: str
    output: str


def script_in(name: str, arguments: str) -> str | None:
    """Return the code-mode script that a call runs; None for any other call."""
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
    """Return the tool calls that a script certainly makes, in order."""
    tokens = [*tokens_of(code[:_MOST_CHARACTERS])]
    return tuple(_ScriptReader(tokens, _Names(tokens), _Bounds()).read(0, len(tokens)))


def inner_calls(call: ToolCall) -> tuple[ToolCall, ...]:
    """Return the calls in the script of a call; empty if there is no script or no readable call."""
    code = script_in(call.name, call.arguments)
    if code is None:
        return ()
    return tuple(
        ToolCall(
            script_call.name,
            script_call.arguments
            if isinstance(script_call.arguments, str)
            else _encode(script_call.arguments).decode(),
            call.id,
        )
        for script_call in calls_in_script(code)
    )


def answered_call(call: ToolCall) -> ToolCall:
    """Return the call to which the result of this call belongs: the only call of its script, else itself."""
    inner = inner_calls(call)
    return inner[0] if len(inner) == 1 else call


def script_result(text: str) -> ScriptResult:
    """Return the state and output of a script from its result."""
    header = _HEADER.match(text)
    if header is None:
        return ScriptResult("", text)
    return ScriptResult(header[1].lower(), text[header.end() :])


def printed_text(text: str) -> str:
    """Return a result as its tools printed it, without the header of a script and without JSON around outputs."""
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


class _Names:
    """The names of a script: how often each is assigned, which values may change, and the functions."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        """Collect the names in these tokens."""
        self._tokens = tokens
        self.closing = _closing_brackets(tokens)
        self.assigned = _times_assigned(tokens)
        self.changed = _changed_names(tokens)
        functions = [*self._functions()]
        names = [name for name, _ in functions]
        self.functions = (
            {name: function for name, function in functions if names.count(name) == 1} if len(functions) < 50 else {}
        )

    def _functions(self) -> Iterator[tuple[str, _Function]]:
        for at, token in enumerate(self._tokens):
            if token.kind != "name":
                continue
            name = self._at(at + 1)
            if token.text == "function" and name.kind == "name" and not self.assigned.get(name.text):
                function = self._function_with_parameters(at + 2, is_arrow=False)
            elif token.text in _DECLARING and self._at(at + 2).text == "=" and self.assigned.get(name.text) == 1:
                function = self.function_at(at + 3)
            else:
                continue
            if function is not None:
                yield name.text, function

    def function_at(self, at: int) -> _Function | None:
        """Return the anonymous function at a token, or None."""
        at += self._at(at).text == "async"
        if self._at(at).text == "function":
            return self._function_with_parameters(at + 1, is_arrow=False)
        return self._function_with_parameters(at, is_arrow=True)

    def _function_with_parameters(self, at: int, *, is_arrow: bool) -> _Function | None:
        if self._at(at).kind == "name" and is_arrow:
            parameters, at = [self._at(at)], at + 1
        elif self._at(at).text == "(" and at in self.closing and self.closing[at] - at < _MOST_SKIPPED:
            inner, at = self._tokens[at + 1 : self.closing[at]], self.closing[at] + 1
            parameters = [parameter for parameter in inner if parameter.text != "," and parameter.kind != "newline"]
        else:
            return None
        if any(parameter.kind != "name" for parameter in parameters) or (is_arrow and self._at(at).text != "=>"):
            return None
        at += is_arrow
        names = tuple(parameter.text for parameter in parameters)
        if self._at(at).text == "{":
            return _Function(names, at + 1, self.closing[at]) if at in self.closing else None
        return _Function(names, at, self._end_of_expression(at)) if is_arrow else None

    def _end_of_expression(self, at: int) -> int:
        end = at
        while end < len(self._tokens) and end - at < _MOST_SKIPPED:
            token = self._tokens[end]
            if (
                token.kind == "newline"
                and end > at
                and not {self._at(end - 1).text, self._at(end + 1).text} & _CONTINUING
            ):
                return end
            if token.kind == "sign" and token.text in (";", ",", ")", "]", "}"):
                return end
            end = self.closing.get(end, end) + 1
        return end if end - at < _MOST_SKIPPED else at

    def _at(self, at: int) -> Token:
        return self._tokens[at] if at < len(self._tokens) else Token("newline", "")


class _ScriptReader:
    """Reads the tokens of a script, or of a function in it, once."""

    def __init__(
        self, tokens: Sequence[Token], names: _Names, bounds: _Bounds, running: tuple[_Function, ...] = ()
    ) -> None:
        """Create a reader. running: the functions in whose calls it reads."""
        self._tokens = tokens
        self._names = names
        self._bounds = bounds
        self._running = running
        self._constants: dict[str, tuple[object, int]] = {}
        # Names of the object that contains the tools, and of single tools.
        self._tools = {"tools"}
        self._aliases: dict[str, str] = {}
        # The open brackets: the sign of each, and whether its content may not run.
        self._open: list[tuple[str, bool]] = []
        self._is_conditional = False
        self._is_condition = False
        # The number of open brackets at a `return` that certainly runs.
        self._returns: int | None = None

    def read(self, at: int, end: int) -> list[ScriptCall]:
        """Return the calls in the tokens from `at` to `end`."""
        calls_read: list[ScriptCall] = []
        previous = Token("newline", "\n")
        while at < end and len(calls_read) < _MOST_CALLS:
            token = self._tokens[at]
            if self._has_returned(at, previous):
                break
            following = at + 1
            if token.kind == "name" and not self._may_not_run():
                if token.text == "return" and all(sign == "{" for sign, _ in self._open):
                    self._returns = len(self._open)
                elif token.text in _ENDING and token.text != "return" and not self._open:
                    break
                if token.text in _DECLARING:
                    self._bind(at)
                elif previous.text not in (".", "function", "?."):
                    calls_read += self._calls(at)
            elif token.text == "(" and not self._may_not_run() and (call_in_place := self._call_in_place(at, previous)):
                calls, following = call_in_place
                calls_read += calls
                token = self._tokens[following - 1]
            if following == at + 1:
                self._track(token, previous)
            previous = token if token.kind != "newline" else previous
            at = following
        return calls_read[:_MOST_CALLS]

    def _has_returned(self, at: int, previous: Token) -> bool:
        """Return True if the statement of a `return` has ended here."""
        if self._returns is None or len(self._open) > self._returns:
            return False
        token = self._tokens[at]
        if token.kind == "newline":
            return previous.text not in _CONTINUING and self._text(self._skip(at)) not in _CONTINUING
        return token.kind == "sign" and token.text in (";", "}")

    def _calls(self, at: int) -> Sequence[ScriptCall]:
        """Return the tool calls that the name at a token certainly makes, by itself or as a function of the script."""
        name = self._text(at)
        if name in self._tools:
            call = self._call(at)
        elif name in self._aliases and self._text(at + 1) == "(":
            call = self._call_with(self._aliases[name], at + 1)
        elif name in self._names.functions and self._text(at + 1) == "(":
            return self._run(self._names.functions[name], at + 1)
        else:
            return ()
        return [call] if call is not None else ()

    def _run(self, function: _Function, at: int) -> Sequence[ScriptCall]:
        """Return the calls of a function called with the arguments at a bracket."""
        size = function.end - function.start
        self._bounds.runs -= 1
        self._bounds.tokens -= size
        if (
            len(self._running) >= _DEEPEST_RUN
            or function in self._running
            or self._bounds.runs < 0
            or self._bounds.tokens < 0
        ):
            return ()
        reader = _ScriptReader(self._tokens, self._names, self._bounds, (*self._running, function))
        arguments = dict(zip(function.parameters, self._literals(at + 1), strict=False))
        is_own = {name: name not in function.parameters for name in (*self._constants, *self._aliases, *self._tools)}
        reader._constants = {name: value for name, value in self._constants.items() if is_own[name]} | {
            name: value for name, value in arguments.items() if value is not None and not self._names.assigned.get(name)
        }
        reader._aliases = {name: tool for name, tool in self._aliases.items() if is_own[name]}
        reader._tools = {name for name in self._tools if is_own[name]}
        return reader.read(function.start, function.end)

    def _literals(self, at: int) -> Iterator[tuple[object, int] | None]:
        """Yield the arguments of a call up to the first that is not a literal."""
        while self._text(at := self._skip(at)) not in (")", ""):
            try:
                value, end = self._value(at, 0)
                at = self._skip_comma(end, ")")
            except _UnreadValueError:
                return
            yield (value, _size(value))

    def _call_in_place(self, at: int, previous: Token) -> tuple[Sequence[ScriptCall], int] | None:
        """Return the calls of `(async () => {...})()` at a token and the position after it; None if there is none."""
        is_call = previous.kind == "name" and previous.text not in _BEFORE_CALLED
        if is_call or previous.text in (")", "]") or previous.kind in ("string", "template", "number"):
            return None
        function = self._names.function_at(self._skip(at + 1))
        if function is None or self._text(function.end) != "}":
            return None
        called = self._skip(self._skip(function.end + 1) + 1)
        if self._names.closing.get(at) != self._skip(function.end + 1) or self._text(called) != "(":
            return None
        return self._run(function, called), self._names.closing.get(called, called) + 1

    def _may_not_run(self) -> bool:
        return self._is_conditional or (bool(self._open) and self._open[-1][1])

    def _track(self, token: Token, previous: Token) -> None:
        """Track the open brackets, and whether the next code may not run."""
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
                is_method = text == "{" and previous.text == ")"
                self._open.append((text, self._may_not_run() or is_method))
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
        """Store the value of a constant: a literal, the tools object, or one of the tools."""
        if self._open_parenthesis():
            return
        if self._text(at + 1) == "{":
            self._bind_members(at + 2)
            return
        at += 1
        for _ in range(_MOST_SKIPPED):
            name, at = self._text(at), at + 2
            if self._text(at - 1) != "=" or self._names.assigned.get(name) != 1:
                return
            if self._text(at) in self._tools:
                at = self._bind_tool(name, at)
            else:
                try:
                    value, at = self._value(at, 0)
                except _UnreadValueError:
                    return
                is_kept = isinstance(value, str) or name not in self._names.changed
                if is_kept and self._text(at) in (*_ENDS_STATEMENT, ","):
                    self._constants[name] = (value, _size(value))
            if self._text(at) != ",":
                return
            at = self._skip(at + 1)

    def _bind_tool(self, name: str, at: int) -> int:
        """Store `const name = tools`, or `= tools.f`. Return the position after it."""
        if self._text(at + 1) in (*_ENDS_STATEMENT, ","):
            self._tools.add(name)
            return at + 1
        if self._text(at + 1) == "." and self._text(at + 3) in (*_ENDS_STATEMENT, ","):
            self._aliases[name] = self._text(at + 2)
            return at + 3
        return at

    def _bind_members(self, at: int) -> None:
        """Store `const {f, g: name} = tools`."""
        tools_by_name: dict[str, str] = {}
        for _ in range(_MOST_SKIPPED):
            at = self._skip(at)
            if self._text(at) == "}":
                break
            if self._kind(at) != "name":
                return
            tool = name = self._text(at)
            at = self._skip(at + 1)
            if self._text(at) == ":":
                name, at = self._text(at + 1), self._skip(at + 2)
            tools_by_name[name] = tool
            at += self._text(at) == ","
        if self._text(at + 1) == "=" and self._text(at + 2) in self._tools and self._text(at + 3) in _ENDS_STATEMENT:
            self._aliases |= {name: tool for name, tool in tools_by_name.items() if not self._names.assigned.get(name)}

    def _call(self, at: int) -> ScriptCall | None:
        """Return the tool call at a token; None if there is none or its arguments are not literals."""
        dot = self._skip(at + 1)
        if self._text(dot) == "." and self._kind(dot + 1) == "name":
            return self._call_with(self._text(dot + 1), dot + 2)
        if self._text(at + 1) == "[" and self._kind(at + 2) == "string" and self._text(at + 3) == "]":
            return self._call_with(self._tokens[at + 2].value or "", at + 4)
        return None

    def _call_with(self, name: str, at: int) -> ScriptCall | None:
        """Return the call of a tool with the arguments at a bracket; None if they are not literals."""
        if self._text(at) != "(":
            return None
        try:
            arguments, end = ({}, at + 1) if self._text(at + 1) == ")" else self._value(self._skip(at + 1), 0)
        except _UnreadValueError:
            return None
        end = self._skip(end)
        is_whole = self._text(end) == ")" or (self._text(end) == "," and self._text(self._skip(end + 1)) == ")")
        return ScriptCall(name, arguments) if is_whole and isinstance(arguments, (dict, str)) else None

    def _value(self, at: int, depth: int) -> tuple[object, int]:
        """Return the literal at a token and the position after it. Raises _UnreadValueError."""
        value, at = self._operand(self._skip(at), depth)
        while self._text(after := self._skip(at)) == "+" and isinstance(value, str):
            operand, at = self._operand(self._skip(after + 1), depth)
            if not isinstance(operand, str):
                raise _UnreadValueError
            value += operand
        return value, at

    def _operand(self, at: int, depth: int) -> tuple[object, int]:
        if depth > _MOST_NESTED:
            raise _UnreadValueError
        value, at = self._literal(at, depth)
        while self._text(dot := self._skip(at)) == ".":
            value, at = self._after_method(value, dot)
        return value, at

    def _literal(self, at: int, depth: int) -> tuple[object, int]:
        kind, text = self._kind(at), self._text(at)
        if kind in ("string", "template"):
            return self._tokens[at].value, at + 1
        if kind == "head":
            return self._template(at, depth)
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
        if kind == "name" and text in self._constants and self._text(at + 1) not in ("[", "(", "?."):
            value, size = self._constants[text]
            self._bounds.take(size)
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
            at = self._skip_comma(at, "]")
        return values, at + 1

    def _template(self, at: int, depth: int) -> tuple[str, int]:
        """Return the text of a template whose substitutions are literals."""
        parts = [self._tokens[at].value or ""]
        while self._kind(at) != "tail":
            value, at = self._value(at + 1, depth + 1)
            at = self._skip(at)
            if not isinstance(value, (str, int)) or isinstance(value, bool) or self._kind(at) not in ("middle", "tail"):
                raise _UnreadValueError
            parts += [str(value), self._tokens[at].value or ""]
        return "".join(parts), at + 1

    def _after_method(self, value: object, dot: int) -> tuple[object, int]:
        """Apply `.trim()` or `.join(...)` to a literal. Raises _UnreadValueError for other members."""
        name = self._text(dot + 1)
        if self._text(dot + 2) != "(":
            raise _UnreadValueError
        if isinstance(value, str) and name in _TRIMMING and self._text(dot + 3) == ")":
            return _TRIMMING[name](value), dot + 4
        texts = [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
        is_join = isinstance(value, list) and len(texts) == len(value) and name == "join"
        if not is_join or self._kind(dot + 3) not in ("string", "template") or self._text(dot + 4) != ")":
            raise _UnreadValueError
        separator = self._tokens[dot + 3].value or ""
        self._bounds.take(len(separator) * len(texts))
        return separator.join(texts), dot + 5

    def _object(self, at: int, depth: int) -> tuple[object, int]:
        values: dict[str, object] = {}
        while self._text(at := self._skip(at)) != "}":
            if self._text(at) == "...":
                base, at = self._operand(at + 1, depth + 1)
                if not isinstance(base, dict):
                    raise _UnreadValueError
                values |= base
                at = self._skip_comma(at, "}")
                continue
            if self._kind(at) not in ("name", "string", "number"):
                raise _UnreadValueError
            name, after = self._tokens[at].value or self._text(at), self._skip(at + 1)
            try:
                value, at = self._value(after + 1, depth + 1) if self._text(after) == ":" else self._operand(at, depth)
                values[name] = value
                at = self._skip_comma(at, "}")
            except _UnreadValueError:
                if depth or name not in _OPTIONAL_ARGUMENTS:
                    raise
                values.pop(name, None)
                at = self._skip_comma(self._end_of_member(after), "}")
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

    def _skip_comma(self, at: int, closing: str) -> int:
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
    """Return how often each name is assigned."""
    times: dict[str, int] = {}
    for token, following in pairwise(tokens):
        if token.kind == "name" and following.kind == "sign" and following.text in _ASSIGNING:
            times[token.text] = times.get(token.text, 0) + 1
    return times


def _changed_names(tokens: Sequence[Token]) -> Collection[str]:
    """Return the names of objects and lists that may change: all that are not only spread, joined or passed."""
    texts = ["", "", "", "", *(token.text for token in tokens if token.kind != "newline"), "", ""]
    changed: set[str] = set()
    for at in range(4, len(texts) - 2):
        previous, name, following = texts[at - 1], texts[at], texts[at + 1]
        if previous in (".", "...", ":", "const", "let", "var") or following in (":", "="):
            continue
        if following == "." and texts[at + 2] in _UNCHANGING:
            continue
        if previous == "(" and texts[at - 3] == "." and texts[at - 4] == "tools":
            continue
        changed.add(name)
    return changed


def _closing_brackets(tokens: Sequence[Token]) -> dict[int, int]:
    """Return the position of the closing bracket for each opening one."""
    closing: dict[int, int] = {}
    opened: list[int] = []
    for at, token in enumerate(tokens):
        if token.kind != "sign":
            continue
        if token.text in _CLOSING:
            opened.append(at)
        elif token.text in (")", "]", "}") and opened and _CLOSING[tokens[opened[-1]].text] == token.text:
            closing[opened.pop()] = at
    return closing


def _size(value: object) -> int:
    """Return an estimate of the characters of a literal."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(name) + _size(each) for name, each in value.items()) + 1
    return sum(map(_size, value)) + 1 if isinstance(value, list) else 1
