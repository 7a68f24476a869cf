"""The legal cuts of a conversation: body[:c] is summarized, body[c:] stays (docs/design.md, "The cut")."""

from bisect import bisect_left
from itertools import accumulate, pairwise

from policies.conversation.conversation import Conversation


def legal_cuts(conversation: Conversation) -> list[int]:
    """Return every legal cut in ascending order, without 0 and len(body).

    A cut never separates:
    - a call from its result, however late the result comes,
    - a user message from the messages right after it (and so no two user messages),
    - a tool loop from the signed thinking that its upstream requires there.
    A call without a result forbids only the cut after its unit, since the result may still come. Messages that only the
    provider has are never covered. A cut is not legal within or right after a record that the client carries, and not
    if its record was undone.
    """
    outline, forbidden = conversation.outline, _signed_loops(conversation) | conversation.barred
    last_cut = len(conversation.body) if outline.stored is None else outline.stored
    separated = [*accumulate(outline.parted)]
    first_cut = 0 if conversation.carried is None else conversation.carried + 2
    return [
        cut for cut in outline.cuttable if first_cut <= cut <= last_cut and not separated[cut] and cut not in forbidden
    ]


def _signed_loops(conversation: Conversation) -> set[int]:
    """Return the positions in turns where a tool loop may not begin because the signed thinking would be missing."""
    signed, required = conversation.outline.signed, conversation.order.thinking
    forbidden: set[int] = set()
    if required == "free":
        return forbidden
    for start, end in pairwise([*conversation.outline.prompts, len(conversation.body)]):
        signed_before_end = bisect_left(signed, end)
        if required == "leading":
            forbidden.update(
                {*range(start + 1, end)}.difference(signed[bisect_left(signed, start) : signed_before_end])
            )
        elif signed_before_end and signed[signed_before_end - 1] >= start:
            forbidden.update(range(signed[signed_before_end - 1] + 1, end))
    return forbidden
