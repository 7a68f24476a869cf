"""A conversation as the policies see it: references and index ranges over the client's messages, never copies."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal, NamedTuple, NewType, cast

Role = Literal["system", "developer", "user", "assistant", "tool"]
INSTRUCTION_ROLES = frozenset({"system", "developer"})
# Of a message among all that a request holds. A plain number is a position in the body, behind the head.
MessageIndex = NewType("MessageIndex", int)


class Call(NamedTuple):
    """A tool call: its id, by which its result names it, and the tool it calls."""

    id: str
    tool: str


@dataclass(frozen=True, slots=True)
class Message:
    """What the decisions need to know of one message; its bytes stay with the wire layer.

    digest: content digest of the canonical form, without links to other messages (docs/design.md, "Digests and keys").
    calls:  the tool calls it makes.
    results: ids of the calls whose results it holds. joins: continues the round of the message before it.
    signed: carries reasoning or signature fields that some providers verify.
    media:  carries something that is no text.
    loose:  of a user message, what it shares with one that differs in dates, times and a harness's words alone.
    """

    role: Role
    tokens: int
    digest: bytes
    calls: tuple[Call, ...] = ()
    results: tuple[str, ...] = ()
    joins: bool = False
    signed: bool = False
    media: bool = False
    loose: bytes | None = None

    @property
    def kin(self) -> bytes:
        """Equal for this message and those that may take its place."""
        return self.loose or self.digest


class Conversation:
    """Head, units, rounds and turns of one request.

    All positions are indices into `body`. Lists of positions are ascending; `tokens_from[i]` is what body[i:] weighs.
    """

    def __init__(
        self,
        messages: Sequence[Message],
        tools_tokens: int = 0,
        *,
        instructions_covered: bool = False,
        pinned: tuple[int, ...] = (),
    ) -> None:
        """`instructions_covered`: system and developer messages of the body are summarized like all others.

        `pinned`: positions of user messages that go upstream whatever is covered.
        """
        self.messages = messages
        self.tools_tokens = tools_tokens
        self.instructions_covered = instructions_covered
        self.pinned = pinned
        self.head_length = next((i for i, m in enumerate(messages) if m.role not in INSTRUCTION_ROLES), len(messages))
        self.body = messages[self.head_length :]

    @property
    def indexes(self) -> Sequence[MessageIndex]:
        """Of all messages."""
        return cast("Sequence[MessageIndex]", range(len(self.messages)))

    def index(self, position: int) -> MessageIndex:
        """Of the message at this position of the body."""
        return MessageIndex(self.head_length + position)

    @cached_property
    def head_tokens(self) -> int:
        return sum(m.tokens for m in self.messages[: self.head_length])

    @property
    def fixed_tokens(self) -> int:
        """What every request carries whatever is cut: tools and head."""
        return self.tools_tokens + self.head_tokens

    @cached_property
    def tokens_from(self) -> list[int]:
        return [*accumulate((m.tokens for m in reversed(self.body)), initial=0)][::-1]

    @property
    def total_tokens(self) -> int:
        """N: tools, head and body."""
        return self.fixed_tokens + self.tokens_from[0]

    @cached_property
    def units(self) -> list[int]:
        """Start of every unit: a user message, a round (an assistant message with its tool results), or a stray
        instruction. What joins the message before it never starts one, save at the very beginning."""
        return [i for i, m in enumerate(self.body) if i == 0 or not m.joins]

    @cached_property
    def turns(self) -> list[int]:
        """Start of every turn: a user message that does not follow another one."""
        body = self.body
        return [i for i, m in enumerate(body) if m.role == "user" and (i == 0 or body[i - 1].role != "user")]

    @cached_property
    def users(self) -> list[int]:
        return [i for i, m in enumerate(self.body) if m.role == "user"]

    def anchor(self, cut: int) -> int | None:
        """The user message whose turn `cut` falls into: sent verbatim after the summary, None where none is needed."""
        if cut == 0 or cut >= len(self.body) or self.body[cut].role == "user":
            return None
        return self._last_user[cut - 1]

    def repeated(self, cut: int) -> list[int]:
        """User messages of body[:cut] that are sent verbatim after the record: those pinned, and the anchor."""
        anchor = self.anchor(cut)
        return sorted({*(i for i in self.pinned if i < cut), *(() if anchor is None else (anchor,))})

    @cached_property
    def _last_user(self) -> list[int | None]:
        """For every position the newest user message at or before it."""
        last = None
        return [last := i if m.role == "user" else last for i, m in enumerate(self.body)]

    def covered_instructions(self, cut: int) -> list[int]:
        """System and developer messages inside body[:cut] that go upstream as they are, with their authority."""
        return self._instructions[: bisect_left(self._instructions, cut)]

    @cached_property
    def _instructions(self) -> list[int]:
        if self.instructions_covered:
            return []
        return [i for i, m in enumerate(self.body) if m.role in INSTRUCTION_ROLES]

    @cached_property
    def _instruction_tokens(self) -> list[int]:
        """Tokens of the first k instructions of the body."""
        return [*accumulate((self.body[i].tokens for i in self._instructions), initial=0)]

    def kept_tokens(self, cut: int) -> int:
        """Tokens of the messages that still go upstream when body[:cut] is replaced by a record."""
        instructions = self._instruction_tokens[bisect_left(self._instructions, cut)]
        return self.tokens_from[cut] + instructions + sum(self.body[i].tokens for i in self.repeated(cut))

    @cached_property
    def tools_answered(self) -> list[tuple[str | None, ...]]:
        """Of every message, which tools its results are of, in their order; None where a result answers no call."""
        tools: dict[str, str] = {}
        found: list[tuple[str | None, ...]] = []
        for message in self.body:
            tools |= message.calls
            found.append(tuple(map(tools.get, message.results)))
        return found

    def late_results(self, start: int) -> set[int]:
        """Positions from `start` on of results whose calls stand before it."""
        made = {call.id for message in self.body[:start] for call in message.calls}
        late = set()
        for position in range(start, len(self.body)):
            message = self.body[position]
            made.difference_update(call.id for call in message.calls)
            if not made.isdisjoint(message.results):
                late.add(position)
        return late

    def first_user(self) -> int | None:
        return next((i for i, m in enumerate(self.body) if m.role == "user"), None)
