"""Where a conversation may be cut: body[:c] is summarized, body[c:] stays (docs/design.md, section 4)."""

from __future__ import annotations

from itertools import pairwise

from policies.conversation import Conversation


def legal_cuts(conversation: Conversation) -> list[int]:
    """Every legal cut, ascending; 0 and len(body) are none.

    A cut never separates a call from its result, a user message from what follows it at once (so neither two user
    messages), nor a tool loop whose earlier part alone carries signatures.
    """
    answered = _answered_units(conversation)
    signed = _signed_loops(conversation)
    body = conversation.body
    units = conversation.units
    return [
        cut for unit, cut in pairwise(units) if body[cut - 1].role != "user" and unit in answered and cut not in signed
    ]


def _answered_units(conversation: Conversation) -> set[int]:
    """Starts of the units in which every tool call has its result."""
    body, units = conversation.body, conversation.units
    answered = set()
    for start, end in pairwise([*units, len(body)]):
        calls = body[start].calls
        if not calls or {body[i].answers for i in range(start, end)}.issuperset(calls):
            answered.add(start)
    return answered


def _signed_loops(conversation: Conversation) -> set[int]:
    """Positions inside a turn with a signed message before them and none after them in that turn."""
    body = conversation.body
    forbidden: set[int] = set()
    for start, end in pairwise([*conversation.turns, len(body)]):
        signed = [i for i in range(start, end) if body[i].signed]
        if signed:
            forbidden.update(range(signed[-1] + 1, end))
    return forbidden
