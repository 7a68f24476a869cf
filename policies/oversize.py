"""Contents that no window takes, known before anything is sent (docs/design.md, "The ladder")."""

from collections.abc import Iterable, Sequence

from policies.budget import Budget
from policies.conversation import Conversation, MessageIndex
from policies.message import INSTRUCTION_ROLES

# What is left of such contents, beside tools, head and a record, as a share of M.
_LEFT = 0.5
# Limits step down by this factor, the first time for what is to come: what was cut stays as it is while a turn goes on,
# and with it the prompt's cache.
_STEP = 0.75
_LEAST = 64


def least_tokens(conversation: Conversation) -> int:
    """What goes upstream whatever is covered, in tokens: tools, head, the newest unit, and what is repeated with it."""
    newest = conversation.units[-1] if conversation.units else 0
    return conversation.fixed_tokens + conversation.kept_tokens(newest)


def oversized(conversation: Conversation, budget: Budget) -> dict[MessageIndex, int]:
    """Message index -> the tokens that it may keep, so that the least that must be sent fits.

    User messages are spared while the rest can make the room.
    """
    newest = conversation.units[-1] if conversation.units else 0
    kept = [*conversation.repeated(newest), *range(newest, len(conversation.body))]
    return limits_for(conversation, kept, max(_LEAST, int(_LEFT * budget.movable) - budget.record), stepped=True)


def limits_for(
    conversation: Conversation, kept: Iterable[int], total: int, *, stepped: bool = False
) -> dict[MessageIndex, int]:
    """Message index -> the tokens that it may keep, so that these messages of the body take `total` together."""
    body = conversation.body
    sizes = {conversation.index(i): body[i].tokens for i in kept if body[i].role not in INSTRUCTION_ROLES}
    users = {i: size for i, size in sizes.items() if conversation.messages[i].role == "user"}
    spared = sum(users.values())
    if spared <= total // 2 and len(users) < len(sizes):
        sizes = {i: size for i, size in sizes.items() if i not in users}
        total -= spared
    most = allowance(list(sizes.values()), total)
    if stepped:
        step = int(total * _STEP)
        while step > max(most, _LEAST):
            step = int(step * _STEP)
        most = step
    return {i: most for i, size in sizes.items() if size > most}


def allowance(sizes: Sequence[int], total: int) -> int:
    """The most tokens one message may keep, so that all of them together stay within `total`; small ones stay whole."""
    left = total
    for i, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - i)
        if size > share:
            return max(1, share)
        left -= size
    return max(sizes, default=0)
