"""What an explanation says: the schema of `POST /v1/compaction/explain` and of `concertina explain --json`."""

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

# What is said first where no session was named.
WITHOUT_STORE = "no store was looked at: as if nothing of it had been summarised"

Fate = Literal["head", "kept", "anchor", "summarised", "covered", "cooled", "left_out", "dropped"]


class Verdict(msgspec.Struct, frozen=True):
    """In the words of `x-compaction` and `x-compaction-reason`."""

    outcome: Outcome
    reason: str


class ExplainedWindow(msgspec.Struct, frozen=True):
    """The model's context window in tokens, and who says so: `policy`, `learned` or `table`."""

    tokens: int
    source: str


class Thresholds(msgspec.Struct, frozen=True):
    """Tokens from which the store is looked at, a summary is prepared in the background, a request is compacted, and a
    compaction must succeed; the last only where the window is known."""

    floor: int
    soft: int
    compaction: int
    overflow: int | None


class CutMade(msgspec.Struct, frozen=True):
    """Where the conversation would be cut: `index` is that of the first message behind the cut.

    rounds: user messages and rounds that no checkpoint covers yet.
    """

    index: int
    level: str
    split_strategy: str
    boundary_adjustment: str
    boundary_adjustment_delta: int
    rounds: RoundCounts


class Checkpoint(msgspec.Struct, frozen=True):
    """The checkpoint that stands. covered: messages behind the head; timeline: one text a generation, oldest first;
    names: that its working set knows, of which the most useful are shown."""

    digest: str
    covered: int
    tokens: int
    generation: int
    trigger: str
    title: str
    timeline: tuple[str, ...]
    names: int = 0


class MessageFate(msgspec.Struct, frozen=True):
    """What becomes of the request's message `index`; `tokens_after` of it are sent.

    tool: of a result the tool it came from, of an assistant message those that it calls.
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
        """As those who look at sessions are told of it."""
        return SentMessage(self.index, self.role, self.tool or "", self.tokens, self.fate, self.tokens_after)


class RecalledPassages(msgspec.Struct, frozen=True):
    """Passages of the covered messages that are quoted in front of the request's message `index`, and their tokens."""

    index: int
    passages: int
    tokens: int


class ShortenedResult(msgspec.Struct, frozen=True):
    """A result that repeats another one or is written shorter. index: of its message; tokens: that it saves."""

    index: int
    tokens: int


class RestoredText(msgspec.Struct, frozen=True, rename={"source": "from"}):
    """The text of message `source`, written `from`, stands in message `index`, which points to it, with so many more
    tokens."""

    index: int
    source: int
    tokens: int


class PinnedText(msgspec.Struct, frozen=True):
    """A text that must stay, which the policy, the request's header or a mark names; is_kept: if the prompt has it.

    index: of its message; None for a system prompt, and where the client sends that message no more.
    """

    named_by: Origin
    index: int | None
    source: str
    is_kept: bool


class Pinned(msgspec.Struct, frozen=True):
    """A sentence of the user's message `index` that the record carries word for word; None where the client sends that
    message no more."""

    kind: Kind
    index: int | None
    text: str


class LeftOutText(msgspec.Struct, frozen=True):
    """What the record covers and the prompt does not show, of the request's message `index`; None if that is gone."""

    kind: LeftOutKind
    index: int | None
    text: str


class Reading(msgspec.Struct, frozen=True):
    """Tokens that `read_by` requests have read of what a compaction would take out now, since the last one.

    paid: how many times its price that has cost. due: how many times it must have cost for an early one.
    """

    read: int
    read_by: int
    paid: float
    due: float


class MediaLeftOut(msgspec.Struct, frozen=True):
    """Pictures and papers of a request, of so many bytes together; left_out: how many of them a note stands for.

    max_bytes, max_pictures: what the upstream takes of a request, as far as that is known; source: `config`, `provider`
    or `learned`, at Unix seconds then.
    """

    received: int
    left_out: int
    bytes: int
    max_bytes: int | None = None
    max_pictures: int | None = None
    source: str | None = None
    learned_at: float | None = None


class Explanation(msgspec.Struct, frozen=True):
    """What would be done with this very request now.

    dialect: that it was read in; empty where it could not be read.
    outcome, reason: what the answer's `x-compaction` and `x-compaction-reason` would say.
    would:   what mode `on` would do, where the request is let through (`off`) or only watched (`shadow`); then all that
             follows says what that would be.
    window:  None where it is unknown. usable: the input that fits it, or what the policy's token limit stands for.
    tokens_received, tokens_sent: tokens_tools included; a record that is not made yet counts with the most it may take,
             and if making it fails, the request goes out without it, unless it must shrink.
    record_tokens: of the record in tokens_sent, None without one.
    payoff:  of the compaction, else of the short forms, that no request has carried before; an estimate.
    reading: for a compaction that is made since it pays; None if none is.
    media:   if some of its pictures or papers would give way to notes.
    lineage: how the compactions of this conversation went so far, None before the first.
    recalled: what is quoted in front of messages that come back to covered ones.
    shortened: results in fewer tokens without loss.
    restored: texts put back into the place of results that point to them; unresolved: results that point to nothing.
    pins:    texts that must stay in the prompt.
    left_out: what the record covers and leaves out. Of one that is not made yet: as if no model wrote it.
    pinned:  what the user said that the record carries; actions, files: tool calls and changed files that it knows of.
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
