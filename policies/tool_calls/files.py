"""What became of files: one entry a path, by what calls did that did not fail."""

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
# What comes behind blocks in an answer's text says whether they were applied (aider).
_APPLIED = ("i updated the files", "i committed the changes", "applied edit")
_NOT_APPLIED = ("failed to match", "didn't see any properly formatted edits", "did not conform")


class FileChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last thing that was done to a file.

    other: its new path if it was renamed, where a copy is from. line: the first line that changed. position: of the
    call's message, -1 if that is not known. sure: whether the call worked; in records of before nothing says so.
    whole: whether all of a file that had been there was written anew. earlier: positions of the newest changes before
    this one, since it was made. says: what the result of a call says that is not known to have worked.
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
    """What is known of files: what was done to them, and which were there when they were read or listed."""

    changes: list[FileChange]
    seen: list[str]


def changes_in(
    older: Sequence[FileChange], seen: Sequence[str], done: Sequence[Done], said: Sequence[Utterance]
) -> KnownFiles:
    """The files of everything covered, latest last: what was known of `older` calls and those of a span."""
    files = _Files(older, seen)
    answers = [*_answers(said)]
    for each in done:
        while answers and answers[0].position < each.position:
            files.add_blocks(answers.pop(0))
        files.add(each)
    for answer in answers:
        files.add_blocks(answer)
    return KnownFiles([*files.changes.values()], [*files.seen])


class _Blocks(NamedTuple):
    """What the blocks in an answer's text do, and whether what came next says that they were applied."""

    position: int
    effects: list[Effect]
    sure: bool


def _answers(said: Sequence[Utterance]) -> Iterator[_Blocks]:
    """The answers with blocks, but those that were not applied."""
    for at, utterance in enumerate(said):
        if utterance.role != "assistant" or "REPLACE" not in utterance.text:
            continue
        effects = block_effects(utterance.text)
        following = next((each.text[:2_000].lower() for each in said[at + 1 :] if each.role == "user"), "")
        if effects and not any(sign in following for sign in _NOT_APPLIED):
            yield _Blocks(utterance.position, effects, any(sign in following for sign in _APPLIED))


class _Files:
    """What is known while a span is read; `seen` keeps the order in which paths were seen."""

    def __init__(self, older: Sequence[FileChange], seen: Sequence[str]) -> None:
        self.changes = {change.path: change for change in older}
        self.seen = dict.fromkeys(seen)

    def add(self, done: Done) -> None:
        if done.outcome.result == "failed":
            return
        effects = done.effects
        if done.result is not None:
            self._see(done, {effect.path for effect in effects})
        if len(effects) == 1 and effects[0].deed == "written" and done.kind == "change":
            effects = [_as_said(effects[0], done.result or "")]
        for effect in effects:
            self.change(effect, done.position, sure=done.outcome.result == "ok", says=done.outcome.why)

    def add_blocks(self, blocks: _Blocks) -> None:
        for effect in blocks.effects:
            self.change(effect, blocks.position, sure=blocks.sure)

    def _see(self, done: Done, made: Set[str]) -> None:
        """Paths that were there before the call; what it wrote itself need not have been."""
        is_proven = done.outcome.result == "ok" or done.kind == "shell"
        if not done.commands:
            if is_proven and done.kind == "read" and (path := path_of(done.arguments)):
                self.seen[path] = None
            return
        for command in done.commands:
            if is_proven and command.program in _SHOWN and not any(word.startswith("-i") for word in command.words):
                words = (word for word in command.words[1:] if not word.startswith("-"))
                self._see_all(path for word in words if (path := command.path(word)) not in made)
            elif command.program in _LISTING and len(done.commands) == 1:
                folder = next((word for word in command.words[1:] if not word.startswith("-")), "")
                self._see_all(_listed_paths(done.result or "", command.program, folder))

    def _see_all(self, paths: Iterator[str | None]) -> None:
        self.seen.update((path, None) for path in paths if path and ("." in path or "/" in path))

    def change(self, effect: Effect, position: int, *, sure: bool, says: str = "") -> None:
        path = effect.path
        known = self.changes.get(path)
        action = self._action(effect, known)
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
        if known is not None and {action, known.action} <= _EDITS:
            earlier = (*known.earlier, known.position)[-_MOST_EARLIER:]
        says = "" if sure else _shorten_line(says)
        self.changes[path] = FileChange(path, action, effect.other, line, position, sure, whole, earlier, says)

    def _forget(self, folder: str) -> None:
        """What was made in a folder is gone with it."""
        for path in [path for path in self.changes if path.startswith(folder)]:
            del self.changes[path]

    def _forget_new_name(self, path: str) -> None:
        """Mark a file as deleted if it was renamed to this path, which is deleted now."""
        for old in [change for change in self.changes.values() if change.action == "renamed" and change.other == path]:
            self.changes[old.path] = msgspec.structs.replace(old, action="deleted", other="")

    def _action(self, effect: Effect, known: FileChange | None) -> Change | None:
        is_made = known is not None and known.action in ("created", "copied")
        is_gone = known is not None and known.action in ("deleted", "renamed")
        exists = not is_gone and (known is not None or _is_in(self.seen, effect.path))
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
    """Whether a path was seen, from the root or from where the agent works."""
    if path in seen:
        return True
    if path.startswith("/"):
        return any(not other.startswith("/") and path.endswith(f"/{other}") for other in seen)
    return any(other.startswith("/") and other.endswith(f"/{path}") for other in seen)


def _as_said(effect: Effect, result: str) -> Effect:
    """As a tool says whether it made a file or wrote one that was there."""
    said = result[:300].lower()
    if "created" in said or "new file" in said or "创建" in said:
        return effect._replace(deed="written")
    return effect._replace(deed="overwritten") if any(sign in said for sign in _UPDATED) else effect


def _listed_paths(result: str, program: str, folder: str) -> Iterator[str | None]:
    """Paths in a listing; of `ls` names in its folder."""
    for token in result[:_MOST_LISTED].split()[-_MOST_TOKENS:]:
        name = token.strip("\"',:").removeprefix("./")
        if program == "ls" and folder not in ("", "."):
            yield f"{folder.rstrip('/')}/{name}"
        else:
            yield name.partition(":")[0] if program == "rg" else name


def _shorten_line(line: str) -> str:
    words = " ".join(line.split())
    return words if len(words) <= _LINE else f"{words[:_LINE].rstrip()}…"
