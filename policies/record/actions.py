"""What the tools did, read off the calls without a model, for a record: key actions, files, plan (R3, BR-11)."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from policies.conversation.transcript import Utterance
from policies.tool_calls.attempts import Attempt, attempts_in
from policies.tool_calls.browsing import BrowserStep, steps_behind
from policies.tool_calls.calls import Done, Judge, done_in, judge_call
from policies.tool_calls.files import FileChange, changes_in
from policies.tool_calls.outcomes import Result
from policies.tool_calls.running import StartedWork, running_in
from policies.tool_calls.sorts import Sort, sort_of
from policies.tool_calls.todo import Plan, plan_behind
from policies.tool_calls.wording import readable

__all__ = ["FileChange", "KeyAction", "Work", "file_changes", "key_actions", "work_behind"]

_ACTIONS_STORED = 200
_FILES_STORED = 200
_SEEN_STORED = 300
_OK: Mapping[Result, bool | None] = {"ok": True, "failed": False, "unknown": None}


class KeyAction(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tool call, and whether it worked as far as its result shows.

    ok: None if that is not known. why: of a failed one, one line; of one that is not known, its short result.
    sure: whether `ok` has evidence; that of records of before has none, and is not known.
    sort, about: what it is to whoever goes on, see `sort_of`. times: how often a file was read, the last time here.
    """

    tool: str
    arguments: str
    ok: bool | None = None
    position: int = -1
    why: str = ""
    sure: bool = False
    sort: Sort = ""
    about: str = ""
    times: int = 1

    @property
    def is_plain_read(self) -> bool:
        """Whether there is nothing to tell of it but which file it read."""
        return self.sort == "read" and bool(self.about) and self.outcome == "ok"

    @property
    def outcome(self) -> Result:
        return "unknown" if self.ok is None or not self.sure else "ok" if self.ok else "failed"


class Work(NamedTuple):
    """What a record carries of the calls it covers, the newest of each last. seen: files that were there."""

    actions: tuple[KeyAction, ...] = ()
    files: tuple[FileChange, ...] = ()
    seen: tuple[str, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    running: tuple[StartedWork, ...] = ()
    plan: Plan = Plan()
    steps: tuple[BrowserStep, ...] = ()


def work_behind(older: Work, utterances: Sequence[Utterance], judge: Judge = judge_call) -> Work:
    """What was done in everything covered: what is known of before, and a span."""
    done = done_in(utterances, judge)
    known = changes_in(older.files, older.seen, done, utterances)
    return Work(
        tuple(_fold_reads((*older.actions, *_actions(done)))[-_ACTIONS_STORED:]),
        tuple(known.changes[-_FILES_STORED:]),
        tuple(known.seen[-_SEEN_STORED:]),
        tuple(attempts_in(older.attempts, done)),
        tuple(running_in(older.running, done, utterances)),
        plan_behind(older.plan, done, utterances),
        steps_behind(older.steps, utterances),
    )


def key_actions(utterances: Sequence[Utterance]) -> list[KeyAction]:
    """Every call of the span, oldest first."""
    return _actions(done_in(utterances))


def _actions(done: Sequence[Done]) -> list[KeyAction]:
    return [_action(each) for each in done]


def _action(done: Done) -> KeyAction:
    sort, about = sort_of(done)
    result, why = done.outcome
    return KeyAction(
        done.call.name, readable(done.arguments), _OK[result], done.position, why, sure=True, sort=sort, about=about
    )


def _fold_reads(actions: Sequence[KeyAction]) -> list[KeyAction]:
    """Every call, but of those that read the same file only the last, with how many they were."""
    found: dict[object, KeyAction] = {}
    for at, action in enumerate(actions):
        key = action.about if action.is_plain_read else at
        before = found.pop(key, None)
        found[key] = msgspec.structs.replace(action, times=action.times + before.times) if before else action
    return [*found.values()]


def file_changes(older: Sequence[FileChange], utterances: Sequence[Utterance]) -> list[FileChange]:
    """The files that tools created, changed or deleted, one entry a path, latest last."""
    return changes_in(older, (), done_in(utterances), utterances).changes
