"""What clients ask of a provider's own compaction, and what it puts into their histories, whichever dialect it is.

Five ways to ask (Concertina's names): OpenAI's endpoint `/responses/compact`, the item `compaction_trigger`, and
`context_management` with a threshold; Anthropic's edit `compact_20260112`, and `compaction` on demand. Beside them
Anthropic's `clear_tool_uses_20250919`.
Sources: developers.openai.com/api/docs/guides/compaction; platform.claude.com/docs/en/build-with-claude/compaction and
/context-editing; the types of openai-python 3.57 and anthropic-python 2.13.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec

from proxy.errors import InvalidRequestError

How = Literal["endpoint", "trigger", "threshold", "edit", "demand"]
"""How a client asks for a compaction."""

AT_ONCE: frozenset[How] = frozenset({"endpoint", "trigger", "demand"})
"""Those that are asked for nothing else: no model answers them."""


class CompactionRequestError(InvalidRequestError):
    """A compaction is asked for in a way that the provider refuses; in its words, and by its code."""

    code = "invalid_value"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        """`details`: what Anthropic's errors hold beside their message."""
        super().__init__(message, param=param)
        self._details = details
        if code is not None:
            self.code = code

    def fields(self) -> dict[str, object]:
        return super().fields() if self._details is None else {**super().fields(), "details": self._details}


@dataclass(frozen=True, slots=True)
class Clearing:
    """Results of tools that are to be left out (`clear_tool_uses_20250919`).

    at, counts: from so many tokens, or uses of tools, on. keep: the newest uses that stay as they are.
    at_least: tokens that have to be freed; None for any. excluded: tools that are left alone. inputs: whether calls
    lose their inputs too: all, or those of these tools.
    """

    at: int
    counts: Literal["input_tokens", "tool_uses"]
    keep: int
    at_least: int | None = None
    excluded: frozenset[str] = frozenset()
    inputs: bool | frozenset[str] = False


@dataclass(frozen=True, slots=True)
class CompactionRequest:
    """What one request asks for.

    how:          None where it asks for no compaction. threshold: tokens from which on; None for whenever we would.
    instructions: for the summary, in place of the provider's own; empty for none. pauses: no model is asked then.
    clearing:     None for none. is_first: whether it comes before the compaction.
    """

    how: How | None = None
    threshold: int | None = None
    instructions: str = ""
    pauses: bool = False
    clearing: Clearing | None = None
    leaves: Mapping[str, object] = field(default_factory=dict)
    """Of the fields that ask for it, what goes upstream all the same."""


NOTHING = CompactionRequest()


@dataclass(frozen=True, slots=True)
class Held:
    """A compaction that stands in an item of the array.

    sealed: what only its maker can read, as it came; None for nothing. text: what anybody can; None for nothing.
    how:    by which way of asking it was made. is_required: whether one of both has to be there.
    behind: what else the item holds, as an item of its own; None for nothing. mark: for a cache, that stands on it.
    """

    sealed: object
    text: str | None = None
    how: How | None = None
    is_required: bool = True
    behind: bytes | None = None
    mark: object = None


@dataclass(frozen=True, slots=True)
class CompactionCost:
    """Tokens of the calls that made an item; 0 where no model was asked."""

    prompt: int = 0
    output: int = 0
    cached: int = 0


@dataclass(frozen=True, slots=True)
class CompactionAnswer:
    """What is answered in the place of a model.

    name:  of the answer. at: Unix seconds. model: that was asked for. how: in which way.
    item:  the compaction; empty before there is one. edits: what else was done to the prompt.
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
        return str(self.item.get("id") or f"cmp_{self.name}")


class Inserter(Protocol):
    """Puts an item into the answer of a model; one per answer."""

    def events(self, event: dict[str, object], /) -> list[dict[str, object]]:
        """What stands in the place of an event of its stream, each with its `type`."""

    def whole(self, answer: dict[str, object], /) -> dict[str, object]:
        """The same of an answer that is one object."""


class Compacting(Protocol):
    """Reads what is asked for, and writes what is answered.

    FIELDS: of a body that ask for it. BETAS: how the names begin that stand for it in `anthropic-beta`.
    DROPS_BEFORE: whether the provider reads nothing of what stands before an item.
    """

    FIELDS: Sequence[str]
    BETAS: Sequence[str]
    DROPS_BEFORE: bool

    def parse_request(
        self, fields: Mapping[str, msgspec.Raw], items: Mapping[int, object], length: int, /
    ) -> CompactionRequest:
        """What a request of so many items asks for by its fields, and by those of its items that `compacts`; raises
        CompactionRequestError."""

    def find_compaction(self, item: object, raw: bytes, /) -> Held | None:
        """The compaction in an item; None for an item without one."""

    def is_question(self, item: object, /) -> bool:
        """Whether an item asks for a compaction, and says nothing else."""

    def malformed_item_error(self, position: int, /) -> CompactionRequestError:
        """The refusal of an item that holds nothing sealed."""

    def unreadable(self, position: int, reason: str, how: How | None, /) -> CompactionRequestError:
        """The refusal of an item that cannot be opened, in the provider's words."""

    def unfinished_calls_error(self, items: Sequence[object], /) -> CompactionRequestError | None:
        """The refusal of a question behind calls without a result; None where all have theirs."""

    def item_of(self, sealed: str, text: str, name: str, how: How | None, /) -> Mapping[str, object]:
        """An item of ours as it is answered; `text` is the record's."""

    def whole(self, answer: CompactionAnswer, /) -> bytes:
        """An answer that is a compaction alone, as JSON."""

    def opening(self, answer: CompactionAnswer, /) -> Iterator[bytes]:
        """How the stream of one begins, before there is an item."""

    def at_work(self, answer: CompactionAnswer, /) -> bytes:
        """What the stream says while a model is asked; empty for nothing."""

    def closing(self, answer: CompactionAnswer, /, *, is_told: bool) -> Iterator[bytes]:
        """How it ends; `is_told`: whether `at_work` stood before it."""

    def inserter(self, answer: CompactionAnswer, /) -> Inserter:
        """Puts the item of an answer in front of what a model says."""

    def failing(self, answer: CompactionAnswer, message: str, /, *, is_told: bool) -> bytes:
        """How it ends where no item could be made."""


class CompactEndpoint(Protocol):
    """Writes what the endpoint answers."""

    def kept_user(self, item: object, /) -> Mapping[str, object] | None:
        """A user's message as the answer of the endpoint repeats it, with an id only if it has one; None for any other
        item."""

    def answer_of(self, answer: CompactionAnswer, kept: Sequence[Mapping[str, object]], /) -> bytes:
        """The answer of the endpoint."""


class ClearingForms(Protocol):
    """Writes what is left of results that a client wants to be cleared."""

    def clear(self, raw: bytes, results: Collection[int], calls: Collection[str], /) -> bytes:
        """An item without the contents of these results, counted from its first, and the inputs of these calls."""

    def applied_edits(self, uses: int, tokens: int, /) -> Mapping[str, object]:
        """What is told of results that were cleared."""

    def with_original(self, counted: bytes, tokens: int, /) -> bytes:
        """The count of a request's tokens, with how many more it had before."""
