"""The key actions, files and plan of a record, read from the tool calls without a model (R3, BR-11)."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from policies.conversation.transcript import Utterance
from policies.tool_calls.attempts import Attempt, attempts_in
from policies.tool_calls.browsing import BrowserStep, update_steps
from policies.tool_calls.calls import Done, Judge, done_in, judge_call
from policies.tool_calls.files import FileChange, changes_in
from policies.tool_calls.outcomes import Result
from policies.tool_calls.running import StartedWork, running_in
from policies.tool_calls.sorts import Sort, sort_of
from policies.tool_calls.todo import Plan, update_plan_state
from policies.tool_calls.wording import readable

__all__ = ["FileChange", "KeyAction", "Work", "file_changes", "key_actions", "update_work"]

_ACTIONS_STORED = 200
_FILES_STORED = 200
_SEEN_STORED = 300
_OK: Mapping[Result, bool | None] = {"ok": True, "failed": False, "unknown": None}


class KeyAction(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool call and its outcome.

    ok: None if the result does not show it.
    why: for a failed call, one line; for an unknown outcome, its short result.
    sure: True if `ok` has evidence. Calls in records of older versions have none and count as unknown.
    sort, about: the kind of call and its object, see `sort_of`.
    times: how often a file was read. The position is that of the last time.
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
        """Return True if the call only read a file and succeeded."""
        return self.sort == "read" and bool(self.about) and self.outcome == "ok"

    @property
    def outcome(self) -> Result:
        """Return the outcome. It is unknown if there is no evidence for it."""
        return "unknown" if self.ok is None or not self.sure else "ok" if self.ok else "failed"


class Work(NamedTuple):
    """The state of the work that a record covers. Each tuple has its newest item last.

    seen: paths of files that existed.
    """

    actions: tuple[KeyAction, ...] = ()
    files: tuple[FileChange, ...] = ()
    seen: tuple[str, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    running: tuple[StartedWork, ...] = ()
    plan: Plan = Plan()
    steps: tuple[BrowserStep, ...] = ()


def update_work(older: Work, utterances: Sequence[Utterance], judge: Judge = judge_call) -> Work:
    """Return the work of everything covered: `older` brought up to date with a span."""
    done = done_in(utterances, judge)
    files = changes_in(older.files, older.seen, done, utterances)
    return Work(
        tuple(_fold_reads((*older.actions, *_actions(done)))[-_ACTIONS_STORED:]),
        tuple(files.changes[-_FILES_STORED:]),
        tuple(files.seen[-_SEEN_STORED:]),
        tuple(attempts_in(older.attempts, done)),
        tuple(running_in(older.running, done, utterances)),
        update_plan_state(older.plan, done, utterances),
        update_steps(older.steps, utterances),
    )


def key_actions(utterances: Sequence[Utterance]) -> list[KeyAction]:
    """Return every call of the span, oldest first."""
    return _actions(done_in(utterances))


def _actions(done: Sequence[Done]) -> list[KeyAction]:
    return [_action(call) for call in done]


def _action(done: Done) -> KeyAction:
    sort, about = sort_of(done)
    result, why = done.outcome
    return KeyAction(
        done.call.name, readable(done.arguments), _OK[result], done.position, why, sure=True, sort=sort, about=about
    )


def _fold_reads(actions: Sequence[KeyAction]) -> list[KeyAction]:
    """Return the calls with only the last read of each file. It counts the earlier reads, too."""
    actions_by_key: dict[object, KeyAction] = {}
    for at, action in enumerate(actions):
        key = action.about if action.is_plain_read else at
        earlier = actions_by_key.pop(key, None)
        actions_by_key[key] = msgspec.structs.replace(action, times=action.times + earlier.times) if earlier else action
    return [*actions_by_key.values()]


def file_changes(older: Sequence[FileChange], utterances: Sequence[Utterance]) -> list[FileChange]:
    """Return the files that tools created, changed or deleted: one entry a path, latest last."""
    return changes_in(older, (), done_in(utterances), utterances).changes
