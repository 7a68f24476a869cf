"""Where a conversation may be cut: body[:c] is summarized, body[c:] stays (docs/design.md, "The cut")."""

from itertools import accumulate, pairwise

from policies.conversation import INSTRUCTION_ROLES, Conversation


def legal_cuts(conversation: Conversation) -> list[int]:
    """Every legal cut, ascending; 0 and len(body) are none.

    A cut never separates a call from its result, however late that comes, a user message from what follows it at once
    (so neither two user messages), nor a tool loop from the signed thinking that its upstream wants there. A call that
    has no result at all only forbids the cut behind its unit: the result may be on its way. What only the provider has
    is never covered.
    """
    answered = _answered_units(conversation)
    open_calls = _open_calls(conversation)
    signed = _signed_loops(conversation)
    units = conversation.units
    stored = next((i for i, message in enumerate(conversation.body) if message.stored), len(conversation.body))
    return [
        cut
        for unit, cut in pairwise(units)
        if cut <= stored
        and not _ends_with_user(conversation, unit, cut)
        and unit in answered
        and not open_calls[cut]
        and cut not in signed
    ]


def _ends_with_user(conversation: Conversation, unit: int, cut: int) -> bool:
    """Whether the last word of a unit is a user's; instructions that join it are none."""
    said = (m for m in reversed(conversation.body[unit:cut]) if m.role not in INSTRUCTION_ROLES)
    return (last := next(said, None)) is not None and last.is_user


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
    """Positions inside of a turn where a tool loop may not begin, for want of thinking that its upstream verifies."""
    body, wanted = conversation.body, conversation.order.thinking
    forbidden: set[int] = set()
    if wanted == "free":
        return forbidden
    for start, end in pairwise([*conversation.turns, len(body)]):
        signed = [i for i in range(start, end) if body[i].signed != "none"]
        if wanted == "leading":
            forbidden.update({*range(start + 1, end)}.difference(signed))
        elif signed:
            forbidden.update(range(signed[-1] + 1, end))
    return forbidden
