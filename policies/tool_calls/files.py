"""File changes by calls that did not fail: one entry a path."""

from collections.abc import Collection, Iterator, Sequence, Set
from typing import Literal, NamedTuple

import msgspec

from policies.authorship.arguments import path_of
from policies.conversation.transcript import Utterance
from policies.tool_calls.calls import Done
from policies.tool_calls.effects import Effect
from policies.tool_calls.patches import block_effects

Change = Literal["created", "modified", "appended", "renamed", "copied", "deleted"]

_MOST_LISTED = 20_000
_MOST_TOKENS = 400
_LINE = 80
_EDITS = frozenset({"modified", "appended"})
_MOST_EARLIER = 9
_LISTING = frozenset({"ls", "find", "tree", "rg", "fd", "git"})
_SHOWN = frozenset({"cat", "head", "tail", "less", "more", "bat", "nl", "wc", "sed", "stat", "file"})
_UPDATED = ("updated", "overwrote", "overwritten", "modified", "已更新")
# Texts after blocks in an assistant's message that report whether they were applied (aider).
_APPLIED = ("i updated the files", "i committed the changes", "applied edit")
_NOT_APPLIED = ("failed to match", "didn't see any properly formatted edits", "did not conform")


class FileChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last change to a file.

    other: the new path of a renamed file; the source of a copy.
    line: the first line that changed.
    position: of the call's message; -1 if unknown.
    sure: True if the call is known to have succeeded. Records of older versions do not store this.
    whole: True if an existing file was written anew.
    earlier: positions of the newest changes before this one, since the file was created.
    says: the result of a call that is not known to have succeeded.
    """

    path: str
    action: Change
    other: str = ""
    line: str = ""
    position: int = -1
    sure: bool = False
    whole: bool = False
    earlier: tuple[int, ...] = ()
    says: str = ""


class KnownFiles(NamedTuple):
    """The changes to files, and the files that existed when they were read or listed."""

    changes: list[FileChange]
    seen: list[str]


def changes_in(
    older: Sequence[FileChange], seen: Sequence[str], done: Sequence[Done], utterances: Sequence[Utterance]
) -> KnownFiles:
    """Return the files of everything covered, latest last: the `older` ones updated by the calls of a span."""
    files = _Files(older, seen)
    blocks = [*_blocks_in(utterances)]
    for call in done:
        while blocks and blocks[0].position < call.position:
            files.add_blocks(blocks.pop(0))
        files.add(call)
    for block in blocks:
        files.add_blocks(block)
    return KnownFiles([*files.changes.values()], [*files.seen])


class _Blocks(NamedTuple):
    """The effects of the blocks in an assistant's message. sure: True if the next message confirms them."""

    position: int
    effects: list[Effect]
    sure: bool


def _blocks_in(utterances: Sequence[Utterance]) -> Iterator[_Blocks]:
    """Yield the assistant's messages with blocks, except those that were not applied."""
    for at, utterance in enumerate(utterances):
        if utterance.role != "assistant" or "REPLACE" not in utterance.text:
            continue
        effects = block_effects(utterance.text)
        following = next((later.text[:2_000].lower() for later in utterances[at + 1 :] if later.role == "user"), "")
        if effects and not any(sign in following for sign in _NOT_APPLIED):
            yield _Blocks(utterance.position, effects, any(sign in following for sign in _APPLIED))


