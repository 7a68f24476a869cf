"""What became of the messages of a prompt, in eleven bytes each: of many sessions few are shown."""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

import msgspec

ROLES = ("system", "developer", "user", "assistant", "tool")
FATES = ("head", "kept", "anchor", "summarised", "covered", "cooled", "dropped")
# The newest; what stood before them is shown as one.
MOST = 4_000
_TOOLS = 255
_MESSAGE = Struct("<BBIIB")


class SentMessage(NamedTuple):
    """A message. place: among those of the request. tool: those it calls, or whose result it is.

    tokens, after: as received, and as sent in its place.
    """

    place: int
    role: str
    tool: str
    tokens: int
    fate: str
    after: int


class MessageFates(msgspec.Struct, frozen=True, gc=False):
    """The newest messages of a request; `first` is the place of the first one."""

    first: int
    tools: tuple[str, ...]
    packed: bytes

    def __iter__(self) -> Iterator[SentMessage]:
        for place, packed in enumerate(_MESSAGE.iter_unpack(self.packed), self.first):
            role, fate, tokens, after, tool = packed
            yield SentMessage(place, ROLES[role], self.tools[tool], tokens, FATES[fate], after)


def pack(messages: Sequence[SentMessage]) -> MessageFates:
    """The newest of these, in their order."""
    newest = messages[-MOST:]
    tools: dict[str, int] = {"": 0}
    packed = bytearray()
    for _, role, tool, tokens, fate, after in newest:
        number = tools.setdefault(tool, len(tools)) if len(tools) < _TOOLS else tools.get(tool, 0)
        packed += _MESSAGE.pack(ROLES.index(role), FATES.index(fate), tokens, after, number)
    return MessageFates(newest[0].place if newest else 0, tuple(tools), bytes(packed))
