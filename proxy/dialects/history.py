"""Messages that the items of a request are read as, carried from one request of a conversation to the next."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import msgspec
from msgspec import structs

from policies.cached import cached_property
from policies.conversation.message import Message, Signature
from policies.conversation.outline import Outline, head_of, may_change_head
from policies.conversation.prefix_digests import Digests
from proxy.dialects.spans import JoinedSpans, Span


class History(msgspec.Struct, frozen=True, dict=True):
    """The messages that items are read as. `messages[i]` ends with item `ends[i] - 1`.

    head:          the number of messages before the body.
    is_signed:     True if any has a signature that providers verify.
    tokens:        those of the messages, without those before a provider's own compaction.
    bypass:        the reason to send a request with these messages unchanged; None for none.
    compacts:      True if any holds content that only a provider's compaction can read.
    has_media:     True if any holds more than text.
    digests:       those of the messages that other requests may begin with too.
    known_outline: the outline of the first messages, as far as it was requested before; None for none.
    remembered:    the shared history that this one continues. It keeps computed values; None for none.
    """

    messages: list[Message] = []
    ends: list[int] = []
    head: int = 0
    is_signed: bool = False
    tokens: int = 0
    bypass: str | None = None
    compacts: bool = False
    has_media: bool = False
    digests: Digests = msgspec.field(default_factory=Digests)
    known_outline: Outline | None = None
    remembered: History | None = None

    @cached_property
    def outline(self) -> Outline:
        """Return the outline of all messages. Most requests are far below their windows and never need it."""
        outline = self.known_outline if self.remembered is None else self.remembered.outline
        return (outline or Outline()).longer(self.messages)

    @property
    def body(self) -> list[Message]:
        """Return the messages after the head."""
        return self.messages[self.head :]

    def spans(self, items: Sequence[Span]) -> Sequence[Span]:
        """Return the spans of the messages, from the spans of the items."""
        return items if len(self.ends) == len(items) else JoinedSpans(items, self.ends)

    def longer(self, items: Sequence[Message], remembered: Sequence[int]) -> list[History]:
        """Return the histories after each of the `remembered` numbers of items, ascending, and last that of all items.

        Histories shorter than this one are left out. Silent items are read as a part of the next item. Items that
        clients drop or keep thus change neither place nor digest of the others.
        """
        messages, ends = _join_history(self, items)
        histories, history = [], self
        for number in remembered:
            if (count := bisect_right(ends, number)) >= len(history.ends):
                history = history._extend(messages[:count], ends[:count], is_last=False)
                histories.append(history)
        return [*histories, history._extend(messages, ends, is_last=True)]  # noqa: SLF001 - same class

    def _extend(self, messages: list[Message], ends: list[int], *, is_last: bool) -> History:
        """Return the history of these messages, which begin with its own. is_last: no request continues it."""
        head, is_signed, tokens, bypass = self.head, self.is_signed, self.tokens, self.bypass
        compacts, has_media = self.compacts, self.has_media
        for message in messages[len(self.messages) :]:
            is_signed = is_signed or message.signed != "none"
            tokens = message.tokens if message.barrier else tokens + message.tokens
            bypass = bypass or message.bypass
            compacts, has_media = compacts or message.compacts, has_media or message.media
        if may_change_head(head, len(self.messages), messages):
            head, _ = head_of(messages)
        facts = (head, is_signed, tokens, bypass, compacts, has_media)
        # The body after a provider's own compaction is new, so no digests of the old body apply.
        digests = self.digests if head == self.head and self.ends else Digests()
        if is_last:
            return History(messages, ends, *facts, digests, remembered=self if self.ends else None)
        outline: Outline | None = self.__dict__.get("outline", self.known_outline)
        return History(messages, ends, *facts, digests.longer(len(messages) - head), outline)


def _join_history(earlier: History, items: Sequence[Message]) -> tuple[list[Message], list[int]]:
    """Return the messages and ends of all items, which begin with those of a known history."""
    messages, ends = [*earlier.messages], [*earlier.ends]
    start = earlier.ends[-1] if earlier.ends else 0
    for at in range(start, len(items)):
        message = items[at]
        if message.silent and at + 1 < len(items):  # a last silent item has no next one to join
            continue
        messages.append(_join_silent(items[start:at], message) if start < at else message)
        ends.append(at + 1)
        start = at + 1
    return messages, ends


def _join_silent(silent: Sequence[Message], message: Message) -> Message:
    signed = {m.signed for m in (*silent, message)}
    strictest: Signature = "bound" if "bound" in signed else "sealed" if "sealed" in signed else "none"
    return structs.replace(message, tokens=message.tokens + sum(m.tokens for m in silent), signed=strictest)


NO_HISTORY = History()
