"""What the tools did, read off the calls without a model: key actions and file changes (R3, BR-11)."""

import re
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from policies.arguments import UnreadError, read
from policies.transcript import ToolCall, Utterance, shorten

Change = Literal["created", "modified", "deleted"]

_MAX_ARGUMENTS = 120
_FAILED = re.compile(
    r"\A\W{0,3}(?:error|traceback|exception|failed|fatal|usage:)|exit(?:ed with)? code:? [1-9]", re.IGNORECASE
)
_PATH_KEYS = ("path", "file_path", "filepath", "filename", "file", "target_file", "notebook_path")
# A tool's name says what it does to the file it is given; first match wins.
_CHANGES: tuple[tuple[re.Pattern[str], Change], ...] = (
    (re.compile(r"delete|remove|unlink|\brm\b", re.IGNORECASE), "deleted"),
    (re.compile(r"write|create|new_file|save", re.IGNORECASE), "created"),
    (re.compile(r"edit|patch|replace|insert|modify|update", re.IGNORECASE), "modified"),
)


_COMMAND_KEYS = ("command", "cmd", "script", "input")
_MAX_COMMAND = 4_000
# What a shell reads up to a word of the command's own choice is data, and no command.
_HEREDOC = re.compile(r"(<<-?\s*['\"]?(\w+)['\"]?[^\n]*\n)(?:(?!\2$).*\n)*\2$", re.MULTILINE)
_PATH = r"""("[^"\n$`]{1,200}"|'[^'\n]{1,200}'|[\w./~+@-]{0,200}[./][\w./~+@-]{0,200})"""
_COMMANDS: tuple[tuple[re.Pattern[str], Change], ...] = (
    (re.compile(rf"(?:^|[;&|(]\s*)rm\s+(?:-\w+\s+)*{_PATH}"), "deleted"),
    (re.compile(rf"(?:^|[;&|(]\s*)sed\s+(?:-\w+\s+)*-i\b[^;&|]*\s{_PATH}\s*(?:$|[;&|])"), "modified"),
    (re.compile(rf"(?:^|[;&|(]\s*)(?:touch|create)\s+{_PATH}"), "created"),
    (re.compile(rf"(?<![-=<>\d&])>>?\s*(?!/dev/){_PATH}"), "created"),
    (re.compile(rf"\btee\s+(?:-a\s+)?{_PATH}"), "created"),
)


class KeyAction(msgspec.Struct, frozen=True):
    """One tool call and whether its result looked like a failure."""

    tool: str
    arguments: str
    ok: bool
    position: int


class FileChange(msgspec.Struct, frozen=True):
    """The last thing a tool did to a file."""

    path: str
    action: Change


def key_actions(utterances: Sequence[Utterance]) -> list[KeyAction]:
    """Every call of the span, oldest first. A result answers the call with its id; where ids are used again, of the
    newest message that has one waiting, the first."""
    actions: list[KeyAction] = []
    waiting: dict[str, list[int]] = {}
    for utterance in utterances:
        waiting |= {call.id: [] for call in utterance.calls}
        for call in utterance.calls:
            arguments = shorten(" ".join(call.arguments.split()), _MAX_ARGUMENTS).replace("\n", " ")
            waiting[call.id].append(len(actions))
            actions.append(KeyAction(call.name, arguments, ok=True, position=utterance.position))
        if utterance.answers is not None and (calls := waiting.get(utterance.answers)):
            answered = calls.pop(0)
            if _FAILED.search(utterance.text[:400]):
                actions[answered] = msgspec.structs.replace(actions[answered], ok=False)
    return actions


def _changes(call: ToolCall) -> Iterator[tuple[str, Change]]:
    """What a call does to files, by its tool's name and arguments, or by the shell commands that it runs."""
    try:
        arguments = read(call.arguments)
    except UnreadError:
        arguments = call.arguments
    action = next((action for pattern, action in _CHANGES if pattern.search(call.name)), None)
    path = path_of(arguments)
    if action and path:
        yield path, action
    elif path is None:
        for command in _commands(arguments):
            for pattern, done in _COMMANDS:
                yield from ((_unquoted(found), done) for found in pattern.findall(command))


def _commands(arguments: object) -> Iterator[str]:
    """The shell commands in a call's arguments, without what they are given to read."""
    found = arguments
    if isinstance(arguments, dict):
        found = next((arguments[key] for key in _COMMAND_KEYS if key in arguments), None)
    if isinstance(found, list):  # an argument vector
        found = " ".join(word for word in found if isinstance(word, str))
    if isinstance(found, str):
        yield from _HEREDOC.sub(r"\g<1>", found[:_MAX_COMMAND]).splitlines()


def _unquoted(path: str) -> str:
    return path.strip("'\"")


def file_changes(older: Sequence[FileChange], utterances: Sequence[Utterance]) -> list[FileChange]:
    """The files that tools created, modified or deleted, one entry a path, latest last."""
    changes = {change.path: change.action for change in older}
    for utterance in utterances:
        for path, action in (change for call in utterance.calls for change in _changes(call)):
            known = changes.pop(path, None)
            changes[path] = known if action == "created" and known in ("created", "modified") else action
    return [FileChange(path, action) for path, action in changes.items()]


def path_of(arguments: object) -> str | None:
    """The file that the arguments of a call name."""
    if not isinstance(arguments, dict):
        return None
    return next((arguments[k] for k in _PATH_KEYS if isinstance(arguments.get(k), str)), None)
