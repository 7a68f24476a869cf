"""A call's arguments for a reader: by field, path and command first, escapes undone, nothing cut inside a path."""

import re

import msgspec

from policies.authorship.arguments import is_path_key
from policies.conversation.transcript import visible

_MOST = 160
_COMMAND = 140
_OTHER = 48
# Characters of a value that are read: paths are shorter.
_READ = 1_000
_FIRST = frozenset({"command", "cmd", "script", "commands", "pattern", "query", "url", "operation", "type"})
# What a shell is fed is shown by the file that it goes to.
_HEREDOC = re.compile(r"(<<-?\s?\\?['\"]{0,2}(\w{1,40})\\?['\"]{0,2}[^\n\\]{0,200})(?:\n|\\n)[\s\S]{40,}")
_ESCAPED = re.compile(r"\\([\"\\/nrt])")
_PLAIN = {"n": " ", "r": " ", "t": " "}
_encode = msgspec.json.Encoder().encode


def readable(arguments: object) -> str:
    """One line: JSON where that is short, else the fields that say most, each cut at its end."""
    if not isinstance(arguments, dict):
        return _cut(_plain(arguments), _MOST)
    if sum(len(value) for value in arguments.values() if isinstance(value, str)) <= _MOST:
        whole = _plain(arguments)
        if len(whole) <= _MOST:
            return whole
    fields = sorted(arguments.items(), key=lambda field: _order(field[0]))
    told: list[str] = []
    room = _MOST
    for name, value in fields:
        text = f'"{name}": {_value(name, value)}'
        if told and len(text) > room:
            told.append("…")
            break
        told.append(text)
        room -= len(text) + 2
    return f"{{{', '.join(told)}}}"


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
    """In one line, with letters rather than escapes."""
    if isinstance(value, str):
        return " ".join(visible(value[:_READ]).split())
    text = _encode(value).decode()[:_READ]
    text = _HEREDOC.sub(r"\1 …", text.replace('","', '", "').replace('":', '": '))
    text = _ESCAPED.sub(lambda found: _PLAIN.get(found[1], found[1]), text)
    return " ".join(visible(text).split())


def _cut(text: str, most: int) -> str:
    """The text up to the last word that fits, and a mark."""
    if len(text) <= most:
        return text
    end = text.rfind(" ", most // 2, most)
    return f"{text[: end if end > 0 else most].rstrip()}…"
