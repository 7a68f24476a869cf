"""Where a conversation may be cut: body[:c] is summarized, body[c:] stays (docs/design.md, "The cut")."""

from itertools import accumulate, pairwise

from policies.conversation import Conversation


def legal_cuts(conversation: Conversation) -> list[int]:
    """Every legal cut, ascending; 0 and len(body) are none.

    A cut never separates a call from its result, however late that comes, a user message from what follows it at once
    (so neither two user messages), nor a tool loop whose earlier part alone carries signatures. A call that has no
    result at all only forbids the cut behind its unit: the result may be on its way.
    """
    answered = _answered_units(conversation)
    open_calls = _open_calls(conversation)
    signed = _signed_loops(conversation)
    body = conversation.body
    units = conversation.units
    return [
        cut
        for unit, cut in pairwise(units)
        if body[cut - 1].role != "user" and unit in answered and not open_calls[cut] and cut not in signed
    ]


def _open_calls(conversation: Conversation) -> list[int]:
    """For every position, how many pairs of a call and a result have the call before it and the result not.

    Ids are used again, and answered again. A result belongs to the oldest call with its id that still waits for one,
    so that no other way to pair them would be parted; where none waits, to the newest.
    """
    changes = [0] * (len(conversation.body) + 1)
    newest: dict[str, int] = {}
    waiting: dict[str, int] = {}
    for position, message in enumerate(conversation.body):
        for call in message.calls:
            newest[call.id] = position
            waiting.setdefault(call.id, position)
        for result in message.results:
            if result in newest:
                changes[waiting.pop(result, newest[result]) + 1] += 1
                changes[position + 1] -= 1
    return [*accumulate(changes)]


def _answered_units(conversation: Conversation) -> set[int]:
    """Starts of the units in which every tool call has its result."""
    body, units = conversation.body, conversation.units
    answered = set()
    for start, end in pairwise([*units, len(body)]):
        unit = body[start:end]
        calls = [call.id for message in unit for call in message.calls]
        if not calls or {result for message in unit for result in message.results}.issuperset(calls):
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
