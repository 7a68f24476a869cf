"""Shell text as simple commands: words, redirections, input text and working directory.

A small reader of what agents write, not a shell. Values that only a run could determine (`$(…)`, unset variables) are
`UNKNOWN`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from posixpath import join, normpath

# Replaces in a word what only a run could determine.
UNKNOWN = "\0"
_MOST = 20_000
_MOST_COMMANDS = 200
_MOST_NESTED = 3

_PLAIN = re.compile(r"[^\s'\"\\;&|<>()`$#]{1,4000}")
_QUOTED = re.compile(r"[^\"\\$`]{1,4000}")
_NAME = re.compile(r"\$(?:\{(\w{1,60})\}|(\w{1,60}))")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w{0,60})=")
_REDIRECTION = re.compile(r"(\d{0,2})(&>>|&>|>>|>\||>&|<&|<>|<<<|<<-?|>|<)")
_OPERATOR = re.compile(r"&&|\|\||\|&|;;|[;&|\n()]")
_DELIMITER = re.compile(r"[ \t]{0,20}(?:'([^'\n]{1,80})'|\"([^\"\n]{1,80})\"|\\?([\w.+-]{1,80}))")
_DURATION = re.compile(r"\d{1,9}[smhd]?")
_BRACES = re.compile(r"([^{}]{0,400})\{([^{}]{1,400})\}([^{}]{0,400})")
_KEYWORDS = frozenset(
    {"then", "do", "else", "elif", "if", "while", "until", "!", "time", "{", "}", "fi", "done", "esac"}
)
_WRAPPERS = frozenset(
    {
        "sudo",
        "doas",
        "env",
        "command",
        "exec",
        "nohup",
        "nice",
        "timeout",
        "stdbuf",
        "setsid",
        "xargs",
        "builtin",
        "busybox",
    }
)
_WITH_VALUE = frozenset({"-u", "-n", "-o", "-e", "-i", "-k", "-s", "-I", "-L", "-P", "--user", "--signal"})
# The words that close a group, and the opening word of each. `else` continues the group of `then`.
_GROUP_ENDS = {"}": "{", "fi": "then", "elif": "then", "esac": "case"}
# Programs whose exit code is a reply: "no" is no failure.
_TESTS = frozenset(
    [
        *("test", "[", "[[", "grep", "egrep", "fgrep", "zgrep", "rg", "ag", "pgrep", "cmp", "diff", "which", "type"),
        *("hash", "findstr"),
    ]
)
_ASKING_GIT = frozenset({"--quiet", "--exit-code", "--is-ancestor", "--verify", "--error-unmatch", "--exists"})
_SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh", "fish"})


@dataclass(slots=True)
class Command:
    """A simple command.

    via: the programs that start it, such as nohup.
    fed: the text of its heredoc or here-string.
    background: True if `&` ends it.
    redirects: operators without their number, and their targets. `2>` keeps its number.
    is_conditional: True if it may not have run although the script succeeded. That is the case after `||`, after `&&`
    of a test, and in a branch of an `if` or a `case`. After a test at the end of a script it has run: a negative test
    would be the script's exit code.
    """

    words: tuple[str, ...] = ()
    redirects: list[tuple[str, str]] = field(default_factory=list)
    fed: str | None = None
    background: bool = False
    cwd: str = ""
    via: tuple[str, ...] = ()
    piped: bool = False
    is_conditional: bool = False

    @property
    def program(self) -> str:
        """Return its name without folders; empty for a redirection alone."""
        return self.words[0].replace("\\", "/").rpartition("/")[2] if self.words else ""

    def path(self, word: str) -> str | None:
        """Return the path that a word names, relative to the initial directory; None if it is no file or unknown."""
        if not word or UNKNOWN in word or word.startswith(("/dev/", "&")) or word in ("-", "NUL", "$null"):
            return None
        if self.cwd and not word.startswith(("/", "~")):
            return normpath(join(self.cwd, word))
        return word.removeprefix("./") or word


def commands_of(text: str, *, escapes: bool = True) -> list[Command]:
    """Return the simple commands of a text in order. Those of `sh -c` replace it.

    escapes: True if a backslash escapes, which is not the case in Windows shells.
    """
    return _expand_commands(_ShellReader(text[:_MOST], escapes=escapes).read(is_last=True), 0, escapes=escapes)


def _expand_commands(commands: list[Command], depth: int, *, escapes: bool) -> list[Command]:
    expanded: list[Command] = []
    for command in commands[:_MOST_COMMANDS]:
        inner = _script(command)
        is_last = command is commands[-1] and not command.background
        if inner is None or depth >= _MOST_NESTED:
            expanded.append(command)
            continue
        nested = _ShellReader(inner, cwd=command.cwd, escapes=escapes).read(is_last=is_last)
        for nested_command in nested:
            nested_command.via = (*command.via, *nested_command.via)
            nested_command.background |= command.background
            nested_command.is_conditional |= command.is_conditional
        expanded += _expand_commands(nested, depth + 1, escapes=escapes)
        if command.redirects:
            cwd = nested[0].cwd if nested else command.cwd
            expanded.append(Command((), command.redirects, cwd=cwd, is_conditional=command.is_conditional))
    return expanded


def _script(command: Command) -> str | None:
    """Return the script that `sh -c`, `eval` or a shell with a heredoc runs; None for any other command."""
    if command.program == "eval":
        return " ".join(command.words[1:])
    if command.program not in _SHELLS:
        return None
    for at, word in enumerate(command.words[1:], start=1):
        if word.startswith("-") and "c" in word and not word.startswith("--"):
            return command.words[at + 1] if at + 1 < len(command.words) else None
        if not word.startswith("-"):
            return None
    return command.fed


class _ShellReader:
    """Reads a text once, from its beginning to its end."""

    def __init__(self, text: str, cwd: str = "", *, escapes: bool = True) -> None:
        """Create a reader that starts in the directory `cwd`."""
        self._text, self._at, self._escapes = text, 0, escapes
        self._values: dict[str, str] = {}
        self._folders = [cwd]
        self._commands: list[Command] = []
        self._words: list[str] = []
        self._is_in_test = False
        self._substituted = 0
        self._command = Command(cwd=cwd)
        self._waiting: list[tuple[str, Command]] = []
        # True if the current command is an alternative (after `||`).
        self._is_alternative = False
        # True if the current command follows `&&` of a test. The tested commands may still end the text.
        self._is_tested = False
        self._tested: list[Command] = []
        self._groups: list[tuple[str, bool]] = []

    def read(self, *, is_last: bool) -> list[Command]:
        """Return the commands. is_last: True if the exit code of this text is that of the whole script."""
        text = self._text
        while self._at < len(text) and len(self._commands) < _MOST_COMMANDS:
            sign = text[self._at]
            if sign in " \t\r":
                self._at += 1
            elif sign == "\\" and text.startswith("\\\n", self._at):
                self._at += 2
            elif sign == "#":
                self._at = self._end_of_line()
            elif text.startswith(("<(", ">("), self._at):
                self._at += 1
                self._skip_parentheses()
                self._words.append(UNKNOWN)
            elif not self._is_in_test and (redirection := _REDIRECTION.match(text, self._at)):
                self._redirect(redirection)
            elif operator := _OPERATOR.match(text, self._at):
                self._operate(operator[0])
            else:
                self._add_word(self._word())
        self._end("")
        for command in self._tested if is_last else ():
            command.is_conditional = False
        return self._commands

    def _add_word(self, word: str) -> None:
        """Append a word to the command. `[[` begins a test, in which `<` and `>` compare, and `]]` ends it."""
        self._words.append(word)
        if word in ("[[", "]]"):
            self._is_in_test = word == "[["

    def _end_of_line(self) -> int:
        end = self._text.find("\n", self._at)
        return len(self._text) if end < 0 else end

    def _operate(self, operator: str) -> None:
        if self._text.startswith("((", self._at) and not self._words:
            self._skip_parentheses()
            self._is_tested = True
            return
        self._at += len(operator)
        if operator == "(":
            self._end("(")
            self._folders.append(self._folders[-1])
            self._open_group("(")
        else:
            self._end(operator)
            if operator == ")":
                if len(self._folders) > 1:
                    self._folders.pop()
                self._close_group("(")
        self._command.cwd = self._folders[-1]
        if operator == "\n":
            self._feed()

    def _skip_parentheses(self) -> None:
        """Move to the position after the parenthesis that closes the current one."""
        depth = 0
        for at in range(self._at, len(self._text)):
            depth += {"(": 1, ")": -1}.get(self._text[at], 0)
            if depth == 0:
                self._at = at + 1
                return
        self._at = len(self._text)

    def _redirect(self, match: re.Match[str]) -> None:
        self._at = match.end()
        number, operator = match.groups()
        if operator in ("<<", "<<-"):
            delimiter = _DELIMITER.match(self._text, self._at)
            if delimiter:
                self._at = delimiter.end()
                self._waiting.append((next(filter(None, delimiter.groups())), self._command))
            return
        while self._at < len(self._text) and self._text[self._at] in " \t":
            self._at += 1
        if self._at >= len(self._text) or self._text[self._at] in "\n;|&<>()":
            if self._text.startswith(("&1", "&2"), self._at):
                self._at += 2
            return
        target = self._word()
        if operator == "<<<":
            self._command.fed = target
        elif not (operator in (">&", "<&") and target.rstrip("-").isdigit()):
            self._command.redirects.append((f"{number}>" if number == "2" and operator == ">" else operator, target))

    def _feed(self) -> None:
        """Read the texts of pending heredocs, each up to the line with its delimiter."""
        for delimiter, command in self._waiting:
            start = self._at
            self._at = self._line_of(delimiter)
            command.fed = self._text[start : self._at].removesuffix("\n")
            self._at = min(self._end_of_line() + 1, len(self._text))
        self._waiting = []

    def _line_of(self, delimiter: str) -> int:
        """Return the beginning of the line that contains only the delimiter; the end of the text if there is none."""
        at = self._text.find(delimiter, self._at)
        while at >= 0:
            start = self._text.rfind("\n", 0, at) + 1
            end = at + len(delimiter)
            if not self._text[start:at].strip("\t") and self._text[end : end + 1] in ("", "\n"):
                return start
            at = self._text.find(delimiter, end)
        return len(self._text)

    def _word(self) -> str:
        """Return the next word without its quotes. An unclosed quote ends with the text."""
        text, parts = self._text, []
        while self._at < len(text):
            sign = text[self._at]
            if plain := _PLAIN.match(text, self._at):
                parts.append(plain[0])
                self._at = plain.end()
            elif sign == "'":
                parts.append(self._until("'"))
            elif sign == '"':
                parts.append(self._in_quotes())
            elif sign == "\\":
                parts.append(self._read_escape())
            elif sign in "$`":
                parts.append(self._value())
            elif sign == "#" and parts:
                parts.append("#")
                self._at += 1
            else:
                break
        if not parts and self._at < len(text) and text[self._at] not in " \t\n":
            self._at += 1
        return "".join(parts)

    def _until(self, quote: str) -> str:
        start = self._at + 1
        end = self._text.find(quote, start)
        end = len(self._text) if end < 0 else end
        self._at = min(end + 1, len(self._text))
        return self._text[start:end]

    def _read_escape(self) -> str:
        if not self._escapes:
            self._at += 1
            return "\\"
        following = self._text[self._at + 1 : self._at + 2]
        self._at += 2
        return "" if following == "\n" else following

    def _in_quotes(self) -> str:
        self._at += 1
        text, parts, start = self._text, [], self._at
        while self._at < len(text) and (sign := text[self._at]) != '"':
            if sign in "$`" or (sign == "\\" and self._escapes):
                parts.append(text[start : self._at])
                if sign != "\\":
                    parts.append(self._value())
                elif text[self._at + 1 : self._at + 2] in ('"', "\\", "$", "`", "\n"):
                    parts.append(self._read_escape())
                else:
                    parts.append("\\")
                    self._at += 1
                start = self._at
            else:
                plain = _QUOTED.match(text, self._at)
                self._at = plain.end() if plain else self._at + 1
        parts.append(text[start : self._at])
        self._at += 1
        return "".join(parts)

    def _value(self) -> str:
        """Return the value of a variable set in this text; UNKNOWN for any other expansion."""
        text = self._text
        if text[self._at] == "`":
            self._until("`")
            return UNKNOWN
        if text.startswith("$(", self._at):
            self._at += 1
            self._skip_parentheses()
            return UNKNOWN
        if text.startswith("$'", self._at):
            self._at += 1
            return self._until("'")
        if name := _NAME.match(text, self._at):
            self._at = name.end()
            return self._substitute(name[1] or name[2])
        if text.startswith("${", self._at):
            self._until("}")
            return UNKNOWN
        self._at += 1
        return "$"

    def _substitute(self, name: str) -> str:
        """Return the value of a variable; UNKNOWN after `_MOST` characters, since values may contain values."""
        value = self._values.get(name, UNKNOWN)
        self._substituted += len(value)
        return value if self._substituted <= _MOST else UNKNOWN

    def _end(self, operator: str) -> None:
        """End the current command."""
        self._track_keywords()
        words, via = self._strip_prefix(self._words)
        command, self._words, self._is_in_test = self._command, [], False
        command.words, command.via = tuple(words), via
        command.is_conditional = self._is_conditional()
        command.background = operator == "&"
        command.piped = operator in ("|", "|&")
        if words and words[0] in ("cd", "pushd") and not command.piped:
            self._folders[-1] = self._folder(words, self._folders[-1])
        if words or command.redirects:
            self._track_tested(command)
            self._commands.append(command)
        self._command = Command(cwd=self._folders[-1])
        if operator == "||":
            self._is_alternative = words != ["false"]
        elif operator not in ("(", ")", "|", "|&"):
            self._is_alternative = False
        if operator == "&&":
            self._is_tested = self._is_tested or _is_test(command)
        elif operator not in ("(", ")", "|", "|&"):
            self._is_tested = False

    def _track_tested(self, command: Command) -> None:
        """Mark a command after `&&` of a test. It has run if the script succeeded and the text ends with its list."""
        if not self._is_tested or command.background:
            self._tested = []
        if self._is_tested and not command.is_conditional:
            command.is_conditional = True
            if not command.background:
                self._tested.append(command)

    def _is_conditional(self) -> bool:
        return self._is_alternative or (bool(self._groups) and self._groups[-1][1])

    def _track_keywords(self) -> None:
        """Open and close groups for the first words of a command."""
        for word in self._words:
            if word == "done":  # the exit code of a loop is that of its last round
                self._tested = []
            if word in _GROUP_ENDS:
                self._close_group(_GROUP_ENDS[word])
            elif word in ("{", "then", "case"):
                self._open_group(word)
            elif word not in _KEYWORDS:
                return

    def _open_group(self, opener: str) -> None:
        is_conditional = opener in ("then", "case") or self._is_tested or self._is_conditional()
        self._groups.append((opener, is_conditional))
        self._is_alternative = self._is_tested = False

    def _close_group(self, opener: str) -> None:
        """Close the innermost group if `opener` opened it. The parenthesis after a pattern of `case` closes none."""
        if self._groups and self._groups[-1][0] == opener:
            self._groups.pop()

    def _folder(self, words: list[str], current: str) -> str:
        target = next((word for word in words[1:] if word in ("-", "") or not word.startswith("-")), "")
        if not target or target == "-" or UNKNOWN in target:
            return current
        return target if target.startswith(("/", "~")) else normpath(join(current, target))

    def _strip_prefix(self, words: list[str]) -> tuple[list[str], tuple[str, ...]]:
        """Return a command without keywords, assignments and starting programs, and the names of those programs."""
        via: list[str] = []
        at = 0
        while at < len(words):
            word = words[at]
            if word == "for" or word == "select":
                self._values[words[at + 1] if at + 1 < len(words) else ""] = UNKNOWN
                return [], ()
            if word == "case" or word == "function":
                return [], ()
            if assignment := _ASSIGNMENT.match(word):
                self._values[assignment[1]] = word[assignment.end() :]
            elif word in _WRAPPERS:
                via.append(word)
                at = self._after_options(words, at)
                continue
            elif word not in _KEYWORDS and word != "export":
                break
            at += 1
        return [each for word in words[at:] for each in _expand_braces(word)], tuple(via)

    def _after_options(self, words: list[str], at: int) -> int:
        """Return the position after the options of a program that starts another."""
        wrapper, at = words[at], at + 1
        while at < len(words) and (
            words[at].startswith("-") or (wrapper == "timeout" and _DURATION.fullmatch(words[at]))
        ):
            at += 2 if words[at] in _WITH_VALUE and wrapper != "timeout" else 1
        return at


def _is_test(command: Command) -> bool:
    """Return True if a command tests something and replies by its exit code."""
    if command.program == "git":
        return not _ASKING_GIT.isdisjoint(command.words)
    return command.program in _TESTS or "command" in command.via


def _expand_braces(word: str) -> Iterator[str]:
    """Yield the expansions of a word: `ab` and `ac` for `a{b,c}`."""
    match = _BRACES.fullmatch(word)
    if match is None or "," not in match[2] or match[1].endswith("$"):
        yield word
        return
    for part in match[2].split(","):
        yield f"{match[1]}{part}{match[3]}"
