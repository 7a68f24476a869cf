"""The upstream request after a record covers its oldest messages (docs/design.md, "What goes upstream")."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from policies.conversation.conversation import Conversation, MessageIndex

# How to send the record before a user message. Some chat templates refuse two user messages in a row.
Shape = Literal["separate", "ack", "merge"]
# The order in which shapes are tried. An acknowledgement leaves the client's messages unchanged, merging does not.
SHAPES: tuple[Shape, ...] = ("separate", "ack", "merge")
ACKNOWLEDGEMENT = "OK."


@dataclass(frozen=True, slots=True)
class Injected:
    """A synthetic message with plain string content."""

    text: str
    role: Literal["user", "assistant"] = "user"


@dataclass(frozen=True, slots=True)
class UserWords:
    """The user's text in the request's message `of`, without the tool results of that message."""

    of: MessageIndex


@dataclass(frozen=True, slots=True)
class Rules:
    """The files of rules in the request's message `of`, without its other content."""

    of: MessageIndex


@dataclass(frozen=True, slots=True)
class MergedMessage:
    """The message `into` with `text` before its content."""

    text: str
    into: MessageIndex | UserWords


# A message of the request, or one that the proxy has made or changed.
Item = MessageIndex | UserWords | Rules | Injected | MergedMessage


def assemble(conversation: Conversation, covered: int, text: str, shape: Shape = "separate") -> list[Item]:
    """Return the request with a record in place of body[:covered].

    The order is: head, files of rules, instructions of the covered part, messages that load tools, the record, repeated
    messages, body[covered:]. If instructions may not come first, messages that load tools follow the record, and
    instructions follow the next user messages.
    """
    index = conversation.index
    head = [*conversation.indexes[: conversation.head_length], *_rules(conversation, covered, shape)]
    instructions = [index(i) for i in conversation.covered_instructions(covered)]
    loading = [index(i) for i in conversation.loading(covered)]
    tail = conversation.indexes[conversation.head_length + covered :]
    repeated = _repeated_in_turn(
        conversation, [_repeated_item(conversation, i) for i in conversation.repeated_messages(covered)], tail, shape
    )
    if conversation.order.instructions == "before":
        return [*head, *instructions, *loading, *_record_items(conversation, text, shape, [*repeated, *tail])]
    leading = _leading_users(conversation, tail)
    users, remaining = [*repeated, *tail[:leading]], [*instructions, *tail[leading:]]
    if not loading:
        return [*head, *_record_items(conversation, text, shape, users), *remaining]
    acknowledgement: list[Item] = [Injected(ACKNOWLEDGEMENT, "assistant")] if users and shape != "separate" else []
    return [*head, Injected(text), *loading, *acknowledgement, *users, *remaining]


def _rules(conversation: Conversation, covered: int, shape: Shape) -> list[Item]:
    items: list[Item] = []
    for position in conversation.rules(covered):
        items.append(Rules(conversation.index(position)))
        if shape != "separate":
            items.append(Injected(ACKNOWLEDGEMENT, "assistant"))
    return items


def _repeated_in_turn(
    conversation: Conversation, repeated: list[Item], tail: Sequence[Item], shape: Shape
) -> list[Item]:
    """Return the repeated messages, with acknowledgements in between if two user messages in a row are refused."""
    if shape == "separate" or not repeated:
        return repeated
    items = [repeated[0]]
    for item in repeated[1:]:
        items += [Injected(ACKNOWLEDGEMENT, "assistant"), item]
    return [*items, Injected(ACKNOWLEDGEMENT, "assistant")] if _is_user(conversation, next(iter(tail), None)) else items


def with_instructions(conversation: Conversation, start: int, kept: Sequence[MessageIndex]) -> list[MessageIndex]:
    """Return the kept messages of body[start:] with the instructions before them, where the upstream allows these.

    The first kept message is a user's.
    """
    instructions = [conversation.index(i) for i in conversation.covered_instructions(start)]
    leading = 0 if conversation.order.instructions == "before" else _leading_users(conversation, kept)
    return [*kept[:leading], *instructions, *kept[leading:]]


def _leading_users(conversation: Conversation, indexes: Sequence[MessageIndex]) -> int:
    return next((k for k, i in enumerate(indexes) if conversation.messages[i].role != "user"), len(indexes))


def _record_items(conversation: Conversation, text: str, shape: Shape, kept: Sequence[Item]) -> list[Item]:
    """Return the record and the messages after it, in a shape that the upstream accepts."""
    record, first_kept = Injected(text), kept[0] if kept else None
    if shape == "separate" or not _is_user(conversation, first_kept):
        return [record, *kept]
    if shape == "ack":
        return [record, Injected(ACKNOWLEDGEMENT, "assistant"), *kept]
    assert not isinstance(first_kept, Rules | Injected | MergedMessage | None)  # noqa: S101 - a user message, see above
    return [MergedMessage(text, first_kept), *kept[1:]]


def _repeated_item(conversation: Conversation, position: int) -> Item:
    index = conversation.index(position)
    return UserWords(index) if conversation.body[position].results else index


def _is_user(conversation: Conversation, item: Item | None) -> bool:
    match item:
        case UserWords() | Rules():
            return True
        case Injected() | MergedMessage() | None:
            return False
        case _:
            return conversation.messages[item].role == "user"
