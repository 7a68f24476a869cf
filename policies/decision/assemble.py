"""The shape of what goes upstream once a checkpoint covers the oldest part (docs/design.md, "What goes upstream")."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from policies.conversation.conversation import Conversation, MessageIndex

# How the record stands beside the user message that follows it. Some chat templates refuse two user messages in a row.
Shape = Literal["separate", "ack", "merge"]
# As they are tried. An acknowledgement leaves every message of the client as it is; merging does not.
SHAPES: tuple[Shape, ...] = ("separate", "ack", "merge")
ACKNOWLEDGEMENT = "OK."


@dataclass(frozen=True, slots=True)
class Injected:
    """A synthetic message with plain string content."""

    text: str
    role: Literal["user", "assistant"] = "user"


@dataclass(frozen=True, slots=True)
class UserWords:
    """What a user says in the request's message `of`, without the results that it holds as well."""

    of: MessageIndex


@dataclass(frozen=True, slots=True)
class Rules:
    """The files of rules in the request's message `of`, without what else it holds."""

    of: MessageIndex


@dataclass(frozen=True, slots=True)
class MergedMessage:
    """The message `into`, its content behind a text of ours."""

    text: str
    into: MessageIndex | UserWords


# A message of the request, or something in whose making we had a hand.
Item = MessageIndex | UserWords | Rules | Injected | MergedMessage


def assemble(conversation: Conversation, covered: int, text: str, shape: Shape = "separate") -> list[Item]:
    """The request with a record in the place of body[:covered].

    head ++ files of rules ++ instructions of the covered part ++ the record ++ what is repeated ++ body[covered:].
    With the instructions stands what loads tools; where those may not come first, it stands behind the record, and
    they behind the user messages that follow.
    """
    index = conversation.index
    head = [*conversation.indexes[: conversation.head_length], *_rules(conversation, covered, shape)]
    instructions = [index(i) for i in conversation.covered_instructions(covered)]
    loading = [index(i) for i in conversation.loading(covered)]
    tail = conversation.indexes[conversation.head_length + covered :]
    repeated = _in_turn(
        conversation, [_repeated_item(conversation, i) for i in conversation.repeated_messages(covered)], tail, shape
    )
    if conversation.order.instructions == "before":
        return [*head, *instructions, *loading, *_record_items(conversation, text, shape, [*repeated, *tail])]
    leading = _leading_users(conversation, tail)
    users, rest = [*repeated, *tail[:leading]], [*instructions, *tail[leading:]]
    if not loading:
        return [*head, *_record_items(conversation, text, shape, users), *rest]
    apart: list[Item] = [Injected(ACKNOWLEDGEMENT, "assistant")] if users and shape != "separate" else []
    return [*head, Injected(text), *loading, *apart, *users, *rest]


def _rules(conversation: Conversation, covered: int, shape: Shape) -> list[Item]:
    found: list[Item] = []
    for position in conversation.rules(covered):
        found.append(Rules(conversation.index(position)))
        if shape != "separate":
            found.append(Injected(ACKNOWLEDGEMENT, "assistant"))
    return found


def _in_turn(conversation: Conversation, repeated: list[Item], tail: Sequence[Item], shape: Shape) -> list[Item]:
    """What is repeated, where two user messages in a row are refused with an answer between them."""
    if shape == "separate" or not repeated:
        return repeated
    found = [repeated[0]]
    for item in repeated[1:]:
        found += [Injected(ACKNOWLEDGEMENT, "assistant"), item]
    return [*found, Injected(ACKNOWLEDGEMENT, "assistant")] if _is_user(conversation, next(iter(tail), None)) else found


def with_instructions(conversation: Conversation, start: int, kept: Sequence[MessageIndex]) -> list[MessageIndex]:
    """What is kept of body[start:], a user's message first, with instructions from before it where they may stand."""
    instructions = [conversation.index(i) for i in conversation.covered_instructions(start)]
    leading = 0 if conversation.order.instructions == "before" else _leading_users(conversation, kept)
    return [*kept[:leading], *instructions, *kept[leading:]]


def _leading_users(conversation: Conversation, indexes: Sequence[MessageIndex]) -> int:
    return next((k for k, i in enumerate(indexes) if conversation.messages[i].role != "user"), len(indexes))


def _record_items(conversation: Conversation, text: str, shape: Shape, kept: Sequence[Item]) -> list[Item]:
    """The record and what follows it, in a shape that its upstream takes."""
    record, first = Injected(text), kept[0] if kept else None
    if shape == "separate" or not _is_user(conversation, first):
        return [record, *kept]
    if shape == "ack":
        return [record, Injected(ACKNOWLEDGEMENT, "assistant"), *kept]
    assert not isinstance(first, Rules | Injected | MergedMessage | None)  # noqa: S101 - a user's, as was asked
    return [MergedMessage(text, first), *kept[1:]]


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
