"""What happens to requests, as frozen values: told to hooks, which write log lines, count and show.

Nothing that tells an event knows who listens. No event holds content or a key. What is not known is None, never 0.
"""

from collections.abc import Callable
from typing import Literal

import msgspec

from policies.decision.plan import Trigger
from proxy.telemetry.message_fates import MessageFates
from proxy.telemetry.trace import Trace

End = Literal["complete", "shut_down", "deadline", "refused", "client_gone", "truncated", "aborted"]
Overflow = Literal["solved", "output_lowered", "passed_on", "observed"]


class MediaFigures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Pictures and papers of a request, of so many bytes together. sent: those that went upstream.

    left_out: how many of the others gave way to notes, by why. max_bytes, max_pictures: what the upstream takes of a
    request, as far as that is known; source: who says so; learned_at: in Unix seconds.
    """

    received: int
    sent: int
    bytes: int
    left_out: dict[str, int] = {}
    max_bytes: int | None = None
    max_pictures: int | None = None
    source: Literal["config", "provider", "learned"] | None = None
    learned_at: float | None = None


class RequestEnded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A request that has ended, whichever way. The log writes it as it is.

    at:          when it ended, in Unix seconds.
    id:          ours, as `x-concertina-request-id` tells the client. client_request_id, upstream_request_id: theirs.
    key:         the id of an issued key, of which nothing else can be told (`concertina keys list`).
    trace_id:    of the trace that it belongs to, where spans are made of it.
    wire:        the dialect of a request of a conversation; `relay` of any other.
    route:       what its path asks for, by a name of a fixed list. path: as the client wrote it.
    label:       what the client calls its conversation.
    tokens_by_size: of the prompt of an issued key's request that was not read, estimated by the bytes of its body.
    tokens_received, tokens_sent: of the prompt, of our own estimate; calibration: the upstream's for each, if not 1.
    window, usable: of the model, in its tokens; what of it a prompt may take. window_source: who says so.
    messages:    of the conversation, as received. media: its pictures and papers, if limits of them are known.
    billed, cached, cache_written, output: tokens as the upstream reported them; cache_written_long: of those that its
                 cache took, for an hour. reasoning: those of the output that were thought.
    usd:         at list price. usd_received: what the prompt as it came would have cost, with the same answer and the
                 cache that it would have had then; an estimate.
    ms:          until its end. first_byte_ms: until the first of the upstream's answer was there.
    overhead_ms: until it was first sent, which is our own work (own_ms) and the wait for a summary then.
    stages:      own_ms by what was done: `read`, `store`, `plan`, `rebuild`; of requests that needed more than a count.
    wait_ms:     for summaries, before and after it was first sent.
    attempts:    requests to the upstream that were made for it.
    removed, rewritten, pays_after: of short forms that no request had carried before, an estimate (`price.Payoff`).
    shortened, shortened_tokens: results in fewer tokens without loss, and the tokens that this saves.
    restored, unresolved: results that only point to another one: those that got its text back, as that is no longer in
                 the prompt, and those that point to nothing in the request.
    pins, pins_left_out: texts that must stay in the prompt of a conversation, and those of them that are not in it.
    left_out:    of its record: how many things it covers that the prompt does not show, by kind; None without a record.
    overflow:    what became of one that the upstream refused for its size; `observed` where its mode leaves it alone.
    prefixes:    digests of the longest prefixes of its messages, the whole conversation first: six hex digits for each.
    bytes:       of the answer's body. comments: signs of life before it.
    """

    at: float
    end: End
    tenant: str | None = None
    key: str | None = None
    policy: str | None = None
    method: str
    path: str
    route: str | None = None
    wire: str = "relay"
    stream: bool | None = None
    id: str
    client_request_id: str | None = None
    upstream_request_id: str | None = None
    trace_id: str | None = None
    status: int = 0
    ms: float
    first_byte_ms: float | None = None
    overhead_ms: float | None = None
    own_ms: float | None = None
    wait_ms: float | None = None
    stages: dict[str, float] | None = None
    attempts: int = 0
    bytes: int
    comments: int = 0
    upstream: str | None = None
    model: str | None = None
    compaction: str | None = None
    reason: str | None = None
    tokens_sent: int | None = None
    tokens_received: int | None = None
    tokens_by_size: int | None = None
    calibration: float | None = None
    window: int | None = None
    window_source: str | None = None
    usable: int | None = None
    messages: int | None = None
    media: MediaFigures | None = None
    billed: int | None = None
    cached: int | None = None
    cache_written: int | None = None
    cache_written_long: int | None = None
    output: int | None = None
    reasoning: int | None = None
    usd: float | None = None
    usd_received: float | None = None
    session: str | None = None
    label: str | None = None
    max_output: int | None = None
    checkpoint: str | None = None
    removed: int | None = None
    rewritten: int | None = None
    pays_after: int | None = None
    shortened: int = 0
    shortened_tokens: int = 0
    restored: int = 0
    unresolved: int = 0
    pins: int = 0
    pins_left_out: int = 0
    left_out: dict[str, int] | None = None
    overflow: Overflow | None = None
    warning: str | None = None
    code: str | None = None
    cause: str | None = None
    prefixes: str | None = None

    @property
    def is_answered(self) -> bool:
        """Whether the upstream has answered it with 2xx, or a client got the compaction that it asked for."""
        return (self.attempts > 0 or self.reason == "client_request") and 200 <= self.status < 300

    @property
    def received(self) -> int | None:
        """Tokens of the prompt as the client wrote it, as the upstream counts as far as that was learned."""
        return _scale(self.tokens_received, self.calibration)

    @property
    def sent(self) -> int | None:
        """The same of the prompt as it went out."""
        return _scale(self.tokens_sent, self.calibration)


