"""A dialect is a row of a table, by which requests are read and written without knowing which one it is.

The parts are modules of pure functions, and a class for the items. What all dialects do alike, each with a key or a
name of its own, is no part of them: it is a function that takes the key.
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
    """What a request says beside its items.

    max_output:   the limit of its answer, None without one; output_key: the field by which this client sets it.
    definitions:  what is sent to the model as JSON: tools, formats.
    usage_fields: what makes a stream tell its usage; empty where it does anyway, and where the client has settled it.
    passthrough:  why this shape is only counted and never compacted; None for what we understand.
    reactive:     why it is compacted after an overflow only: the provider is at work on its prompt; None where not.
    label:        what the client calls its session; empty where it has no name for it.
    order:        what its upstream takes of a conversation of which a part is left out.
    least_output: the least that its output's limit may be lowered to.
    strips_thinking: whether its upstream itself leaves out thinking that was made for another prompt.
    compacts:     whether the provider is asked to compact its prompt, or to clear something out of it.
    is_partial:   whether the provider sends the model another prompt than the body holds: with stored state or a
                  template of its own, or without what it clears. Its bill then says nothing about the body.
    answers:      number of answers that are asked for.
    is_enlarged:  whether the provider may add to the prompt: results of tools that it runs, documents, skills.
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
    """Tokens of one call, as the upstream counted them.

    cached, cache_written: those among the prompt's that its cache served, or has taken; cache_written_long: of the
    latter, for an hour. reasoning: those among the completion's that were thought. None where it does not say.
    """

    prompt_tokens: int
    completion_tokens: int
    cached: int | None = None
    cache_written: int | None = None
    cache_written_long: int | None = None
    reasoning: int | None = None

    @property
    def tokens(self) -> Tokens:
        """As a price is asked for them."""
        long = self.cache_written_long or 0
        written = (self.cache_written or 0) - long
        return Tokens(self.prompt_tokens, self.completion_tokens, self.cached or 0, max(0, written), long)


@dataclass(frozen=True, slots=True)
class Ending:
    """How an answer ended: why, the tokens it reports, and whether neither text nor calls came."""

    reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    said_nothing: bool


class ReadsUsage(Protocol):
    """Reads what answers report as used. `data` is of one event, or a whole answer.

    USAGE_KEY:  under which an answer reports its usage, quotes included.
    STREAM:     what a stream is: server-sent events, or an array of JSON, which is passed on and read as an answer is
                that comes in pieces, and has no place for what is ours.
    """

    USAGE_KEY: bytes
    STREAM: StreamForm

    def is_last(self, data: bytes, /) -> bool:
        """Whether the answer is whole with an event that has this data: clients hang up right after it."""

    def usage(self, newest_first: Iterable[bytes], /) -> Usage | None:
        """The last that an answer's events, or the answer as a whole, tell."""


class Answers(ReadsUsage, Protocol):
    """Reads what upstreams answer, and words what we answer ourselves.

    ANSWER_KEY: what stands near the beginning of an answer in JSON, and of no report of an error.
    WAITING:    what a stream of events may begin with, or stand between two of them, while nothing is there to be said.
    KEEPALIVE:  an event that says so to clients who do not hear comments; empty where all do.
    TOO_LONG:   of an overflow, in the words that clients know; holds `{limit}` and `{tokens}`.
    TOO_LONG_FOR_IT: likewise, where no limit is known.
    """

    ANSWER_KEY: bytes
    WAITING: bytes
    KEEPALIVE: bytes
    TOO_LONG: str
    TOO_LONG_FOR_IT: str

    def says_something(self, data: bytes, /) -> bool:
        """Whether an event is more than an announcement: a role, a filter's verdict or a number comes before it."""

    def ending(self, data: bytes, /) -> Ending | None:
        """Of an answer, or of a stream's last event; None where it cannot be read."""

    def is_usage_alone(self, data: bytes, /) -> bool:
        """Whether an event tells nothing but the usage that was asked for."""

    def error_body(self, error: object, status: int, /) -> bytes:
        """The body of an answer that is an error: its fields, or what an upstream has put in their place."""

    def error_event(self, error: object, status: int, /, *, ends: bool) -> bytes:
        """The same in a stream that has begun; `ends` where nothing follows, so that no client waits for more."""


class Questions(Protocol):
    """Asks a model something of ours.

    OUTPUT_KEY: the field that limits an answer, where no client's request says which one the model knows.
    HEADERS:    what a request needs beside its credential, where no client has said it.
    """

    OUTPUT_KEY: str
    HEADERS: Sequence[tuple[bytes, bytes]]

    def room(self, tokens: int, /) -> int:
        """The limit under which so many tokens of text can be answered."""

    def ask(self, model: str, prompt: Prompt, limit: tuple[str, int], temperature: float | None, /) -> bytes:
        """A request of ours; `limit` is of its answer: the field and the tokens."""

    def continuation(
        self, body: bytes, fields: Fields, limit: tuple[str, int], temperature: float | None = None, /
    ) -> bytes | None:
        """A client's request that ends with an instruction of ours, made one of ours: the same prompt to the model,
        so that the provider's cache serves it, and nothing that is not for us. None where it asks for an answer that is
        no text in a way that is part of the prompt."""

    def read(self, body: bytes, /) -> SummaryAnswer | None:
        """The answer to either, its `finish_reason` `stop` where it is whole; None where it is none."""


