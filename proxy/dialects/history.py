"""What the items of a request are read as, carried from one request of a conversation to the next."""

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
    """The messages that items are read as: `messages[i]` ends with item `ends[i] - 1`.

    head:      how many of them stand before the body. is_signed: whether any carries what providers verify.
    tokens:    of the messages, without those before a provider's own compaction.
    bypass:    why a request that holds these goes out as it came; None for no reason.
    compacts:  whether any holds what only a provider's compaction knows. has_media: whether any holds more than text.
    digests:   of the messages that other requests may begin with too.
    begun:     the outline of as many of its first messages as somebody has asked for; None for none.
    remembered: what it goes on from, and other requests may too: it keeps what is worked out; None for nothing.
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
    begun: Outline | None = None
    remembered: History | None = None

    @cached_property
    def outline(self) -> Outline:
        """Of all messages. Most requests are far below their windows, and nobody asks for it."""
        begun = self.begun if self.remembered is None else self.remembered.outline
        return (begun or Outline()).longer(self.messages)

    @property
    def body(self) -> list[Message]:
        return self.messages[self.head :]

    def spans(self, items: Sequence[Span]) -> Sequence[Span]:
        """Where its messages stand, of items that stand there."""
        return items if len(self.ends) == len(items) else JoinedSpans(items, self.ends)

    def longer(self, items: Sequence[Message], remembered: Sequence[int]) -> list[History]:
        """The histories of as many items as each of the `remembered` numbers says, ascending, and at last that of all;
        none that would be shorter than this one.

        Items that say nothing of their own are read as a part of what follows them: so wherever clients drop or keep
        them, all that is left has the same place and the same digest.
        """
        messages, ends = _join_history(self, items)
        found, last = [], self
        for number in remembered:
            if (count := bisect_right(ends, number)) >= len(last.ends):
                last = last._on(messages[:count], ends[:count], is_last=False)
                found.append(last)
        return [*found, last._on(messages, ends, is_last=True)]  # noqa: SLF001 - of its own class

    def _on(self, messages: list[Message], ends: list[int], *, is_last: bool) -> History:
        """The history of these, which begin with its own. is_last: no request goes on from it."""
        head, is_signed, tokens, bypass = self.head, self.is_signed, self.tokens, self.bypass
        compacts, has_media = self.compacts, self.has_media
        for message in messages[len(self.messages) :]:
            is_signed = is_signed or message.signed != "none"
            tokens = message.tokens if message.barrier else tokens + message.tokens
            bypass = bypass or message.bypass
            compacts, has_media = compacts or message.compacts, has_media or message.media
        if may_change_head(head, len(self.messages), messages):
            head, _ = head_of(messages)
        told = (head, is_signed, tokens, bypass, compacts, has_media)
        # Behind a provider's own compaction there is another body: of the old one nothing is known of it.
        digests = self.digests if head == self.head and self.ends else Digests()
        if is_last:
            return History(messages, ends, *told, digests, remembered=self if self.ends else None)
        begun: Outline | None = self.__dict__.get("outline", self.begun)
        return History(messages, ends, *told, digests.longer(len(messages) - head), begun)


def _join_history(known: History, items: Sequence[Message]) -> tuple[list[Message], list[int]]:
    """Messages and ends of the whole of what begins with the known one."""
    messages, ends = [*known.messages], [*known.ends]
    start = known.ends[-1] if known.ends else 0
    for at in range(start, len(items)):
        message = items[at]
        if message.silent and at + 1 < len(items):  # what nothing follows yet stands for itself
            continue
        messages.append(_behind(items[start:at], message) if start < at else message)
        ends.append(at + 1)
        start = at + 1
    return messages, ends


def _behind(silent: Sequence[Message], message: Message) -> Message:
    signed = {m.signed for m in (*silent, message)}
    strictest: Signature = "bound" if "bound" in signed else "sealed" if "sealed" in signed else "none"
    return structs.replace(message, tokens=message.tokens + sum(m.tokens for m in silent), signed=strictest)


NO_HISTORY = History()
