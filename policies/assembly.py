"""The shape of what goes upstream once a checkpoint covers the oldest part (docs/design.md, "What goes upstream")."""

from dataclasses import dataclass
from typing import Literal

from policies.conversation import Conversation, MessageIndex

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
class Merged:
    """The request's message `into`, its content behind a text of ours."""

    text: str
    into: MessageIndex


# A message of the request, or something in whose making we had a hand.
Item = MessageIndex | Injected | Merged


def assemble(conversation: Conversation, covered: int, text: str, shape: Shape = "separate") -> list[Item]:
    """head ++ instructions found inside body[:covered] ++ the record ++ what is repeated ++ body[covered:]."""
    index = conversation.index
    kept = [index(i) for i in (*conversation.repeated(covered), *range(covered, len(conversation.body)))]
    front = [*conversation.indexes[: conversation.head_length], *map(index, conversation.covered_instructions(covered))]
    record = Injected(text)
    if shape == "separate" or not kept or conversation.messages[kept[0]].role != "user":
        return [*front, record, *kept]
    if shape == "ack":
        return [*front, record, Injected(ACKNOWLEDGEMENT, "assistant"), *kept]
    return [*front, Merged(text, kept[0]), *kept[1:]]
