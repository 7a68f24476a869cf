"""A conversation as the policies see it: references and index ranges over the client's messages, never copies."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal, NamedTuple, NewType, cast

Role = Literal["system", "developer", "user", "assistant", "tool"]
Signature = Literal["none", "sealed", "bound"]
INSTRUCTION_ROLES = frozenset({"system", "developer"})
# Of a message among all that a request holds. A plain number is a position in the body, behind the head.
MessageIndex = NewType("MessageIndex", int)
# Messages that load tools and are looked at for one cut: no session has half as many.
_MOST_LOADING = 64


class Call(NamedTuple):
    """A tool call: its id, by which its result names it, and the tool it calls."""

    id: str
    tool: str


@dataclass(frozen=True, slots=True)
class Message:
    """What the decisions need to know of one message; its bytes stay with the wire layer.

    digest:  content digest of the canonical form, without links to other messages (docs/design.md, "Digests and keys").
    calls:   the tool calls it makes.
    results: ids of the calls whose results it holds.
    words:   beside results, tokens of what a user says in the same message; 0 for nothing.
    joins:   continues the round of the message before it. continues: does so where that is the model's too: its answer.
    silent:  says nothing of its own, and clients drop it or keep it: read as a part of the message behind it.
    signed:  carries what some providers verify: `sealed` goes out as it came or not at all, `bound` holds only behind
             the very prompt that it was made for.
    media:   carries something that is no text.
    loose:   what it shares with one that says the same: of a user message, with one that differs in dates, times and a
             harness's words alone; of an instruction, with one that differs in digits alone. None: with no other.
    lapses:  of an instruction that holds until the next user message only.
    loads:   names of tools that are there for as long as the history holds this message.
    stored:  refers to what only the provider has. barrier: the provider's own compaction of what stands before it.
    bypass:  why a request that holds it goes out as it came; None for no reason.
    """

    role: Role
    tokens: int
    digest: bytes
    calls: tuple[Call, ...] = ()
    results: tuple[str, ...] = ()
    words: int = 0
    joins: bool = False
    continues: bool = False
    silent: bool = False
    signed: Signature = "none"
    media: bool = False
    loose: bytes | None = None
    lapses: bool = False
    loads: tuple[str, ...] = ()
    stored: bool = False
    barrier: bool = False
    bypass: str | None = None

    @property
    def is_user(self) -> bool:
        """Whether a user speaks in it."""
        return self.role == "user" or self.words > 0

    @property
    def kin(self) -> bytes:
        """Equal for this message and those that may take its place."""
        return self.loose or self.digest


@dataclass(frozen=True, slots=True)
class Order:
    """What an upstream takes of a conversation of which a part is left out.

    thinking:     where it may begin inside of a turn: anywhere, before a signed message of that turn (`signed`), or
                  directly before one (`leading`).
    instructions: where those of the covered part go: before the record, or behind the user message that follows it.
    """

    thinking: Literal["free", "signed", "leading"] = "signed"
    instructions: Literal["before", "behind"] = "before"


CHAT_ORDER = Order()


class Conversation:
    """Head, units, rounds and turns of one request.

    The head is always sent: instructions at the beginning, and everything up to a provider's own compaction, with the
    round that it stands in. All positions are indices into `body`, which is the rest. Lists of positions are
    ascending; `tokens_from[i]` is what body[i:] weighs.
    """

    def __init__(
        self,
        messages: Sequence[Message],
        tools_tokens: int = 0,
        order: Order = CHAT_ORDER,
        *,
        instructions_covered: bool = False,
        pinned: tuple[int, ...] = (),
        loading_room: int | None = None,
    ) -> None:
        """`instructions_covered`: system and developer messages of the body are summarized like all others.

        `pinned`: positions of user messages that go upstream whatever is covered. `loading_room`: tokens that covered
        rounds may take which load tools; None for any number.
        """
        self.messages = messages
        self.tools_tokens = tools_tokens
        self.order = order
        self.instructions_covered = instructions_covered
        self.pinned = pinned
        self.loading_room = loading_room
        self._barrier = next((i for i in range(len(messages) - 1, -1, -1) if messages[i].barrier), 0)
        self.head_length = self._end_of_head()
        self.body = messages[self.head_length :]

    def _end_of_head(self) -> int:
        messages, start = self.messages, self._barrier
        if messages and messages[start].barrier:
            return next((i for i in range(start + 1, len(messages)) if not _joins(messages, i)), len(messages))
        return next((i for i, m in enumerate(messages) if m.role not in INSTRUCTION_ROLES), len(messages))

    def with_messages(self, messages: Sequence[Message]) -> "Conversation":
        """The same conversation with other weights."""
        return Conversation(
            messages,
            self.tools_tokens,
            self.order,
            instructions_covered=self.instructions_covered,
            pinned=self.pinned,
            loading_room=self.loading_room,
        )

    @property
    def indexes(self) -> Sequence[MessageIndex]:
        """Of all messages."""
        return cast("Sequence[MessageIndex]", range(len(self.messages)))

    def index(self, position: int) -> MessageIndex:
        """Of the message at this position of the body."""
        return MessageIndex(self.head_length + position)

    @cached_property
    def head_tokens(self) -> int:
        """What stands before a provider's compaction is no part of the prompt."""
        return sum(m.tokens for m in self.messages[self._barrier : self.head_length])

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
        """Start of every unit: a user message, a round (what a model says at once with its tool results), or a stray
        instruction. What joins the message before it never starts one, save at the very beginning."""
        return [i for i in range(len(self.body)) if i == 0 or not _joins(self.body, i)]

    @cached_property
    def turns(self) -> list[int]:
        """Start of every turn: a user message that does not follow another one."""
        body = self.body
        return [i for i in self.users if i == 0 or not body[i - 1].is_user]

    @cached_property
    def users(self) -> list[int]:
        return [i for i, m in enumerate(self.body) if m.is_user]

    def anchor(self, cut: int) -> int | None:
        """The user message whose turn `cut` falls into: sent verbatim after the summary, None where none is needed."""
        if cut == 0 or cut >= len(self.body) or self.body[cut].role == "user":
            return None
        return self._last_user[cut - 1]

    def repeated(self, cut: int) -> list[int]:
        """User messages of body[:cut] that are sent verbatim after the record: those pinned, and the anchor."""
        anchor = self.anchor(cut)
        users = {*(i for i in self.pinned if i < cut), *(() if anchor is None else (anchor,))}
        return sorted(users.difference(self.loading(cut)))

    @cached_property
    def _last_user(self) -> list[int | None]:
        """For every position the newest user message at or before it."""
        last = None
        return [last := i if m.is_user else last for i, m in enumerate(self.body)]

    def loading(self, cut: int) -> list[int]:
        """Messages of body[:cut] by which tools are there: sent as they are, of every tool the newest, calls and
        results together, as far as there is room."""
        return self._loading(bisect_left(self._loads, cut)) if self._loads else []

    @cached_property
    def _loads(self) -> list[int]:
        return [i for i, m in enumerate(self.body) if m.loads and m.role not in INSTRUCTION_ROLES]

    def _loading(self, count: int) -> list[int]:
        """Of the first so many messages that load tools."""
        found: set[int] = set()
        seen: set[str] = set()
        tokens = 0
        for position in reversed(self._loads[max(0, count - _MOST_LOADING) : count]):
            names = self.body[position].loads
            if seen.issuperset(names):
                continue
            together = self._linked(position) - found
            tokens += sum(self.body[i].tokens for i in together)
            if self.loading_room is not None and tokens > self.loading_room:
                break
            seen.update(names)
            found |= together
        return sorted(found)

    def _linked(self, position: int) -> set[int]:
        """Messages of a unit that make, or hold the results of, the calls that this one does."""
        at = bisect_right(self.units, position)
        unit = range(self.units[at - 1], self.units[at] if at < len(self.units) else len(self.body))
        found, ids, size = {position}, set(_ids(self.body[position])), -1
        while len(ids) > size:
            size = len(ids)
            for i in unit:
                if not ids.isdisjoint(_ids(self.body[i])):
                    found.add(i)
                    ids.update(_ids(self.body[i]))
        return found

    def covered_instructions(self, cut: int) -> list[int]:
        """System and developer messages inside body[:cut] that go upstream as they are, with their authority: of those
        that say the same the newest, and none that has lapsed."""
        found: dict[object, int] = {}
        for i in self._instructions[: bisect_left(self._instructions, cut)]:
            message = self.body[i]
            if message.lapses and self._next_user[i] <= cut:
                continue
            name = message.loose or i
            found.pop(name, None)
            found[name] = i
        return [*found.values()]

    @cached_property
    def _instructions(self) -> list[int]:
        """What changes the tools is never covered."""
        covered = self.instructions_covered
        return [i for i, m in enumerate(self.body) if m.role in INSTRUCTION_ROLES and (m.loads or not covered)]

    @cached_property
    def _next_user(self) -> list[int]:
        """For every position the first user message behind it."""
        following = len(self.body) + 1
        found = []
        for i in range(len(self.body) - 1, -1, -1):
            found.append(following)
            following = i if self.body[i].is_user else following
        return found[::-1]

    @cached_property
    def _instruction_tokens(self) -> list[int]:
        """For every cut, the tokens of the instructions that it covers and that go upstream."""
        total, lapsing = 0, 0
        weights: dict[bytes, int] = {}
        found = []
        theirs = set(self._instructions)
        for i, message in enumerate(self.body):
            lapsing = 0 if message.is_user else lapsing
            found.append(total + lapsing)
            if i in theirs and message.lapses:
                lapsing += message.tokens
            elif i in theirs:
                total += message.tokens - (weights.get(message.loose, 0) if message.loose else 0)
                weights |= {message.loose: message.tokens} if message.loose else {}
        return [*found, total + lapsing]

    def kept_tokens(self, cut: int) -> int:
        """Tokens of the messages that still go upstream when body[:cut] is replaced by a record."""
        kept = self.tokens_from[cut] + self._instruction_tokens[cut]
        if self._loads:
            kept += sum(self.body[i].tokens for i in self.loading(cut))
        return kept + sum(self.body[i].words or self.body[i].tokens for i in self.repeated(cut))

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
        return next((i for i, m in enumerate(self.body) if m.is_user), None)


def _joins(messages: Sequence[Message], at: int) -> bool:
    """Whether a message goes on with the round of the one before it."""
    message = messages[at]
    return message.joins or (message.continues and messages[at - 1].role == "assistant")


def _ids(message: Message) -> list[str]:
    return [*(call.id for call in message.calls), *message.results]
