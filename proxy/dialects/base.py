"""The table row of a dialect. Callers read and write requests through it without knowing the dialect.

The parts are modules of pure functions, and a class for the items. Behaviour that all dialects share is a function that
takes a key, not a part.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, Protocol

import msgspec
from msgspec import structs

from policies.conversation.conversation import CHAT_ORDER, MessageIndex, Order
from policies.decision.assemble import Injected, Item, MergedMessage, Rules, UserWords
from policies.price import Tokens
from policies.record.prompting import Prompt
from policies.record.validation import SummaryAnswer
from proxy.dialects import json_array
from proxy.dialects.blocks import Items
from proxy.dialects.compaction import ClearingForms, CompactEndpoint, Compacting
from proxy.dialects.json_array import Array, Parsed
from proxy.dialects.paths import DialectPath

Fields = Mapping[str, msgspec.Raw]
StreamForm = Literal["events", "array"]

_REMEMBERED_MODELS = 256


class RequestSettings(msgspec.Struct, frozen=True, gc=False):
    """Fields of a request besides its items.

    max_output:      the limit of the response; None without one.
    output_key:      the field by which this client sets that limit.
    definitions:     JSON that is sent to the model besides the items: tools, formats.
    usage_fields:    fields that make a stream report its usage; empty if it does so anyway or the client has set them.
    passthrough:     the reason why this shape is only counted and never compacted; None for a supported shape.
    reactive:        the reason why it is compacted only after an overflow: the provider edits the prompt. Else None.
    label:           the client's name of its session; empty without one.
    order:           the order that the upstream accepts in a conversation with parts left out.
    least_output:    the least value to which the limit of the response may be lowered.
    strips_thinking: True if the upstream itself leaves out thinking that was made for another prompt.
    compacts:        True if the provider is asked to compact the prompt or to clear parts of it.
    is_partial:      True if the provider's prompt differs from the body: stored state, a template, or cleared parts.
                     Its usage then says nothing about the body.
    answers:         the number of responses that are requested.
    is_enlarged:     True if the provider may add to the prompt: results of its own tools, documents, skills.
    """

    model: str
    stream: bool
    max_output: int | None
    output_key: str
    definitions: tuple[msgspec.Raw, ...]
    usage_fields: Mapping[str, object]
    passthrough: str | None
    reactive: str | None = None
    label: str = ""
    order: Order = CHAT_ORDER
    least_output: int = 1
    strips_thinking: bool = False
    compacts: bool = False
    is_partial: bool = False
    is_enlarged: bool = False
    answers: int = 1


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one call, as the upstream counted them. None if the upstream does not report a count.

    cached:        prompt tokens that the upstream's cache served.
    cache_written: prompt tokens that the cache stored. cache_written_long: the part stored for an hour.
    reasoning:     completion tokens of reasoning.
    """

    prompt_tokens: int
    completion_tokens: int
    cached: int | None = None
    cache_written: int | None = None
    cache_written_long: int | None = None
    reasoning: int | None = None

    @property
    def tokens(self) -> Tokens:
        """Return the counts in the form that prices are computed from."""
        long = self.cache_written_long or 0
        written = (self.cache_written or 0) - long
        return Tokens(self.prompt_tokens, self.completion_tokens, self.cached or 0, max(0, written), long)


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a response: the reason, the reported tokens, and whether it has neither text nor calls."""

    reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    is_empty: bool


class ReadsUsage(Protocol):
    """Reads the usage of responses. `data` is that of one event, or a whole response.

    USAGE_KEY: the key of the usage in a response, quotes included.
    STREAM:    the form of a stream: server-sent events, or a JSON array. An array is relayed and read like a response
               in pieces. Nothing can be inserted into it.
    """

    USAGE_KEY: bytes
    STREAM: StreamForm

    def is_last(self, data: bytes, /) -> bool:
        """Return True if an event with this data ends the response. Clients disconnect right after it."""

    def usage(self, newest_first: Iterable[bytes], /) -> Usage | None:
        """Return the last usage that the events of a response, or the whole response, report."""


class Answers(ReadsUsage, Protocol):
    """Reads responses of upstreams, and writes the proxy's own.

    ANSWER_KEY:      bytes near the beginning of every JSON response, and in no error.
    WAITING:         bytes that may begin a stream or come between two events while no content is available.
    KEEPALIVE:       an event with the same effect for clients that ignore comments; empty if all clients read them.
    TOO_LONG:        the error text of an overflow, in words that clients know; holds `{limit}` and `{tokens}`.
    TOO_LONG_FOR_IT: the same text for an unknown limit.
    """

    ANSWER_KEY: bytes
    WAITING: bytes
    KEEPALIVE: bytes
    TOO_LONG: str
    TOO_LONG_FOR_IT: str

    def has_content(self, data: bytes, /) -> bool:
        """Return True if an event has content. Roles, verdicts of filters and numbers are announcements only."""

    def ending(self, data: bytes, /) -> Ending | None:
        """Return the end of a response, or that in a stream's last event; None if it cannot be read."""

    def is_usage_alone(self, data: bytes, /) -> bool:
        """Return True if an event holds only the requested usage."""

    def error_body(self, error: object, status: int, /) -> bytes:
        """Return the body of an error response. error: its fields, or the value that an upstream sent instead."""

    def error_event(self, error: object, status: int, /, *, ends: bool) -> bytes:
        """Return an error for a stream that has begun. ends: True if nothing follows, so that clients stop waiting."""


