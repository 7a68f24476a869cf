"""Contents too large for any window, found before anything is sent (docs/design.md, "The ladder")."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from policies import numbers
from policies.conversation.conversation import Conversation, MessageIndex
from policies.conversation.message import INSTRUCTION_ROLES, Message
from policies.decision.budget import Budget

NOTHING: Mapping[MessageIndex, float] = MappingProxyType({})


def least_tokens(conversation: Conversation, newest: int) -> int:
    """Return the minimum tokens that are always sent: tools, head, and the messages after the newest legal cut."""
    return conversation.fixed_tokens + conversation.kept_tokens(newest)


def oversized_messages(
    conversation: Conversation, budget: Budget, newest: int, harness: Mapping[MessageIndex, float] = NOTHING
) -> dict[MessageIndex, int]:
    """Return the tokens that each message may keep, by index, so that everything after the newest legal cut fits.

    See `limits_for`.
    """
    kept = kept_positions(conversation, newest)
    return limits_for(
        conversation,
        kept,
        max(numbers.OVERSIZE_LEAST, int(numbers.OVERSIZE_LEFT * budget.movable) - budget.record),
        harness,
        stepped=True,
    )


def kept_positions(conversation: Conversation, covered: int) -> list[int]:
    """Return the positions of messages sent unchanged with a record of the first `covered` messages."""
    return [*conversation.repeated_messages(covered), *range(covered, len(conversation.body))]


def limits_for(
    conversation: Conversation,
    kept: Iterable[int],
    total: int,
    harness: Mapping[MessageIndex, float] = NOTHING,
    *,
    stepped: bool = False,
) -> dict[MessageIndex, int]:
    """Return the tokens that each message may keep, by index, so that the kept messages have `total` tokens together.

    Tool results are cut first, then texts of a harness in a user's name, then texts of the model. The user's own words
    are cut last, and keep at least half of `total`. harness: shares of harness text in user messages.
    """
    body = conversation.body
    sizes = {conversation.index(i): body[i].tokens for i in kept if body[i].role not in INSTRUCTION_ROLES}
    words = {i: _words(conversation.messages[i], harness.get(i, 0.0)) for i in sizes}
    base = total if stepped else 0
    other_sizes: dict[MessageIndex, int] = {}
    for role in ("tool", "user", "assistant"):
        other_sizes |= {i: size - words[i] for i, size in sizes.items() if conversation.messages[i].role == role}
        other_sizes = {i: size for i, size in other_sizes.items() if size > 0}
        spared = sum(sizes.values()) - sum(other_sizes.values())
        if other_sizes and spared + numbers.OVERSIZE_LEAST * len(other_sizes) <= total:
            most = _most(other_sizes, total - spared, base)
            return {i: words[i] + most for i, size in other_sizes.items() if size > most}
    word_sizes = {i: size for i, size in words.items() if size > 0}
    room_for_others = min(sum(other_sizes.values()), total // 2 if word_sizes else total)
    most, most_words = _most(other_sizes, room_for_others, base), _most(word_sizes, total - room_for_others, base)
    limits = {i: min(words[i], most_words) + min(other_sizes.get(i, 0), most) for i in sizes}
    return {i: limit for i, limit in limits.items() if limit < sizes[i]}


def _words(message: Message, harness: float) -> int:
    """Return the tokens of a message that a person wrote."""
    return message.tokens - int(message.tokens * harness) if message.role == "user" else message.words


def _most(sizes: Mapping[MessageIndex, int], room: int, base: int) -> int:
    """Return the maximum tokens that each of these may keep. If that cuts any, use the next lower step from `base`."""
    most = allowance([*sizes.values()], room)
    if not base or most >= max(sizes.values(), default=0):
        return most
    step = int(base * numbers.OVERSIZE_STEP)
    while step > max(most, numbers.OVERSIZE_LEAST):
        step = int(step * numbers.OVERSIZE_STEP)
    return step


def allowance(sizes: Sequence[int], total: int) -> int:
    """Return the maximum tokens for each message so that all stay within `total` together. Small ones stay whole."""
    tokens_left = total
    for i, size in enumerate(sorted(sizes)):
        share = tokens_left // (len(sizes) - i)
        if size > share:
            return max(1, share)
        tokens_left -= size
    return max(sizes, default=0)