class Breakpoints(Protocol):
    """Puts marks where a provider's cache is to be written, which caches nothing by itself."""

    def behind_record(self, raw: bytes, /) -> bytes:
        """An item that begins with a text of ours, with a mark on that."""

    def behind_head(self, body: bytes, /) -> bytes:
        """A body with a mark behind its instructions and tools; its items keep their bytes."""


class Recorded(Protocol):
    """Knows bodies and items of a dialect without their path, as they lie in files.

    FIELDS: what of a request beside its items has tokens, or limits its answer.
    """

    FIELDS: Sequence[str]

    def is_body(self, keys: Collection[str], /) -> bool:
        """Whether no other dialect has a request with these fields."""

    def is_item(self, item: object, /) -> bool:
        """Whether no other dialect has such an item."""

    def as_sent(self, item: Mapping[str, object], /) -> Mapping[str, object] | None:
        """An item without what others than clients noted beside it; None for what no client sends."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way to write conversations.

    name:       by which people and configs know it.
    paths:      of its requests; the first is where a question of ours goes.
    array:      where their items stand. settings: what a request's fields say.
    provider, operation: what traces call whoever speaks it and what is asked (OpenTelemetry's `gen_ai` names).
    header:     by which its clients are known on paths of no dialect; None where they are not.
    key_header: where its clients put their key.
    home:       the host that made it. also_at: other hosts that are known to speak it.
    compacts_at: hosts that answer its compaction protocols; all below a name that begins with a dot.
    model_key:  the field of a body that names the model; None where the path alone does.
    without_sealed: an item without sealed reasoning, None for such reasoning; None if a prompt may not lose it.
    breakpoints: for providers that cache only what is marked; None where none speaks it.
    text_kind:  the type of a part of a user's content that is text.
    has_sockets: whether its clients ask for a WebSocket on its path.
    with_output: a body with another limit for its answer, by the `output_key` of its settings.
    compacting: how its clients ask for compactions of the provider's; None where they do not. compact_endpoint: the
                answer of the path for that; clearing: what is left of results that they want cleared.
    model:      what the path of these requests names; empty where it names none.
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
        """Of its requests, without /v1, where no model is named."""
        return self.paths[0].names

    def question_path(self, model: str) -> tuple[str, ...]:
        """The same for requests to this model."""
        return self.paths[0].naming(model)

    @property
    def count_path(self) -> tuple[str, ...] | None:
        """Where the tokens of its requests are counted; None where they are not."""
        return next((path.names for path in self.paths if path.does == "count"), None)

    def of_path(self, model: str, stream: bool | None = None) -> "Dialect":
        """The same of requests whose path names the model, or says whether their answer is a stream: what their bodies
        say of it counts for nothing. Itself where the path says neither."""
        return self if not model and stream is None else _of_path(self, model, stream)

    def model_of(self, body: bytes) -> str:
        """The model of a request, as far as that can be told without understanding its body; empty where it cannot."""
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
        """The body with another array: the client's own bytes but for items of ours, and for those replaced.

        replaced: index of an item -> its other bytes. is_marked: with breakpoints behind head and record, which is the
        user's item among ours.
        """

        def kept(index: MessageIndex) -> bytes:
            return replaced.get(index) or body[slice(*parsed.spans[index])]

        def said(index: MessageIndex) -> bytes:
            """Without what says nothing of its own and was read as a part of it."""
            readable = replaced.get(index) or parsed.text[slice(*parsed.spans[index])]
            return kept(index)[-len(json_array.split_items(readable)[-1]) :]

        def words(item: MessageIndex | UserWords) -> bytes:
            return self.items.words(said(item.of)) if isinstance(item, UserWords) else said(item)

        def piece(item: Item) -> int | bytes:
            match item:
                case Injected(role="assistant"):
                    return self.items.inject(item)
                case Injected():
                    return self._record(self.items.inject(item), is_marked=is_marked)
                case MergedMessage():
                    raw = words(item.into)
                    merged = self.items.merge(item.text, raw) if raw else self.items.inject(Injected(item.text))
                    return self._record(merged, is_marked=is_marked)
                case UserWords():
                    return words(item)
                case Rules():
                    return self.items.rules(said(item.of))
                case _:
                    return replaced.get(item, item)

        # Nothing is sent of a message from which everything was taken: providers refuse an empty one.
        rebuilt = json_array.rebuild(body, parsed, (one for one in map(piece, items) if one != b""))
        return self.breakpoints.behind_head(rebuilt) if is_marked and self.breakpoints else rebuilt

    def _record(self, raw: bytes, *, is_marked: bool) -> bytes:
        return self.breakpoints.behind_record(raw) if is_marked and self.breakpoints else raw

    @staticmethod
    def rewritten(raw: bytes | memoryview, change: Callable[[bytes], bytes | None]) -> bytes:
        """A message of one item or of several, each of them changed; None leaves one out."""
        return b",".join(changed for item in json_array.split_items(raw) if (changed := change(item)) is not None)


@lru_cache(_REMEMBERED_MODELS)
def _of_path(dialect: Dialect, model: str, stream: bool | None) -> Dialect:
    named = {"model": model} if model else {}
    fixed = named if stream is None else {**named, "stream": stream}
    return replace(dialect, model=model, settings=lambda fields: structs.replace(dialect.settings(fields), **fixed))