class Questions(Protocol):
    """Builds the proxy's own requests to a model.

    OUTPUT_KEY: the field that limits a response, if no client's request shows which one the model knows.
    HEADERS:    headers that a request needs besides its credential, if no client has sent them.
    """

    OUTPUT_KEY: str
    HEADERS: Sequence[tuple[bytes, bytes]]

    def room(self, tokens: int, /) -> int:
        """Return the limit under which a text of so many tokens can be written."""

    def ask(self, model: str, prompt: Prompt, limit: tuple[str, int], temperature: float | None, /) -> bytes:
        """Return the body of a request. limit: the field that limits the response, and the tokens."""

    def continuation(
        self, body: bytes, fields: Fields, limit: tuple[str, int], temperature: float | None = None, /
    ) -> bytes | None:
        """Return a client's request with an added instruction as a request of the proxy; None if it cannot be one.

        The prompt to the model stays the same, so that the provider's cache serves it. Fields that would make the
        provider act are left out. None is returned if the prompt itself requires a response that is not text.
        """

    def read(self, body: bytes, /) -> SummaryAnswer | None:
        """Return the response to such a request; None if it is not one. `finish_reason` is `stop` if it is complete."""


class Breakpoints(Protocol):
    """Sets cache breakpoints for a provider that caches only marked prefixes."""

    def mark_record(self, raw: bytes, /) -> bytes:
        """Return an item that begins with an injected text, with a breakpoint on that text."""

    def mark_head(self, body: bytes, /) -> bytes:
        """Return a body with a breakpoint after its instructions and tools. Its items keep their bytes."""


