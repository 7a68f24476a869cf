"""What the tools did, read off the calls without a model: key actions and file changes (R3, BR-11)."""

import re
from collections.abc import Sequence
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


def file_changes(older: Sequence[FileChange], utterances: Sequence[Utterance]) -> list[FileChange]:
    """The files that tools created, modified or deleted, one entry a path, latest last."""
    changes = {change.path: change.action for change in older}
    for utterance in utterances:
        for call in utterance.calls:
            action = next((action for pattern, action in _CHANGES if pattern.search(call.name)), None)
            path = _path(call) if action else None
            if action and path:
                if action == "created" and changes.get(path) in ("created", "modified"):
                    action = changes[path]
                changes.pop(path, None)
                changes[path] = action
    return [FileChange(path, action) for path, action in changes.items()]


def _path(call: ToolCall) -> str | None:
    try:
        arguments = read(call.arguments)
    except UnreadError:
        return None
    if not isinstance(arguments, dict):
        return None
    return next((arguments[k] for k in _PATH_KEYS if isinstance(arguments.get(k), str)), None)
