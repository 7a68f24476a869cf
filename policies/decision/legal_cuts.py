"""Where a conversation may be cut: body[:c] is summarized, body[c:] stays (docs/design.md, "The cut")."""

from bisect import bisect_left
from itertools import accumulate, pairwise

from policies.conversation.conversation import Conversation


def legal_cuts(conversation: Conversation) -> list[int]:
    """Every legal cut, ascending; 0 and len(body) are none.

    A cut never separates a call from its result, however late that comes, a user message from what follows it at once
    (so neither two user messages), nor a tool loop from the signed thinking that its upstream wants there. A call that
    has no result at all only forbids the cut behind its unit: the result may be on its way. What only the provider has
    is never covered. Nor does a cut leave a record of ours that the client carries, or stand right behind it. A cut
    whose record was undone is none either.
    """
    outline, forbidden = conversation.outline, _signed_loops(conversation) | conversation.barred
    last = len(conversation.body) if outline.stored is None else outline.stored
    parted = [*accumulate(outline.parted)]
    first = 0 if conversation.carried is None else conversation.carried + 2
    return [cut for cut in outline.cuttable if first <= cut <= last and not parted[cut] and cut not in forbidden]


def _signed_loops(conversation: Conversation) -> set[int]:
    """Positions inside of a turn where a tool loop may not begin, for want of thinking that its upstream verifies."""
    signed, wanted = conversation.outline.signed, conversation.order.thinking
    forbidden: set[int] = set()
    if wanted == "free":
        return forbidden
    for start, end in pairwise([*conversation.outline.prompts, len(conversation.body)]):
        before = bisect_left(signed, end)
        if wanted == "leading":
            forbidden.update({*range(start + 1, end)}.difference(signed[bisect_left(signed, start) : before]))
        elif before and signed[before - 1] >= start:
            forbidden.update(range(signed[before - 1] + 1, end))
    return forbidden
