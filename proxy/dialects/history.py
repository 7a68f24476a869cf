"""What the items of a request are read as, carried from one request of a conversation to the next."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import msgspec
from msgspec import structs

from policies.chain import Digests
from policies.message import Message, Signature
from policies.outline import Outline

Span = tuple[int, int]


class History(msgspec.Struct, frozen=True):
    """The messages that items are read as: `messages[i]` has the bytes `spans[i]` and ends with item `ends[i]`.

    tokens: of the messages, without those before a provider's own compaction.
    outline: of all messages. digests: of those that other requests may begin with too. bypass: why a request that
    holds these goes out as it came; None for no reason.
    """

    spans: list[Span] = []
    messages: list[Message] = []
    ends: list[int] = []
    outline: Outline = msgspec.field(default_factory=Outline)
    digests: Digests = msgspec.field(default_factory=Digests)
    bypass: str | None = None
    tokens: int = 0

    def longer(self, spans: Sequence[Span], items: Sequence[Message], remembered: Sequence[int]) -> list[History]:
        """The histories of as many items as each of the `remembered` numbers says, ascending, and at last that of all;
        none that would be shorter than this one.

        Items that say nothing of their own are read as a part of what follows them: so wherever clients drop or keep
        them, all that is left has the same place and the same digest.
        """
        spans, messages, ends = _joined(self, spans, items)
        found, last = [], self
        for number in remembered:
            if (count := bisect_right(ends, number)) < len(last.ends):
                continue
            known = messages[:count]
            outline = last.outline.longer(known)
            digests = last.digests.longer(outline.length)
            last = History(spans[:count], known, ends[:count], outline, digests, *_told(last, known))
            found.append(last)
        outline, told = last.outline.longer(messages), _told(last, messages)
        return [*found, History(spans, messages, ends, outline, last.digests if last.ends else Digests(), *told)]


def _told(known: History, messages: Sequence[Message]) -> tuple[str | None, int]:
    """`bypass` and `tokens` of these messages, which begin with the known ones."""
    bypass, tokens = known.bypass, known.tokens
    for message in messages[len(known.messages) :]:
        bypass = bypass or message.bypass
        tokens = message.tokens if message.barrier else tokens + message.tokens
    return bypass, tokens


def _joined(
    known: History, spans: Sequence[Span], items: Sequence[Message]
) -> tuple[list[Span], list[Message], list[int]]:
    """Spans, messages and ends of the whole of what begins with the known one."""
    joined, messages, ends = [*known.spans], [*known.messages], [*known.ends]
    start = known.ends[-1] if known.ends else 0
    for at in range(start, len(items)):
        message = items[at]
        if message.silent and at + 1 < len(items):  # what nothing follows yet stands for itself
            continue
        joined.append((spans[start][0], spans[at][1]))
        messages.append(_behind(items[start:at], message) if start < at else message)
        ends.append(at + 1)
        start = at + 1
    return joined, messages, ends


def _behind(silent: Sequence[Message], message: Message) -> Message:
    signed = {m.signed for m in (*silent, message)}
    strictest: Signature = "bound" if "bound" in signed else "sealed" if "sealed" in signed else "none"
    return structs.replace(message, tokens=message.tokens + sum(m.tokens for m in silent), signed=strictest)


NO_HISTORY = History()