class _Files:
    """The known files while a span is read. seen: paths in the order in which they were seen."""

    def __init__(self, older: Sequence[FileChange], seen: Sequence[str]) -> None:
        """Start with the older changes and paths."""
        self.changes = {change.path: change for change in older}
        self.seen = dict.fromkeys(seen)

    def add(self, done: Done) -> None:
        """Apply the effects of a call."""
        if done.outcome.result == "failed":
            return
        effects = done.effects
        if done.result is not None:
            self._add_seen(done, {effect.path for effect in effects})
        if len(effects) == 1 and effects[0].deed == "written" and done.kind == "change":
            effects = [_with_reported_deed(effects[0], done.result or "")]
        for effect in effects:
            self.change(effect, done.position, sure=done.outcome.result == "ok", says=done.outcome.why)

    def add_blocks(self, blocks: _Blocks) -> None:
        """Apply the effects of blocks in a message."""
        for effect in blocks.effects:
            self.change(effect, blocks.position, sure=blocks.sure)

    def _add_seen(self, done: Done, made: Set[str]) -> None:
        """Add paths that existed before the call. A file that the call itself wrote may not have existed."""
        is_proven = done.outcome.result == "ok" or done.kind == "shell"
        if not done.commands:
            if is_proven and done.kind == "read" and (path := path_of(done.arguments)):
                self.seen[path] = None
            return
        for command in done.commands:
            if is_proven and command.program in _SHOWN and not any(word.startswith("-i") for word in command.words):
                words = (word for word in command.words[1:] if not word.startswith("-"))
                self._add_seen_paths(path for word in words if (path := command.path(word)) not in made)
            elif command.program in _LISTING and len(done.commands) == 1:
                folder = next((word for word in command.words[1:] if not word.startswith("-")), "")
                self._add_seen_paths(_listed_paths(done.result or "", command.program, folder))

    def _add_seen_paths(self, paths: Iterator[str | None]) -> None:
        self.seen.update((path, None) for path in paths if path and ("." in path or "/" in path))

    def change(self, effect: Effect, position: int, *, sure: bool, says: str = "") -> None:
        """Apply one effect to the entry of its path."""
        path = effect.path
        earlier_change = self.changes.get(path)
        action = self._action(effect, earlier_change)
        if action is None:
            return
        self.changes.pop(path, None)
        if action == "deleted":
            self._forget(f"{path}/")
            self._forget_new_name(path)
        if action in ("deleted", "renamed"):
            self.seen.pop(path, None)
        if action == "renamed":
            self.seen[effect.other] = None
        whole = action == "modified" and effect.deed in ("written", "created", "overwritten")
        line = "" if action == "created" else _shorten_line(effect.line)
        earlier: tuple[int, ...] = ()
        if earlier_change is not None and {action, earlier_change.action} <= _EDITS:
            earlier = (*earlier_change.earlier, earlier_change.position)[-_MOST_EARLIER:]
        says = "" if sure else _shorten_line(says)
        self.changes[path] = FileChange(path, action, effect.other, line, position, sure, whole, earlier, says)

    def _forget(self, folder: str) -> None:
        """Remove the files of a deleted folder."""
        for path in [path for path in self.changes if path.startswith(folder)]:
            del self.changes[path]

    def _forget_new_name(self, path: str) -> None:
        """Mark a renamed file as deleted if its new path is deleted."""
        for old in [change for change in self.changes.values() if change.action == "renamed" and change.other == path]:
            self.changes[old.path] = msgspec.structs.replace(old, action="deleted", other="")

    def _action(self, effect: Effect, earlier_change: FileChange | None) -> Change | None:
        is_made = earlier_change is not None and earlier_change.action in ("created", "copied")
        is_gone = earlier_change is not None and earlier_change.action in ("deleted", "renamed")
        exists = not is_gone and (earlier_change is not None or _is_in(self.seen, effect.path))
        match effect.deed:
            case "written" | "created":
                return "modified" if exists and not is_made else "created"
            case "touched":
                return None if exists else "created"
            case "appended":
                return "created" if is_made else "appended"
            case "overwritten":
                return "modified"
            case deed:
                return deed


def _is_in(seen: Collection[str], path: str) -> bool:
    """Return True if a path was seen, as an absolute path or relative to the working directory."""
    if path in seen:
        return True
    if path.startswith("/"):
        return any(not seen_path.startswith("/") and path.endswith(f"/{seen_path}") for seen_path in seen)
    return any(seen_path.startswith("/") and seen_path.endswith(f"/{path}") for seen_path in seen)


def _with_reported_deed(effect: Effect, result: str) -> Effect:
    """Return the effect with the deed that a tool reports: a new file, or an existing one."""
    report = result[:300].lower()
    if "created" in report or "new file" in report or "创建" in report:
        return effect._replace(deed="written")
    return effect._replace(deed="overwritten") if any(sign in report for sign in _UPDATED) else effect


def _listed_paths(result: str, program: str, folder: str) -> Iterator[str | None]:
    """Yield the paths in a listing. For `ls`, join the names with its folder."""
    for token in result[:_MOST_LISTED].split()[-_MOST_TOKENS:]:
        name = token.strip("\"',:").removeprefix("./")
        if program == "ls" and folder not in ("", "."):
            yield f"{folder.rstrip('/')}/{name}"
        else:
            yield name.partition(":")[0] if program == "rg" else name


def _shorten_line(line: str) -> str:
    words = " ".join(line.split())
    return words if len(words) <= _LINE else f"{words[:_LINE].rstrip()}…"
