"""What a dialect is: a row of a table, by which requests are read and written without knowing which one it is.

The parts are modules of pure functions. What all dialects do alike, each with a key or a name of its own, is no part of
them: it is a function beside them that takes the key.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from policies.assembly import Injected, Item, Merged
from policies.conversation import Message, MessageIndex
from policies.record.prompting import Prompt
from policies.record.validation import Answer
from policies.transcript import CountTokens, Utterance
from proxy.dialects import json_array
from proxy.dialects.json_array import Array, Parsed

Fields = Mapping[str, msgspec.Raw]


@dataclass(frozen=True, slots=True)
class Settings:
    """What a request says beside its items.

    max_output:   the limit of its answer, None without one; output_key: the field by which this client sets it.
    definitions:  what is sent to the model as JSON: tools, formats.
    usage_fields: what makes a stream tell its usage; empty where it does anyway, and where the client has settled it.
    passthrough:  why this shape is only counted and never compacted; None for what we understand.
    """

    model: str
    stream: bool
    max_output: int | None
    output_key: str
    definitions: tuple[msgspec.Raw, ...]
    usage_fields: Mapping[str, object]
    passthrough: str | None


class Items(Protocol):
    """Reads and writes single items: what stands in the array of a request."""

    def describe(self, item: object, count: CountTokens, family: str = "", /) -> Message | None:
        """What the policies need to know of a decoded item; None for what is none.

        `family` is whose media formulas hold, as of `media.family_of`.
        """

    def utterances(self, item: object, position: int, tools: Sequence[str | None], /) -> list[Utterance]:
        """What a decoded item says, by role; `tools` are those whose results it holds, in their order."""

    def injected(self, item: Injected, /) -> bytes:
        """An item of ours."""

    def merged(self, text: str, raw: bytes | memoryview, /) -> bytes:
        """An item whose content begins with a text of ours; what it said itself keeps its bytes."""

    def with_text(self, raw: bytes | memoryview, text: str, /) -> bytes:
        """An item with another text for its content; nothing else changes."""

    def shortened(self, raw: bytes | memoryview, share: float, /) -> bytes:
        """An item in which every text keeps this share of its length; what links it to others stays."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call, as the upstream counted them; those it had cached are among the prompt's."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Ending:
    """How an answer ended: why, the tokens it reports, and whether neither text nor calls came."""

    reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    said_nothing: bool


class Answers(Protocol):
    """Reads what upstreams answer, and words what we answer ourselves. `data` is of one event, or a whole answer.

    ANSWER_KEY: what stands near the beginning of an answer in JSON, and of no report of an error.
    WAITING:    what a stream may begin with while nothing is there to be said.
    """

    ANSWER_KEY: bytes
    WAITING: bytes

    def says_something(self, data: bytes, /) -> bool:
        """Whether an event is more than an announcement: a role, a filter's verdict or a number comes before it."""

    def ending(self, data: bytes, /) -> Ending | None:
        """Of an answer, or of a stream's last event; None where it cannot be read."""

    def usage(self, newest_first: Iterable[bytes], /) -> Usage | None:
        """The last that an answer's events, or the answer as a whole, tell."""

    def is_usage_alone(self, data: bytes, /) -> bool:
        """Whether an event tells nothing but the usage that was asked for."""

    def error_body(self, error: object, /) -> bytes:
        """The body of an answer that is an error: its fields, or what an upstream has put in their place."""

    def error_event(self, error: object, /, *, ends: bool) -> bytes:
        """The same in a stream that has begun; `ends` where nothing follows, so that no client waits for more."""


class Questions(Protocol):
    """Asks a model something of ours.

    OUTPUT_KEY: the field that limits an answer, where no client's request says which one the model knows.
    """

    OUTPUT_KEY: str

    def ask(self, model: str, prompt: Prompt, limit: tuple[str, int], temperature: float | None, /) -> bytes:
        """A request of ours; `limit` is of its answer: the field and the tokens."""

    def continued(self, body: bytes, fields: Fields, limit: tuple[str, int], /) -> bytes:
        """A client's request that ends with an instruction of ours, made one of ours: the same prompt to the model,
        so that the provider's cache serves it, and nothing that is not for us."""

    def read(self, body: bytes, /) -> Answer | None:
        """The answer to either; None where it is none."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way to write conversations.

    path:     of its requests, without /v1. array: where their items stand.
    settings: what a request's fields say.
    """

    path: tuple[str, ...]
    array: Array
    settings: Callable[[Fields], Settings]
    items: Items
    answers: Answers
    questions: Questions

    def rebuild(
        self, body: bytes, parsed: Parsed, items: Sequence[Item], replaced: Mapping[MessageIndex, bytes]
    ) -> bytes:
        """The body with another array: the client's own bytes but for items of ours, and for those replaced.

        replaced: index of an item -> its other bytes.
        """

        def piece(item: Item) -> int | bytes:
            match item:
                case Injected():
                    return self.items.injected(item)
                case Merged():
                    kept = replaced.get(item.into) or body[slice(*parsed.spans[item.into])]
                    return self.items.merged(item.text, kept)
                case _:
                    return replaced.get(item) or item

        return json_array.rebuild(body, parsed, map(piece, items))
