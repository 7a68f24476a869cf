"""The conversation as it is sent, and the steps that may change its messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from msgspec import structs

from policies.conversation.conversation import Conversation, MessageIndex
from policies.decision.large_results import Coming
from policies.decision.media import NO_MEDIA_LIMITS, MediaLimits, Medium, Why
from policies.price import Payoff
from policies.record.recall import Quotation
from proxy.dialects import json_array
from proxy.dialects.reader import CountedRequest


class Step(Enum):
    """A step that may change a message, in order of execution.

    No step changes messages that a record covers, since they are left out (`build_prompt`). The value is the reason in
    an explanation.
    """

    SHORT_FORM = "large, older than {hot_rounds} rounds"
    """`ShortForms.use`, permanently."""
    MEDIA = "images or documents left out, since the upstream limits them"
    """`MediaRemover.remove`."""
    CUT = "too large for the window: only its beginning and end"
    """`ShortForms.cut`: before the message is first sent, and in retries after an overflow."""
    THINKING = "without thinking that belongs to another prompt"
    """`ThinkingRemover.remove`, permanently."""
    QUOTATION = "after {passages} quotations of earlier messages"
    """`Recall.quote`."""
    LOSSLESS = "repeated, or shortened without loss"
    """`LosslessShortener.shorten`."""
    RESTORED = "with the text that it refers to"
    """`PointerResolver.restore`."""


class Shortened(NamedTuple):
    """A result that was shortened without loss: its message, and the tokens saved."""

    message: MessageIndex
    tokens: int


class Restored(NamedTuple):
    """A restored text: the message with the pointer, the message with the text, and the tokens added."""

    pointer: MessageIndex
    source: MessageIndex
    tokens: int


@dataclass(frozen=True, slots=True)
class PromptView:
    """A conversation whose changed messages count with the tokens that are sent.

    replaced:     index of a message -> its other bytes.
    steps:        index of a message -> the steps that changed it.
    next:         the messages that the next batch of short forms takes.
    is_cut:       True if contents were cut that would not have fitted.
    quotations:   index of a message -> the quotation before it.
    payoff:       that of the batches which no earlier request had; None without any.
    media:        those of its body, in order, if any was left out.
    left_out:     the places of the media left out, and the reasons.
    cooled_media: positions of results whose media have cooled down, with the position of the message from which on.
    media_limits: the known limits of its upstream.
    shortened:    results with fewer tokens, without loss.
    restored:     texts in place of pointers. unresolved: the number of pointers to nothing in the request.
    smaller:      the view with fewer restored texts, for a prompt that they make too large; None if it has none.
    full:         the view without shortened and restored results; None if this is it.
    """

    conversation: Conversation
    replaced: dict[MessageIndex, bytes] = field(default_factory=dict)
    steps: Mapping[MessageIndex, tuple[Step, ...]] = field(default_factory=dict)
    next: tuple[Coming, ...] = ()
    is_cut: bool = False
    quotations: Mapping[MessageIndex, Quotation] = field(default_factory=dict)
    payoff: Payoff | None = None
    media: Sequence[Medium] = ()
    left_out: Mapping[tuple[int, int], Why] = field(default_factory=dict)
    cooled_media: Mapping[int, int] = field(default_factory=dict)
    media_limits: MediaLimits = NO_MEDIA_LIMITS
    shortened: tuple[Shortened, ...] = ()
    restored: tuple[Restored, ...] = ()
    unresolved: int = 0
    smaller: PromptView | None = None
    full: PromptView | None = None

    @property
    def without_references(self) -> PromptView:
        """Return the view without references to other messages: lines for repeats, and restored texts."""
        return self if self.full is None else self.full

    @property
    def saved_tokens(self) -> int:
        """Return the tokens saved by results shortened without loss."""
        return sum(result.tokens for result in self.shortened)

    def is_only(self, step: Step) -> bool:
        """Return True if this step changed messages, and no other did."""
        return bool(self.steps) and all({*steps} == {step} for steps in self.steps.values())

    def with_rewrites(self, step: Step, rewritten: Mapping[MessageIndex, tuple[bytes, int]]) -> PromptView:
        """Return the view with other bytes and tokens for these messages."""
        messages = list(self.conversation.messages)
        for index, (_, tokens) in rewritten.items():
            messages[index] = structs.replace(messages[index], tokens=tokens)
        return replace(
            self,
            conversation=self.conversation.with_messages(messages),
            replaced=self.replaced | {index: raw for index, (raw, _) in rewritten.items()},
            steps={**self.steps, **{index: (*self.steps.get(index, ()), step) for index in rewritten}},
            is_cut=self.is_cut or step is Step.CUT,
        )

    def with_quotations(self, request: CountedRequest, quotations: Mapping[MessageIndex, Quotation]) -> PromptView:
        """Return the view with these quotations before messages of the request."""
        rewritten_messages = {}
        for index, quotation in quotations.items():
            # Silent items come before the message that they were read with.
            *silent, main_item = json_array.split_items(self.replaced.get(index) or request.message_bytes(index))
            raw = b",".join([*silent, request.dialect.items.merge(quotation.text, main_item)])
            rewritten_messages[index] = raw, self.conversation.messages[index].tokens + quotation.tokens
        return replace(self.with_rewrites(Step.QUOTATION, rewritten_messages), quotations=quotations)
