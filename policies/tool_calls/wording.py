"""Readable arguments of a call: path and command first, escapes undone, paths never shortened."""

import re

import msgspec

from policies.authorship.arguments import is_path_key
from policies.conversation.transcript import visible

_MOST = 160
_COMMAND = 140
_OTHER = 48
# Characters of a value to read. Paths are shorter.
_READ = 1_000
_FIRST = frozenset({"command", "cmd", "script", "commands", "pattern", "query", "url", "operation", "type"})
# The target file shows the text of a heredoc.
_HEREDOC = re.compile(r"(<<-?\s?\\?['\"]{0,2}(\w{1,40})\\?['\"]{0,2}[^\n\\]{0,200})(?:\n|\\n)[\s\S]{40,}")
_ESCAPED = re.compile(r"\\([\"\\/nrt])")
_PLAIN = {"n": " ", "r": " ", "t": " "}
_encode = msgspec.json.Encoder().encode


def readable(arguments: object) -> str:
    """Return the arguments in one line: JSON if it is short, else the most informative fields, each shortened."""
    if not isinstance(arguments, dict):
        return _cut(_plain(arguments), _MOST)
    if sum(len(value) for value in arguments.values() if isinstance(value, str)) <= _MOST:
        one_line = _plain(arguments)
        if len(one_line) <= _MOST:
            return one_line
    fields = sorted(arguments.items(), key=lambda field: _order(field[0]))
    fields_shown: list[str] = []
    room = _MOST
    for name, value in fields:
        text = f'"{name}": {_value(name, value)}'
        if fields_shown and len(text) > room:
            fields_shown.append("…")
            break
        fields_shown.append(text)
        room -= len(text) + 2
    return f"{{{', '.join(fields_shown)}}}"


def _order(name: str) -> int:
    if is_path_key(name):
        return 0
    return 1 if name in _FIRST else 2


def _value(name: str, value: object) -> str:
    if not isinstance(value, str):
        text = _plain(value)
        return text if is_path_key(name) else _cut(text, _COMMAND if name in _FIRST else _OTHER)
    words = " ".join(visible(_HEREDOC.sub(r"\1 …", value[:_READ])).split())
    return f'"{words if is_path_key(name) else _cut(words, _COMMAND if name in _FIRST else _OTHER)}"'


def _plain(value: object) -> str:
    """Return a value in one line, with letters instead of escapes."""
    if isinstance(value, str):
        return " ".join(visible(value[:_READ]).split())
    text = _encode(value).decode()[:_READ]
    text = _HEREDOC.sub(r"\1 …", text.replace('","', '", "').replace('":', '": '))
    text = _ESCAPED.sub(lambda match: _PLAIN.get(match[1], match[1]), text)
    return " ".join(visible(text).split())


def _cut(text: str, most: int) -> str:
    """Return the text up to the last word that fits, and an ellipsis."""
    if len(text) <= most:
        return text
    end = text.rfind(" ", most // 2, most)
    return f"{text[: end if end > 0 else most].rstrip()}…"
