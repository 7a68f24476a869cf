"""The fates of a prompt's messages, packed in eleven bytes each: of many sessions few are shown."""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

import msgspec

ROLES = ("system", "developer", "user", "assistant", "tool")
FATES = ("head", "kept", "anchor", "summarised", "covered", "cooled", "dropped")
# The maximum number of messages, the newest. Earlier ones are shown as one.
MOST = 4_000
# The fate of a message with left out media. It is packed as `cooled`, which earlier replicas know.
LEFT_OUT, _PACKED_AS = "left_out", "cooled"
_TOOLS = 255
_MESSAGE = Struct("<BBIIB")


class SentMessage(NamedTuple):
    """A message.

    place: in the request. tool: that it calls, or whose result it is. tokens, after: received, and sent instead.
    """

    place: int
    role: str
    tool: str
    tokens: int
    fate: str
    after: int


class MessageFates(msgspec.Struct, frozen=True, gc=False):
    """The newest messages of a request.

    first: the place of the first one. left_out: the places of those with left out media.
    """

    first: int
    tools: tuple[str, ...]
    packed: bytes
    left_out: tuple[int, ...] = ()

    def __iter__(self) -> Iterator[SentMessage]:
        """Yield the messages."""
        left_out = {*self.left_out}
        for place, packed in enumerate(_MESSAGE.iter_unpack(self.packed), self.first):
            role, fate, tokens, after, tool = packed
            fate_name = LEFT_OUT if place in left_out else FATES[fate]
            yield SentMessage(place, ROLES[role], self.tools[tool], tokens, fate_name, after)


def pack(messages: Sequence[SentMessage]) -> MessageFates:
    """Pack the newest of these messages in their order."""
    newest = messages[-MOST:]
    tools: dict[str, int] = {"": 0}
    packed = bytearray()
    for _, role, tool, tokens, fate, after in newest:
        number = tools.setdefault(tool, len(tools)) if len(tools) < _TOOLS else tools.get(tool, 0)
        packed_fate = _PACKED_AS if fate == LEFT_OUT else fate
        packed += _MESSAGE.pack(ROLES.index(role), FATES.index(packed_fate), tokens, after, number)
    left_out = tuple(message.place for message in newest if message.fate == LEFT_OUT)
    return MessageFates(newest[0].place if newest else 0, tuple(tools), bytes(packed), left_out)
