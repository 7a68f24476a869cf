"""What happens to requests, as frozen values: told to hooks, which write log lines, count and show.

Nothing that tells an event knows who listens. No event holds content or a key.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec

from policies.half_window import Cut
from policies.plan import Trigger
from policies.record.record import Record

End = Literal["complete", "shut_down", "deadline", "refused", "client_gone", "truncated", "aborted"]


class RequestEnded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request that has ended, whichever way; None and 0 for what never came to be known. The log writes it as it is.

    ms, overhead_ms: milliseconds that it took, and those before it was sent. bytes: of the answer's body.
    """

    end: End
    tenant: str | None = None
    policy: str | None = None
    method: str
    path: str
    id: str | None = None
    status: int = 0
    ms: float
    bytes: int
    comments: int = 0
    upstream: str | None = None
    overhead_ms: float | None = None
    model: str | None = None
    compaction: str | None = None
    reason: str | None = None
    tokens_sent: int | None = None
    tokens_received: int | None = None
    session: str | None = None
    max_output: int | None = None
    checkpoint: str | None = None
    code: str | None = None
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class CompactionEnded:
    """A compaction, and what came of it (R1's callbacks).

    result:  how the record was made, else why there is none.
    refused: why answers of the model were of no use; `login` where none may be asked for.
    """

    tenant: str
    session: str
    trigger: Trigger
    result: str
    ms: float
    cut: Cut
    tokens_before: int
    refused: tuple[str, ...]
    record: Record | None


@dataclass(frozen=True, slots=True)
class PromptBilled:
    """What an upstream counted in a prompt that we had estimated. cut_off: it has read less than half of it."""

    tenant: str
    upstream: str
    model: str
    session: str
    estimated: int
    billed: int
    cut_off: bool


@dataclass(frozen=True, slots=True)
class RetriesExhausted:
    """An overflow that no smaller request solved."""

    tenant: str
    session: str
    retries: int


@dataclass(frozen=True, slots=True)
class ShapeLearned:
    """A template that refuses the record's place among the messages takes this shape."""

    upstream: str
    tenant: str
    shape: str


@dataclass(frozen=True, slots=True)
class CopyRefused:
    """A copy of ours was refused where the client's own was taken. words: the upstream's, without what they quote."""

    tenant: str
    upstream: str
    model: str
    status: int
    words: str


@dataclass(frozen=True, slots=True)
class ThinkingRemoved:
    """A request was refused for thinking that was bound to another prompt, and is sent without any."""

    tenant: str
    upstream: str
    model: str


@dataclass(frozen=True, slots=True)
class Recalled:
    """Passages that a record covers were quoted for the first time, in front of a message that comes back to them."""

    tenant: str
    upstream: str
    model: str
    passages: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Searched:
    """A model searched its conversation, so many times for one answer."""

    tenant: str
    upstream: str
    model: str
    searches: int


@dataclass(frozen=True, slots=True)
class Irreducible:
    """What every request of a session carries is too large for a summary to help."""

    session: str
    tenant: str


@dataclass(frozen=True, slots=True)
class UnstableHistory:
    """Messages of a session change that were sent before, so that summaries of it are lost.

    root: the first conversation that was seen of it. message, role: of the one that changed.
    """

    root: str
    session: str
    tenant: str
    message: int
    role: str


@dataclass(frozen=True, slots=True)
class StoreChanged:
    """The store answers again, or no longer."""

    is_up: bool
    reason: str


@dataclass(frozen=True, slots=True)
class ConfigReloaded:
    """The config was read again, and put in force or refused."""

    is_taken: bool


Event = (
    RequestEnded
    | CompactionEnded
    | PromptBilled
    | RetriesExhausted
    | ShapeLearned
    | CopyRefused
    | ThinkingRemoved
    | Recalled
    | Searched
    | Irreducible
    | UnstableHistory
    | StoreChanged
    | ConfigReloaded
)
Hook = Callable[[Event], None]


class Hooks:
    """Tells every hook of an event. One that fails is a fault of ours, and no other one's."""

    def __init__(self, *hooks: Hook, fault: Callable[[str, BaseException], None]) -> None:
        """`fault` logs an error of ours under a name."""
        self._hooks = hooks
        self._fault = fault

    def __call__(self, event: Event) -> None:
        for hook in self._hooks:
            try:
                hook(event)
            except Exception as error:  # noqa: BLE001 - a listener must not break what happens
                self._fault("hook_failed", error)