def _scale(tokens: int | None, calibration: float | None) -> int | None:
    return tokens if tokens is None or calibration is None else round(tokens * calibration)


class CompactionStarted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A compaction is begun (R1's callbacks): every one ends with a `CompactionEnded` of the same session and trigger.

    at: Unix seconds. session, label: of the request that it is made for. upstream, model: of the summarizer that may be
    asked; None where none is. covered: messages that it is of. tokens_before: of the request.
    """

    at: float
    tenant: str
    session: str
    label: str | None = None
    trigger: Trigger
    upstream: str | None = None
    model: str | None = None
    covered: int
    tokens_before: int


class CompactionEnded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A compaction, and what came of it (R1's callbacks). The log writes it as it is.

    at:         when it ended, in Unix seconds.
    session, label: of the request that it was made for. upstream, model: of the summarizer; None where none was asked.
    for_model:  of the conversation.
    reason:     why the model did not write the record, or why there is none.
    result:     how the record was made, else `reason`.
    used:       share of the room that the request took, None if that was not kept; threshold: the one from which on
                that was too much.
    refused:    why answers of the model were of no use; `login` where none may be asked for.
    cut, strategy, fallback_reason, adjustment, adjustment_delta, rounds, rounds_kept, covered: where it was cut (R0).
    tokens_in, tokens_out, usd: what the model's answers cost, useless ones too.
    tokens_summary: of the whole record; what a model wrote is a part of it.
    removed, rewritten, pays_after: what the record saves and breaks, an estimate (`price.Payoff`).
    read, read_by, paid: tokens that were read of what it takes out, by how many requests, and how many times its price
                that cost; None if it was made for something else (`price.ReadSoFar`).
    digest, parent: of the record and the one that it continues; checkpoint: the first digits of `digest`.
    """

    at: float
    tenant: str
    session: str
    label: str | None = None
    trigger: Trigger
    result: str
    reason: str | None = None
    ms: float
    for_model: str | None = None
    upstream: str | None = None
    model: str | None = None
    used: float | None = None
    threshold: float | None = None
    cut: str
    strategy: str
    fallback_reason: str | None
    adjustment: str
    adjustment_delta: int
    rounds: int
    rounds_kept: int
    covered: int
    tokens_before: int
    refused: tuple[str, ...] = ()
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    usd: float | None = None
    digest: str | None = None
    parent: str | None = None
    checkpoint: str | None = None
    generation: int | None = None
    tokens_after: int | None = None
    tokens_summary: int | None = None
    ratio: float | None = None
    removed: int | None = None
    rewritten: int | None = None
    pays_after: int | None = None
    read: int | None = None
    read_by: int | None = None
    paid: float | None = None
    chunks: int | None = None
    depth: int | None = None
    truncated: bool | None = None
    summarizer_ms: int | None = None


CallResult = Literal["ok", "reminded", "invalid", "overflow", "refused", "failed", "timeout", "cancelled"]


class SummarizerCalled(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A call of a summarizer that was begun.

    wire:   the dialect that it was asked in.
    result: what came of it: `reminded` is fine after a reminder, `timeout` was ended before it was answered.
    tokens_in, tokens_out: as billed, or as estimated where that was not said; 0 without an answer.
    cached, cache_written: of tokens_in. usd: at list price, None where that is not known.
    key:    the id of the issued key whose conversation it is for.
    """

    tenant: str
    upstream: str
    model: str
    wire: str
    result: CallResult
    ms: float
    tokens_in: int = 0
    tokens_out: int = 0
    cached: int = 0
    cache_written: int = 0
    usd: float | None = None
    key: str | None = None


class PromptComposed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a prompt consists of that went upstream: told where its copy has changed, and now and then as it grows.

    All are tokens of our own estimate. head: instructions; results: of tools, as they came; cooled: results that are
    sent shortened; conversation: all other messages. usable: of the window, without what is kept for the answer.
    soft, due: tokens from which on a summary is prepared, and a request is compacted. media: if limits are known.
    """

    at: float
    tenant: str
    session: str
    label: str
    media: MediaFigures | None = None
    tools: int
    head: int
    record: int
    cooled: int
    results: int
    conversation: int
    window: int | None
    usable: int | None
    soft: int
    due: int
    messages: MessageFates


class PromptBilled(msgspec.Struct, frozen=True, gc=False):
    """What an upstream counted in a prompt that we had estimated. cut_off: it has read less than half of it."""

    tenant: str
    upstream: str
    model: str
    session: str
    estimated: int
    billed: int
    cut_off: bool


class Recalled(msgspec.Struct, frozen=True, gc=False):
    """Passages that a record covers were quoted for the first time, in front of a message that comes back to them."""

    tenant: str
    upstream: str
    model: str
    passages: int
    tokens: int


class Started(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Requests are served from now on.

    config:    the file, or what stands for it; digest: of what it says.
    upstreams: their names. store: its kind. admin: where the token for /admin comes from.
    """

    version: str
    config: str
    digest: str
    upstreams: tuple[str, ...]
    store: str
    admin: Literal["configured", "made"]


NoteName = Literal[
    "admin",
    "compaction_item",
    "config_refused",
    "config_reloaded",
    "copy_refused",
    "irreducible",
    "max_iterations",
    "media_refused",
    "shape",
    "store_down",
    "store_up",
    "summarizer_paused",
    "thinking_removed",
    "unstable_history",
]


class Note(msgspec.Struct, frozen=True, gc=False):
    """Something that happened once. `proxy.telemetry.notes` maps its name to a log line and a metric.

    tenant, session: None for an event of all tenants, or of no session. fields: the other fields of its log line.
    """

    name: NoteName
    tenant: str | None = None
    session: str | None = None
    fields: dict[str, str | int | float] = {}


def note(name: NoteName, tenant: str | None = None, session: str | None = None, **fields: str | float | None) -> Note:
    """Return a note with these fields, without those that are None."""
    return Note(name, tenant, session, {key: value for key, value in fields.items() if value is not None})


class Traced(msgspec.Struct, frozen=True, gc=False):
    """Something that ended, as far as spans are made of it: told behind the event itself."""

    trace: Trace
    event: RequestEnded | CompactionEnded | SummarizerCalled


Event = (
    RequestEnded
    | CompactionStarted
    | CompactionEnded
    | SummarizerCalled
    | PromptComposed
    | PromptBilled
    | Recalled
    | Started
    | Note
    | Traced
)
Hook = Callable[[Event], None]
