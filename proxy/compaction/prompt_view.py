"""The conversation as it is sent, and the index of all that may change a message of it."""

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
    """What may change a message that is sent, in the order in which it is done.

    None changes what a record covers, which is left out (`build_prompt`). The value says why, to those who explain a
    request.
    """

    SHORT_FORM = "large, older than {hot_rounds} rounds"
    """`ShortForms.use`, for good."""
    MEDIA = "pictures or papers of it left out, for which its upstream has no room"
    """`MediaRemover.remove`."""
    CUT = "no window takes it whole: its beginning and its end"
    """`ShortForms.cut`: before it is first sent, and down the ladder."""
    THINKING = "without thinking that belongs to another prompt"
    """`ThinkingRemover.remove`, for good."""
    QUOTATION = "behind {passages} quotations from before it"
    """`Recall.quote`."""
    LOSSLESS = "said before, or shorter without loss"
    """`LosslessShortener.shorten`."""
    RESTORED = "with the text that it points to"
    """`PointerResolver.restore`."""


class Shortened(NamedTuple):
    """A result that was shortened without loss: its message, and the tokens that it saves."""

    message: MessageIndex
    tokens: int


class Restored(NamedTuple):
    """A text that is put back: the message with the pointer, the one that the text is from, and the tokens it adds."""

    pointer: MessageIndex
    source: MessageIndex
    tokens: int


@dataclass(frozen=True, slots=True)
class PromptView:
    """A conversation in which changed messages weigh what is sent of them.

    replaced: index of a message -> its other bytes. steps: index of a message -> what has changed it.
    next: what the next batch of short forms takes.
    is_cut: whether contents were cut that would not have fitted.
    quotations: index of a message -> what is quoted in front of it.
    payoff: of the batches that no request had carried before this one; None without any.
    media: of its body, in their order, if any was left out; left_out: the places of those that were, and why.
    cooled_media: positions of results whose media have cooled down, with the messages of the body from which on.
    media_limits: what its upstream takes of media, as far as that is known.
    shortened: results in fewer tokens without loss.
    restored: texts that stand in the place of pointers. unresolved: pointers to what is not in the request.
    smaller: the same with less of these texts, for a prompt that they make too large; None if it has none.
    full: the same before results were shortened without loss and texts put back; None if it is that itself.
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
        """The view without what refers to other messages: lines for repeats, and texts that are put back."""
        return self if self.full is None else self.full

    @property
    def saved_tokens(self) -> int:
        """Return the tokens that results shortened without loss save."""
        return sum(one.tokens for one in self.shortened)

    def is_only(self, step: Step) -> bool:
        """Return True if this changed messages, and nothing else did."""
        return bool(self.steps) and all({*steps} == {step} for steps in self.steps.values())

    def rewritten(self, step: Step, others: Mapping[MessageIndex, tuple[bytes, int]]) -> PromptView:
        """The same with other bytes, of so many tokens, for these messages."""
        messages = list(self.conversation.messages)
        for index, (_, tokens) in others.items():
            messages[index] = structs.replace(messages[index], tokens=tokens)
        return replace(
            self,
            conversation=self.conversation.with_messages(messages),
            replaced=self.replaced | {index: raw for index, (raw, _) in others.items()},
            steps={**self.steps, **{index: (*self.steps.get(index, ()), step) for index in others}},
            is_cut=self.is_cut or step is Step.CUT,
        )

    def quoting(self, request: CountedRequest, quotations: Mapping[MessageIndex, Quotation]) -> PromptView:
        """The same with these in front of messages of the request."""
        others = {}
        for index, one in quotations.items():
            # Items that say nothing of their own stand before the message that they were read with.
            *silent, said = json_array.split_items(self.replaced.get(index) or request.message_bytes(index))
            raw = b",".join([*silent, request.dialect.items.merge(one.text, said)])
            others[index] = raw, self.conversation.messages[index].tokens + one.tokens
        return replace(self.rewritten(Step.QUOTATION, others), quotations=quotations)
