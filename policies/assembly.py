"""The shape of what goes upstream once a checkpoint covers the oldest part (docs/design.md, section 5)."""

from __future__ import annotations

from dataclasses import dataclass

from policies.conversation import Conversation


@dataclass(frozen=True, slots=True)
class Injected:
    """The one synthetic message: role user, plain string content."""

    text: str


# An index into the request's messages, or the synthetic message.
Item = int | Injected


def assemble(conversation: Conversation, covered: int, text: str) -> list[Item]:
    """head ++ instructions found inside body[:covered] ++ the record ++ [anchor] ++ body[covered:]."""
    head = conversation.head_length
    anchor = conversation.anchor(covered)
    return [
        *range(head),
        *(head + i for i in conversation.covered_instructions(covered)),
        Injected(text),
        *([] if anchor is None else [head + anchor]),
        *range(head + covered, len(conversation.messages)),
    ]