class Recorded(Protocol):
    """Recognizes bodies and items of a dialect without their path, as stored in files.

    FIELDS: the fields besides the items that have tokens or limit the response.
    """

    FIELDS: Sequence[str]

    def is_body(self, keys: Collection[str], /) -> bool:
        """Return True if only this dialect has requests with these fields."""

    def is_item(self, item: object, /) -> bool:
        """Return True if only this dialect has such an item."""

    def as_sent(self, item: Mapping[str, object], /) -> Mapping[str, object] | None:
        """Return an item without the notes of tools other than clients; None for an item that no client sends."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One API format of conversations.

    name:                the name in configs and to users.
    paths:               the paths of its requests. The proxy's own requests go to the first one.
    array:               the position of the items in a body. settings: parses the other fields.
    provider, operation: OpenTelemetry's `gen_ai` names of the provider and the operation.
    header:              a header that identifies its clients on paths of no dialect; None without one.
    key_header:          the header in which its clients send their key.
    home:                the host that defined it. also_at: other hosts that are known to support it.
    compacts_at:         hosts with its compaction protocols. A name that begins with a dot means all hosts below.
    model_key:           the field of a body that names the model; None if only the path does.
    without_sealed:      removes sealed reasoning from an item, and returns None for an item of such reasoning. None if
                         a prompt has to keep it.
    breakpoints:         for providers that cache only marked prefixes; None if there are none.
    text_kind:           the type of a text part in a user's content.
    has_sockets:         True if its clients ask for a WebSocket on its path.
    with_output:         sets another limit for the response, by the `output_key` of the settings.
    compacting:          the requests of its clients for the provider's compaction; None if there are none.
    compact_endpoint:    the response of the path for such a compaction.
    clearing:            the remainder of results that clients want cleared.
    model:               the model that the path of these requests names; empty if it names none.
    """

    name: str
    paths: tuple[DialectPath, ...]
    array: Array
    settings: Callable[[Fields], RequestSettings]
    items: Items
    answers: Answers
    questions: Questions
    recorded: Recorded
    provider: str
    operation: str = "chat"
    header: bytes | None = None
    key_header: bytes = b"authorization"
    home: str = ""
    also_at: tuple[str, ...] = ()
    compacts_at: tuple[str, ...] = ()
    model_key: str | None = "model"
    breakpoints: Breakpoints | None = None
    without_sealed: Callable[[bytes], bytes | None] | None = None
    text_kind: str = "text"
    has_sockets: bool = False
    with_output: Callable[[bytes, str, int], bytes] = json_array.with_field
    compacting: Compacting | None = None
    compact_endpoint: CompactEndpoint | None = None
    clearing: ClearingForms | None = None
    model: str = ""

    @property
    def path(self) -> tuple[str, ...]:
        """Return the path of its requests, without /v1. It names no model."""
        return self.paths[0].names

    def question_path(self, model: str) -> tuple[str, ...]:
        """Return the path of its requests to this model."""
        return self.paths[0].naming(model)

    @property
    def count_path(self) -> tuple[str, ...] | None:
        """Return the path that counts the tokens of a request; None if there is none."""
        return next((path.names for path in self.paths if path.does == "count"), None)

    def with_path(self, model: str, stream: bool | None = None) -> "Dialect":
        """Return the dialect of requests whose path names the model or the form of the response.

        The path then overrides the body. Returns self if the path has neither.
        """
        return self if not model and stream is None else _with_path(self, model, stream)

    def model_of(self, body: bytes) -> str:
        """Return the model of a request without parsing the whole body; empty if it cannot be found."""
        return self.model or (json_array.model_of(body, self.model_key) if self.model_key else "")

    def rebuild(
        self,
        body: bytes,
        parsed: Parsed,
        items: Sequence[Item],
        replaced: Mapping[MessageIndex, bytes],
        *,
        is_marked: bool = False,
    ) -> bytes:
        """Return the body with another array. Items keep the client's bytes, except injected and rewritten ones.

        replaced:  index of an item -> its other bytes.
        is_marked: with breakpoints after the head and the record. The record is the injected item of the user.
        """

        def item_bytes(index: MessageIndex) -> bytes:
            """Return the bytes of an item as they are sent."""
            return replaced.get(index) or body[slice(*parsed.spans[index])]

        def main_item(index: MessageIndex) -> bytes:
            """Return the last item of a message, without the silent items that were read as a part of it."""
            readable = replaced.get(index) or parsed.text[slice(*parsed.spans[index])]
            return item_bytes(index)[-len(json_array.split_items(readable)[-1]) :]

        def user_words(item: MessageIndex | UserWords) -> bytes:
            return self.items.words(main_item(item.of)) if isinstance(item, UserWords) else main_item(item)

        def piece(item: Item) -> int | bytes:
            match item:
                case Injected(role="assistant"):
                    return self.items.inject(item)
                case Injected():
                    return self._record(self.items.inject(item), is_marked=is_marked)
                case MergedMessage():
                    raw = user_words(item.into)
                    merged = self.items.merge(item.text, raw) if raw else self.items.inject(Injected(item.text))
                    return self._record(merged, is_marked=is_marked)
                case UserWords():
                    return user_words(item)
                case Rules():
                    return self.items.rules(main_item(item.of))
                case _:
                    return replaced.get(item, item)

        # A message without any content left is not sent, since providers refuse empty messages.
        rebuilt = json_array.rebuild(body, parsed, (raw for raw in map(piece, items) if raw != b""))
        return self.breakpoints.mark_head(rebuilt) if is_marked and self.breakpoints else rebuilt

    def _record(self, raw: bytes, *, is_marked: bool) -> bytes:
        return self.breakpoints.mark_record(raw) if is_marked and self.breakpoints else raw

    @staticmethod
    def rewrite_items(raw: bytes | memoryview, change: Callable[[bytes], bytes | None]) -> bytes:
        """Return a message of one or several items, each changed. `change` returns None to leave an item out."""
        return b",".join(changed for item in json_array.split_items(raw) if (changed := change(item)) is not None)


@lru_cache(_REMEMBERED_MODELS)
def _with_path(dialect: Dialect, model: str, stream: bool | None) -> Dialect:
    path_fields = {"model": model} if model else {}
    overrides = path_fields if stream is None else {**path_fields, "stream": stream}
    return replace(dialect, model=model, settings=lambda fields: structs.replace(dialect.settings(fields), **overrides))
