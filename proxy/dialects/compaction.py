"""Requests for a provider's compaction, and its items in histories, in any dialect.

There are five ways to ask (Concertina's names): OpenAI's endpoint `/responses/compact`, the item `compaction_trigger`,
and `context_management` with a threshold; Anthropic's edit `compact_20260112`, and `compaction` on demand. Anthropic's
`clear_tool_uses_20250919` is handled here too.
Sources: developers.openai.com/api/docs/guides/compaction; platform.claude.com/docs/en/build-with-claude/compaction and
         /context-editing; the types of openai-python 3.57 and anthropic-python 2.13.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec

from proxy.errors import InvalidRequestError

How = Literal["endpoint", "trigger", "threshold", "edit", "demand"]
"""The way in which a client asks for a compaction."""

AT_ONCE: frozenset[How] = frozenset({"endpoint", "trigger", "demand"})
"""The ways that ask only for a compaction and get no response of a model."""


class CompactionRequestError(InvalidRequestError):
    """The request asks for a compaction in a way that the provider rejects. Message and code are the provider's."""

    code = "invalid_value"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        """Create an error. details: fields that Anthropic's errors have besides the message."""
        super().__init__(message, param=param)
        self._details = details
        if code is not None:
            self.code = code

    def fields(self) -> dict[str, object]:
        """Return the fields of the error, with its details if it has any."""
        return super().fields() if self._details is None else {**super().fields(), "details": self._details}


@dataclass(frozen=True, slots=True)
class Clearing:
    """Tool results to leave out (`clear_tool_uses_20250919`).

    at, counts: the number of tokens or tool uses from which results are cleared.
    keep:       the number of newest uses that stay unchanged.
    at_least:   tokens that have to be freed; None for any.
    excluded:   tools whose results stay.
    inputs:     True if calls lose their inputs too, or the tools whose calls do.
    """

    at: int
    counts: Literal["input_tokens", "tool_uses"]
    keep: int
    at_least: int | None = None
    excluded: frozenset[str] = frozenset()
    inputs: bool | frozenset[str] = False


@dataclass(frozen=True, slots=True)
class CompactionRequest:
    """The compaction that one request asks for.

    how:          None if it asks for no compaction.
    threshold:    tokens from which to compact; None for the proxy's own threshold.
    instructions: instructions for the summary that replace the provider's own; empty for none.
    pauses:       True if no model is called after the compaction.
    clearing:     None for none.
    """

    how: How | None = None
    threshold: int | None = None
    instructions: str = ""
    pauses: bool = False
    clearing: Clearing | None = None
    kept_fields: Mapping[str, object] = field(default_factory=dict)
    """The fields among those of the request that still go upstream."""


NOTHING = CompactionRequest()


@dataclass(frozen=True, slots=True)
class HeldCompaction:
    """A compaction in an item of the array.

    sealed:      the content that only its maker can read, as received; None for none.
    text:        the readable content; None for none.
    how:         the way of asking by which it was made.
    is_required: True if either content must be present.
    remainder:   the other content of the item, as an item of its own; None for none.
    mark:        its cache mark.
    """

    sealed: object
    text: str | None = None
    how: How | None = None
    is_required: bool = True
    remainder: bytes | None = None
    mark: object = None


@dataclass(frozen=True, slots=True)
class CompactionCost:
    """Tokens of the calls that made an item; 0 if no model was called."""

    prompt: int = 0
    output: int = 0
    cached: int = 0


@dataclass(frozen=True, slots=True)
class CompactionAnswer:
    """The proxy's response to a request for a compaction.

    name:  the id of the response, without its prefix.
    at:    Unix seconds.
    model: the requested model.
    how:   the way of asking.
    item:  the compaction; empty until it is made.
    edits: the other edits of the prompt.
    """

    name: str
    at: int
    model: str
    item: Mapping[str, object] = field(default_factory=dict)
    spent: CompactionCost = CompactionCost()
    how: How | None = None
    edits: Sequence[Mapping[str, object]] = ()

    @property
    def item_id(self) -> str:
        """Return the id of the compaction item."""
        return str(self.item.get("id") or f"cmp_{self.name}")


