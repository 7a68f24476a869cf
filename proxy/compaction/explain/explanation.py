"""The schema of `POST /v1/compaction/explain` and of `concertina explain --json`."""

from typing import Literal

import msgspec

from policies.conversation.message import Role
from policies.price import Payoff
from policies.record.left_out import LeftOutKind
from policies.record.lineage import Lineage
from policies.record.pins import Origin
from policies.record.record import RoundCounts
from policies.statements.entries import Kind
from proxy.compaction.plan_input import Outcome
from proxy.telemetry.message_fates import SentMessage

# The source of an explanation without a session.
WITHOUT_STORE = "no store was read: as if nothing had been summarised before"

Fate = Literal["head", "kept", "anchor", "summarised", "covered", "cooled", "left_out", "dropped"]


class Verdict(msgspec.Struct, frozen=True):
    """Values of `x-compaction` and `x-compaction-reason`."""

    outcome: Outcome
    reason: str


class ExplainedWindow(msgspec.Struct, frozen=True):
    """The model's context window in tokens, and its source: `policy`, `learned` or `table`."""

    tokens: int
    source: str


class Thresholds(msgspec.Struct, frozen=True):
    """Tokens at which the proxy begins to act.

    floor:      it reads the store.
    soft:       it prepares a summary in the background.
    compaction: it compacts the request.
    overflow:   a compaction must succeed; None if the window is unknown.
    """

    floor: int
    soft: int
    compaction: int
    overflow: int | None


class CutMade(msgspec.Struct, frozen=True):
    """The cut of the conversation. index: that of the first message after it.

    rounds: user messages and rounds that no checkpoint covers yet.
    """

    index: int
    level: str
    split_strategy: str
    boundary_adjustment: str
    boundary_adjustment_delta: int
    rounds: RoundCounts


class Checkpoint(msgspec.Struct, frozen=True):
    """The checkpoint in use.

    covered:  messages after the head that it covers.
    timeline: one text a generation, oldest first.
    names:    the number of names in its working set. The record shows the most useful.
    """

    digest: str
    covered: int
    tokens: int
    generation: int
    trigger: str
    title: str
    timeline: tuple[str, ...]
    names: int = 0


class MessageFate(msgspec.Struct, frozen=True):
    """The fate of the request's message `index`, of which `tokens_after` are sent.

    tool: the tool of a result, or the tools that an assistant's message calls.
    """

    index: int
    role: Role
    tool: str | None
    tokens: int
    fate: Fate
    tokens_after: int
    why: str

    @property
    def sent_message(self) -> SentMessage:
        """Return the fate in the form that pages of sessions read."""
        return SentMessage(self.index, self.role, self.tool or "", self.tokens, self.fate, self.tokens_after)


class RecalledPassages(msgspec.Struct, frozen=True):
    """Passages of covered messages that are quoted before the request's message `index`, and their tokens."""

    index: int
    passages: int
    tokens: int


class ShortenedResult(msgspec.Struct, frozen=True):
    """A result that is repeated or shortened without loss. index: that of its message. tokens: the tokens saved."""

    index: int
    tokens: int


class RestoredText(msgspec.Struct, frozen=True, rename={"source": "from"}):
    """The text of message `source` (in JSON `from`) that replaces a pointer to it in message `index`.

    tokens: the tokens added.
    """

    index: int
    source: int
    tokens: int


class PinnedText(msgspec.Struct, frozen=True):
    """A pinned text, named by the policy, the request's header or a mark. is_kept: True if the prompt has it.

    index: that of its message; None for a system prompt, or if the client no longer sends the message.
    """

    named_by: Origin
    index: int | None
    source: str
    is_kept: bool


class Pinned(msgspec.Struct, frozen=True):
    """A sentence of the user's message `index` that the record quotes. None if the client no longer sends it."""

    kind: Kind
    index: int | None
    text: str


class LeftOutText(msgspec.Struct, frozen=True):
    """A text that the record covers and the prompt does not show. index: that of its message; None if it is gone."""

    kind: LeftOutKind
    index: int | None
    text: str


class Reading(msgspec.Struct, frozen=True):
    """Tokens read since the last compaction that a new one would remove.

    read_by: the number of requests that read them.
    paid:    their cost, as a multiple of the price of a compaction.
    due:     the multiple from which an early compaction pays off.
    """

    read: int
    read_by: int
    paid: float
    due: float


class MediaLeftOut(msgspec.Struct, frozen=True):
    """Images and documents of a request.

    received:                their number. bytes: their size together.
    left_out:                the number that notes replace.
    max_bytes, max_pictures: the known limits of the upstream.
    source:                  `config`, `provider` or `learned`; learned_at: Unix seconds of the latter.
    """

    received: int
    left_out: int
    bytes: int
    max_bytes: int | None = None
    max_pictures: int | None = None
    source: str | None = None
    learned_at: float | None = None


class Explanation(msgspec.Struct, frozen=True):
    """The plan for this request now.

    dialect: the dialect of the request; empty if it could not be read.
    outcome, reason: the values of the response's `x-compaction` and `x-compaction-reason`.
    would: the plan of mode `on`, if the mode is `off` or `shadow`. All later fields then describe that plan.
    window: None if unknown.
    usable: the input that fits the window, or the policy's token limit.
    tokens_received, tokens_sent: with tools_tokens. A record that is not made yet counts with its maximum. If making it
        fails, the request is sent without it, unless it must shrink.
    record_tokens: those of the record in tokens_sent; None without one.
    payoff: an estimate for the compaction, else for the short forms, that no earlier request had.
    reading: for a compaction that is made for economy; else None.
    media: None if all images and documents are sent.
    lineage: the history of this conversation's compactions; None before the first.
    recalled: quotations before messages that refer to covered ones.
    shortened: results with fewer tokens, without loss.
    restored: texts that replace results which point to them. unresolved: the number of pointers to nothing.
    pins: texts that must stay in the prompt.
    left_out: texts that the record covers and leaves out. Before a record is made: as without a model.
    pinned: the user's statements in the record. actions, files: its numbers of tool calls and changed files.
    """

    model: str
    policy: str
    outcome: Outcome
    reason: str
    dialect: str = ""
    would: Verdict | None = None
    window: ExplainedWindow | None = None
    usable: int | None = None
    thresholds: Thresholds | None = None
    tokens_received: int = 0
    tokens_sent: int = 0
    tokens_tools: int = 0
    record_tokens: int | None = None
    payoff: Payoff | None = None
    reading: Reading | None = None
    media: MediaLeftOut | None = None
    cut: CutMade | None = None
    checkpoint: Checkpoint | None = None
    lineage: Lineage | None = None
    messages: list[MessageFate] = []
    recalled: list[RecalledPassages] = []
    shortened: list[ShortenedResult] = []
    restored: list[RestoredText] = []
    unresolved: int = 0
    pins: list[PinnedText] = []
    pinned: list[Pinned] = []
    left_out: list[LeftOutText] = []
    actions: int = 0
    files: int = 0
