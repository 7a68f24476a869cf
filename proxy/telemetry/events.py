"""Events about requests as frozen values, for hooks that log, count and show them.

Emitters do not know the hooks. No event contains content or a key. An unknown value is None, never 0.
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
    """Pictures and documents of a request, and their bytes in all.

    sent: those that went upstream. left_out: how many of the others were replaced by notes, by reason. max_bytes,
    max_pictures: the upstream's limits per request, if known. source: of the limits. learned_at: in Unix seconds.
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
    """A request that has ended in any way. The log writes it unchanged.

    at:          when it ended, in Unix seconds.
    id:          the proxy's id, as in `x-concertina-request-id`. client_request_id, upstream_request_id: their own ids.
    key:         the id of an issued key (`concertina keys list`). Nothing else of the key is in it.
    trace_id:    of its trace, if it has spans.
    wire:        the dialect of a conversation's request; `relay` for any other.
    route:       the operation of its path, from a fixed list. path: from the client.
    label:       the client's name for the conversation.
    tokens_by_size: of the prompt of an issued key's unread request, estimated by the bytes of its body.
    tokens_received, tokens_sent: of the prompt, by the proxy's estimate. calibration: the upstream's tokens per
    estimated token, if not 1.
    window, usable: of the model, in its tokens, and the part for a prompt. window_source: the source of the window.
    messages:    of the conversation, as received. media: its pictures and documents, if limits are known.
    billed, cached, cache_written, output: tokens as the upstream reported them. cache_written_long: written to its
    cache for an hour. reasoning: reasoning tokens of the output.
    usd:         at list price. usd_received: estimated cost of the unchanged prompt, with the same response and the
    cache that it would have had.
    ms:          until its end. first_byte_ms: until the first byte of the upstream's response.
    overhead_ms: until it was first sent: the proxy's own work (own_ms) and the wait for a summary.
    stages:      own_ms by stage: `read`, `store`, `plan`, `rebuild`; for requests that needed more than a count.
    wait_ms:     for summaries, before and after it was first sent.
    attempts:    requests to the upstream for it.
    removed, rewritten, pays_after: of short forms that are new in this request, an estimate (`price.Payoff`).
    shortened, shortened_tokens: results that were shortened without loss, and the saved tokens.
    restored, unresolved: results that only point to another one: those that got its text back, as it is no longer in
    the prompt, and those that point to nothing in the request.
    pins, pins_left_out: texts that must stay in the prompt, and those of them that are not in it.
    left_out:    of its record: how many covered things the prompt does not show, by kind; None without a record.
    overflow:    the result of an overflow; `observed` if its mode leaves overflows to the client.
    prefixes:    digests of the longest prefixes of its messages, the whole conversation first: six hex digits for each.
    bytes:       of the response body. comments: keepalive comments before it.
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
        """Return True if the upstream answered with 2xx, or a client got its requested compaction."""
        return (self.attempts > 0 or self.reason == "client_request") and 200 <= self.status < 300

    @property
    def received(self) -> int | None:
        """Return the tokens of the client's prompt, by the upstream's count if the calibration is known."""
        return _scale(self.tokens_received, self.calibration)

    @property
    def sent(self) -> int | None:
        """Return the tokens of the sent prompt, by the upstream's count if the calibration is known."""
        return _scale(self.tokens_sent, self.calibration)


def _scale(tokens: int | None, calibration: float | None) -> int | None:
    return tokens if tokens is None or calibration is None else round(tokens * calibration)


class CompactionStarted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A compaction has started (R1's callbacks). A `CompactionEnded` of the same session and trigger follows.

    at: Unix seconds. session, label: of its request. upstream, model: of the possible summarizer; None without one.
    covered: its messages. tokens_before: of the request.
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
    """A compaction and its result (R1's callbacks). The log writes it unchanged.

    at:         when it ended, in Unix seconds.
    session, label: of its request. upstream, model: of the summarizer; None if none was called.
    for_model:  of the conversation.
    reason:     why the model did not write the record, or why there is none.
    result:     how the record was made, or `reason`.
    used:       share of the room that the request took; None if it was not stored. threshold: the share from which on
    it is compacted.
    refused:    why responses of the model were rejected; `login` if no model may be called.
    cut, strategy, fallback_reason, adjustment, adjustment_delta, rounds, rounds_kept, covered: the place of the cut
    (R0).
    tokens_in, tokens_out, usd: of the model's responses, including rejected ones.
    tokens_summary: of the whole record, including the model's part.
    removed, rewritten, pays_after: the effect of the record, an estimate (`price.Payoff`).
    read, read_by, paid: tokens read of the removed part, by how many requests, and their cost relative to the
    compaction's price; None for other causes (`price.ReadSoFar`).
    digest, parent: of the record and the one that it continues. checkpoint: the first digits of `digest`.
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
    """A call of a summarizer that was started.

    wire:   the dialect of the call.
    result: `reminded` is valid after a reminder. `timeout` was stopped before its response.
    tokens_in, tokens_out: as billed, or estimated without usage; 0 without a response.
    cached, cache_written: of tokens_in. usd: at list price; None if unknown.
    key:    the id of the issued key of the conversation.
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
    """The composition of a sent prompt. Emitted when the prompt changes in kind, and at times as it grows.

    All figures are estimated tokens. head: instructions. results: unchanged tool results. cooled: shortened results.
    conversation: all other messages. usable: of the window, without the reserve for the response. soft, due: tokens
    from which a summary is prepared, and from which a request is compacted. media: if limits are known.
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
    """The upstream's count of an estimated prompt.

    cut_off: True if it read less than half of it.
    """

    tenant: str
    upstream: str
    model: str
    session: str
    estimated: int
    billed: int
    cut_off: bool


class Recalled(msgspec.Struct, frozen=True, gc=False):
    """Passages that a record covers were quoted for the first time, before a message that refers to them."""

    tenant: str
    upstream: str
    model: str
    passages: int
    tokens: int


class Started(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The proxy serves requests from now on.

    config: the file, or the built-in defaults. digest: of its content. upstreams: their names. store: its kind. admin:
    the source of the token for /admin.
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
    """An event that happened once. `proxy.telemetry.notes` maps its name to a log line and a metric.

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
    """An event with spans. It is emitted after the event itself."""

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
