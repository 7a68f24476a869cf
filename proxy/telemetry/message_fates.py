"""What became of the messages of a prompt, in eleven bytes each: of many sessions few are shown."""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

import msgspec

ROLES = ("system", "developer", "user", "assistant", "tool")
FATES = ("head", "kept", "anchor", "summarised", "covered", "cooled", "dropped")
# The newest; what stood before them is shown as one.
MOST = 4_000
# Of a message of which pictures or papers were left out; packed as `cooled`, which replicas of before know.
LEFT_OUT, _PACKED_AS = "left_out", "cooled"
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
    """The newest messages of a request; `first` is the place of the first one. left_out: places of those that went
    without pictures or papers."""

    first: int
    tools: tuple[str, ...]
    packed: bytes
    left_out: tuple[int, ...] = ()

    def __iter__(self) -> Iterator[SentMessage]:
        left_out = {*self.left_out}
        for place, packed in enumerate(_MESSAGE.iter_unpack(self.packed), self.first):
            role, fate, tokens, after, tool = packed
            told = LEFT_OUT if place in left_out else FATES[fate]
            yield SentMessage(place, ROLES[role], self.tools[tool], tokens, told, after)


def pack(messages: Sequence[SentMessage]) -> MessageFates:
    """The newest of these, in their order."""
    newest = messages[-MOST:]
    tools: dict[str, int] = {"": 0}
    packed = bytearray()
    for _, role, tool, tokens, fate, after in newest:
        number = tools.setdefault(tool, len(tools)) if len(tools) < _TOOLS else tools.get(tool, 0)
        known = _PACKED_AS if fate == LEFT_OUT else fate
        packed += _MESSAGE.pack(ROLES.index(role), FATES.index(known), tokens, after, number)
    left_out = tuple(message.place for message in newest if message.fate == LEFT_OUT)
    return MessageFates(newest[0].place if newest else 0, tuple(tools), bytes(packed), left_out)
