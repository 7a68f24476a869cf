"""Contents that no window takes, known before anything is sent (docs/design.md, "The ladder")."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from policies import numbers
from policies.conversation.conversation import Conversation, MessageIndex
from policies.conversation.message import INSTRUCTION_ROLES, Message
from policies.decision.budget import Budget

NOTHING: Mapping[MessageIndex, float] = MappingProxyType({})


def least_tokens(conversation: Conversation, newest: int) -> int:
    """Return the tokens that are sent whatever is covered: tools, head, and what stands behind the newest legal cut."""
    return conversation.fixed_tokens + conversation.kept_tokens(newest)


def oversized_messages(
    conversation: Conversation, budget: Budget, newest: int, harness: Mapping[MessageIndex, float] = NOTHING
) -> dict[MessageIndex, int]:
    """Return the tokens that each message may keep, by index, so that what stands behind the newest legal cut fits.

    See `limits_for`.
    """
    kept = kept_behind(conversation, newest)
    return limits_for(
        conversation,
        kept,
        max(numbers.OVERSIZE_LEAST, int(numbers.OVERSIZE_LEFT * budget.movable) - budget.record),
        harness,
        stepped=True,
    )


def kept_behind(conversation: Conversation, covered: int) -> list[int]:
    """Positions of what is sent as it came behind a record of the first `covered` messages."""
    return [*conversation.repeated_messages(covered), *range(covered, len(conversation.body))]


def limits_for(
    conversation: Conversation,
    kept: Iterable[int],
    total: int,
    harness: Mapping[MessageIndex, float] = NOTHING,
    *,
    stepped: bool = False,
) -> dict[MessageIndex, int]:
    """Message index -> the tokens that it may keep, so that these messages of the body take `total` together.

    Results of tools are cut first, then what a harness says in a user's name, then what the model said; only where all
    that is not enough the user's own words are, and keep half of `total` at least. harness: shares of user messages.
    """
    body = conversation.body
    sizes = {conversation.index(i): body[i].tokens for i in kept if body[i].role not in INSTRUCTION_ROLES}
    words = {i: _words(conversation.messages[i], harness.get(i, 0.0)) for i in sizes}
    base = total if stepped else 0
    others: dict[MessageIndex, int] = {}
    for role in ("tool", "user", "assistant"):
        others |= {i: size - words[i] for i, size in sizes.items() if conversation.messages[i].role == role}
        others = {i: size for i, size in others.items() if size > 0}
        spared = sum(sizes.values()) - sum(others.values())
        if others and spared + numbers.OVERSIZE_LEAST * len(others) <= total:
            most = _most(others, total - spared, base)
            return {i: words[i] + most for i, size in others.items() if size > most}
    spoken = {i: size for i, size in words.items() if size > 0}
    beside = min(sum(others.values()), total // 2 if spoken else total)
    most, most_words = _most(others, beside, base), _most(spoken, total - beside, base)
    limits = {i: min(words[i], most_words) + min(others.get(i, 0), most) for i in sizes}
    return {i: limit for i, limit in limits.items() if limit < sizes[i]}


def _words(message: Message, harness: float) -> int:
    """Tokens of a message that a user says."""
    return message.tokens - int(message.tokens * harness) if message.role == "user" else message.words


def _most(sizes: Mapping[MessageIndex, int], room: int, base: int) -> int:
    """The most tokens that one of these may keep; where that cuts any, the next of the steps down from `base`."""
    most = allowance([*sizes.values()], room)
    if not base or most >= max(sizes.values(), default=0):
        return most
    step = int(base * numbers.OVERSIZE_STEP)
    while step > max(most, numbers.OVERSIZE_LEAST):
        step = int(step * numbers.OVERSIZE_STEP)
    return step


def allowance(sizes: Sequence[int], total: int) -> int:
    """The most tokens one message may keep, so that all of them together stay within `total`; small ones stay whole."""
    left = total
    for i, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - i)
        if size > share:
            return max(1, share)
        left -= size
    return max(sizes, default=0)