class Inserter(Protocol):
    """Inserts an item into a model's response. One per response."""

    def events(self, event: dict[str, object], /) -> list[dict[str, object]]:
        """Return the events that replace one event of the stream, each with its `type`."""

    def full_response(self, answer: dict[str, object], /) -> dict[str, object]:
        """Return a response that is one object, with the item inserted."""


class Compacting(Protocol):
    """Reads requests for a compaction, and writes the responses.

    FIELDS:       the fields of a body that ask for one.
    BETAS:        prefixes of its names in `anthropic-beta`.
    DROPS_BEFORE: True if the provider ignores everything before a compaction item.
    """

    FIELDS: Sequence[str]
    BETAS: Sequence[str]
    DROPS_BEFORE: bool

    def parse_request(
        self, fields: Mapping[str, msgspec.Raw], items: Mapping[int, object], length: int, /
    ) -> CompactionRequest:
        """Return the compaction that a request asks for. Raises CompactionRequestError.

        items: those of its items that concern compaction, by index. length: the number of all items.
        """

    def find_compaction(self, item: object, raw: bytes, /) -> HeldCompaction | None:
        """Return the compaction in an item; None if it has none."""

    def is_question(self, item: object, /) -> bool:
        """Return True if an item only asks for a compaction."""

    def malformed_item_error(self, position: int, /) -> CompactionRequestError:
        """Return the error for an item without sealed content."""

    def unreadable(self, position: int, reason: str, how: How | None, /) -> CompactionRequestError:
        """Return the error for an item that cannot be opened, in the provider's words."""

    def unfinished_calls_error(self, items: Sequence[object], /) -> CompactionRequestError | None:
        """Return the error for a question after calls without results; None if all calls have results."""

    def item_of(self, sealed: str, text: str, name: str, how: How | None, /) -> Mapping[str, object]:
        """Return a compaction item of the proxy for a response. text: the record's."""

    def full_response(self, answer: CompactionAnswer, /) -> bytes:
        """Return a response with only a compaction, as JSON."""

    def opening(self, answer: CompactionAnswer, /) -> Iterator[bytes]:
        """Yield the events that begin the stream, before there is an item."""

    def progress(self, answer: CompactionAnswer, /) -> bytes:
        """Return the event sent while a model is called; empty for none."""

    def closing(self, answer: CompactionAnswer, /, *, has_progress: bool) -> Iterator[bytes]:
        """Yield the events that end the stream. has_progress: True if `progress` was sent before."""

    def inserter(self, answer: CompactionAnswer, /) -> Inserter:
        """Return an inserter that puts the item before the content of a model."""

    def failing(self, answer: CompactionAnswer, message: str, /, *, has_progress: bool) -> bytes:
        """Return the events that end the stream if no item could be made."""


class CompactEndpoint(Protocol):
    """Writes responses of the endpoint `/responses/compact`."""

    def kept_user(self, item: object, /) -> Mapping[str, object] | None:
        """Return a user's message as the endpoint repeats it; None for any other item.

        Only a message with an id keeps one.
        """

    def answer_of(self, answer: CompactionAnswer, kept: Sequence[Mapping[str, object]], /) -> bytes:
        """Return the response of the endpoint."""


class ClearingForms(Protocol):
    """Writes the remainder of results that a client wants cleared."""

    def clear(self, raw: bytes, results: Collection[int], calls: Collection[str], /) -> bytes:
        """Return an item without the contents of these results and the inputs of these calls. Results count from 0."""

    def applied_edits(self, uses: int, tokens: int, /) -> Mapping[str, object]:
        """Return the entry that reports cleared results."""

    def with_original(self, counted: bytes, tokens: int, /) -> bytes:
        """Return the token count of a request, with the count before clearing added."""
