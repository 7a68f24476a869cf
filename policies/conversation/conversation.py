"""A conversation for the policies: references to the client's messages and ranges of indexes, never copies."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import Literal, NamedTuple, NewType, cast

from policies.cached import cached_property
from policies.conversation.message import Message
from policies.conversation.outline import Outline

# The index of a message in the whole request. A plain number is a position in the body, after the head.
MessageIndex = NewType("MessageIndex", int)
# Maximum messages that load tools to consider for one cut. Real sessions have fewer than half as many.
_MOST_LOADING = 64


@dataclass(frozen=True, slots=True)
class Rooms:
    """Maximum tokens of covered messages that are sent all the same; None for no maximum.

    loading: for messages that load tools.
    task: for the user's current words.
    rules: for files of rules.
    oversize: a message above this fits no window anyway and is shortened itself.
    """

    loading: int | None = None
    task: int | None = None
    rules: int | None = None
    oversize: int | None = None


NO_LIMITS = Rooms()


class Span(NamedTuple):
    """Tokens that are sent in addition if the cut is after `after` and not after `until`."""

    after: int
    until: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Order:
    """The order that an upstream requires of a conversation with a part left out.

    thinking:     where thinking may begin within a turn: anywhere, before a signed message of that turn (`signed`), or
                  directly before one (`leading`).
    instructions: where instructions of the covered part go: before the record, or after the user message that follows
    it.
    """

    thinking: Literal["free", "signed", "leading"] = "signed"
    instructions: Literal["before", "behind"] = "before"


CHAT_ORDER = Order()


class Conversation:
    """The head, units, rounds and turns of one request.

    The head is always sent. It consists of the instructions at the beginning, or of everything up to a provider's own
    compaction with its round. All positions are indexes into `body`, the messages after the head. Lists of positions
    are ascending. `tokens_from[i]` is the number of tokens of body[i:].
    """

    def __init__(
        self,
        messages: Sequence[Message],
        tools_tokens: int = 0,
        order: Order = CHAT_ORDER,
        *,
        instructions_covered: bool = False,
        rooms: Rooms = NO_LIMITS,
        outline: Outline | None = None,
        carried: int | None = None,
        spans: Sequence[Span] = (),
        barred: frozenset[int] = frozenset(),
    ) -> None:
        """Create the conversation of these messages.

        instructions_covered: True if system and developer messages of the body are summarized like all others.
        outline: of these messages, if it exists already.
        carried: position of a record that the client carries for the messages before it.
        spans: texts that other cuts restore (policies/pointers.py).
        barred: cuts that are not legal because their records were undone.
        """
        self.messages = messages
        self.tools_tokens = tools_tokens
        self.order = order
        self.instructions_covered = instructions_covered
        self.rooms = rooms
        self.carried = carried
        self.spans = spans
        self.barred = barred
        self.outline = outline or Outline().longer(messages)
        self.head_length = self.outline.head
        self.body = messages[self.head_length :]

    def with_messages(self, messages: Sequence[Message]) -> "Conversation":
        """Return the same conversation with other token counts."""
        return self._with(messages, self.rooms, self.spans)

    def with_rooms(self, rooms: Rooms) -> "Conversation":
        """Return the same conversation with other limits for repeated messages."""
        return self._with(self.messages, rooms, self.spans)

    def with_spans(self, spans: Sequence[Span]) -> "Conversation":
        """Return the conversation with the tokens that other cuts would add to it, see `Span`."""
        return self._with(self.messages, self.rooms, spans)

    def _with(self, messages: Sequence[Message], rooms: Rooms, spans: Sequence[Span]) -> "Conversation":
        return Conversation(
            messages,
            self.tools_tokens,
            self.order,
            instructions_covered=self.instructions_covered,
            rooms=rooms,
            outline=self.outline,
            carried=self.carried,
            spans=spans,
            barred=self.barred,
        )

    @property
    def indexes(self) -> Sequence[MessageIndex]:
        """Return the indexes of all messages."""
        return cast("Sequence[MessageIndex]", range(len(self.messages)))

    def index(self, position: int) -> MessageIndex:
        """Return the index of the message at this position of the body."""
        return MessageIndex(self.head_length + position)

    @cached_property
    def head_tokens(self) -> int:
        """Return the tokens of the head. Messages before a provider's compaction are not part of the prompt."""
        return sum(m.tokens for m in self.messages[self.outline.barrier : self.head_length])

    @property
    def fixed_tokens(self) -> int:
        """Return the tokens that every request has, whatever is cut: tools and head."""
        return self.tools_tokens + self.head_tokens

    @cached_property
    def tokens_from(self) -> list[int]:
        """Return the tokens of body[i:] for every i."""
        return [*accumulate(map(attrgetter("tokens"), reversed(self.body)), initial=0)][::-1]

    @property
    def total_tokens(self) -> int:
        """Return N: the tokens of tools, head and body."""
        return self.fixed_tokens + self.tokens_from[0]

    @property
    def units(self) -> list[int]:
        """Return the start of every unit."""
        return self.outline.units

    @property
    def turns(self) -> list[int]:
        """Return the start of every turn: a message of a person that does not directly follow another one."""
        return self.outline.turns

    @property
    def users(self) -> list[int]:
        """Return the positions of messages in the user role."""
        return self.outline.users

    def anchors(self, cut: int) -> list[int]:
        """Return the positions in body[:cut] whose words of a person still apply, in order. They are sent verbatim.

        These are the newest task, what was said since the agent last stopped, and the client's own summary, as far as
        there is room. There are none if the cut is at a new task.
        """
        if cut == 0 or cut >= len(self.body):
            return []
        candidates = [
            *self._current_words(cut),
            *self.outline.summaries[: bisect_left(self.outline.summaries, cut)][-1:],
        ]
        fitting, room_left, oversize = [], self.rooms.task, self.rooms.oversize
        for position in dict.fromkeys(candidates):
            tokens = self.body[position].words or self.body[position].tokens
            if room_left is None or tokens <= room_left or (oversize is not None and tokens > oversize):
                fitting.append(position)
                room_left = None if room_left is None else room_left - tokens
        return sorted(fitting)

    def _current_words(self, cut: int) -> list[int]:
        """Return the positions of a person's words that still apply at the cut, the most important first."""
        outline = self.outline
        if not outline.spoken or outline.spoken[0] >= cut:  # words after the cut change nothing before it
            return self._last_user(cut)
        if _contains(outline.tasks, cut):
            return []
        tasks = bisect_left(outline.tasks, cut)
        task = outline.tasks[tasks - 1] if tasks else outline.spoken[0]
        if _contains(outline.openers, cut):
            return [task] if task < cut else []
        openers = bisect_left(outline.openers, cut)
        opener_start = outline.openers[openers - 1] if openers else 0
        since = outline.spoken[bisect_left(outline.spoken, opener_start) : bisect_left(outline.spoken, cut)]
        newest_heard = outline.heard[: bisect_left(outline.heard, cut)][-1:]
        return [position for position in (task, *newest_heard, *reversed(since)) if position < cut]

    def _last_user(self, cut: int) -> list[int]:
        if self.body[cut].role == "user":
            return []
        count = bisect_left(self.users, cut)
        return [self.users[count - 1]] if count else []

    def repeated_messages(self, cut: int) -> list[int]:
        """Return the anchors of body[:cut] in order, without those that load tools and are sent anyway."""
        return sorted({*self.anchors(cut)}.difference(self.loading(cut)))

    def rules(self, cut: int) -> list[int]:
        """Return the messages of body[:cut] whose files of rules are sent unchanged, the newest of every file.

        Leave out those without room and those that are sent anyway.
        """
        newest_by_file: dict[str, int] = {}
        for position in self.outline.rules[: bisect_left(self.outline.rules, cut)]:
            newest_by_file |= dict.fromkeys(self.body[position].rules, position)
        fitting, room_left = [], self.rooms.rules
        for position in sorted({*newest_by_file.values()}.difference(self.repeated_messages(cut))):
            tokens = self.body[position].rule_tokens
            if room_left is None or tokens <= room_left:
                fitting.append(position)
                room_left = None if room_left is None else room_left - tokens
        return fitting

    def loading(self, cut: int) -> list[int]:
        """Return the messages of body[:cut] that load tools and are sent unchanged, the newest of every tool.

        Calls and their results stay together. Those without room are left out.
        """
        loads = self.outline.loading
        return self._loading(bisect_left(loads, cut)) if loads else []

    def _loading(self, count: int) -> list[int]:
        """Return those among the first `count` messages that load tools."""
        loading: set[int] = set()
        loaded: set[str] = set()
        tokens = 0
        for position in reversed(self.outline.loading[max(0, count - _MOST_LOADING) : count]):
            names = self.body[position].loads
            if loaded.issuperset(names):
                continue
            linked = self._linked_messages(position) - loading
            tokens += sum(self.body[i].tokens for i in linked)
            if self.rooms.loading is not None and tokens > self.rooms.loading:
                break
            loaded.update(names)
            loading |= linked
        return sorted(loading)

    def _linked_messages(self, position: int) -> set[int]:
        """Return the messages of the unit that are linked to this one by calls and results."""
        at = bisect_right(self.units, position)
        unit = range(self.units[at - 1], self.units[at] if at < len(self.units) else len(self.body))
        linked, ids, size = {position}, set(_ids(self.body[position])), -1
        while len(ids) > size:
            size = len(ids)
            for i in unit:
                if not ids.isdisjoint(_ids(self.body[i])):
                    linked.add(i)
                    ids.update(_ids(self.body[i]))
        return linked

    def covered_instructions(self, cut: int) -> list[int]:
        """Return the system and developer messages in body[:cut] that are sent unchanged, with their authority.

        Of equal ones only the newest is returned, and none that has lapsed.
        """
        newest_by_name: dict[object, int] = {}
        for i in self._instructions[: bisect_left(self._instructions, cut)]:
            message = self.body[i]
            if message.lapses and self._next_user(i) <= cut:
                continue
            name = message.loose or i
            newest_by_name.pop(name, None)
            newest_by_name[name] = i
        return [*newest_by_name.values()]

    @cached_property
    def _instructions(self) -> list[int]:
        """Return the positions of instructions that are never covered, such as those that change the tools."""
        instructions = self.outline.instructions
        return [i for i in instructions if self.body[i].loads] if self.instructions_covered else instructions

    def _next_user(self, position: int) -> int:
        """Return the first user message after a position."""
        at = bisect_right(self.users, position)
        return self.users[at] if at < len(self.users) else len(self.body) + 1

    @cached_property
    def _instruction_tokens(self) -> list[int]:
        """Return for every cut the tokens of the covered instructions that are still sent."""
        total, lapsing = 0, 0
        weights: dict[bytes, int] = {}
        tokens_by_cut = []
        sent_instructions = set(self._instructions)
        for i, message in enumerate(self.body):
            lapsing = 0 if message.is_user else lapsing
            tokens_by_cut.append(total + lapsing)
            if i in sent_instructions and message.lapses:
                lapsing += message.tokens
            elif i in sent_instructions:
                total += message.tokens - (weights.get(message.loose, 0) if message.loose else 0)
                weights |= {message.loose: message.tokens} if message.loose else {}
        return [*tokens_by_cut, total + lapsing]

    @cached_property
    def _span_tokens(self) -> list[int]:
        """Return for every cut the tokens that its spans add."""
        steps = [0] * (len(self.body) + 2)
        for span in self.spans:
            steps[span.after + 1] += span.tokens
            steps[span.until + 1] -= span.tokens
        return [*accumulate(steps)]

    def kept_tokens(self, cut: int) -> int:
        """Return the tokens of the messages that are still sent if a record replaces body[:cut]."""
        tokens = self.tokens_from[cut]
        if self.spans:
            tokens += self._span_tokens[cut]
        if self._instructions:
            tokens += self._instruction_tokens[cut]
        if self.outline.loading:
            tokens += sum(self.body[i].tokens for i in self.loading(cut))
        if self.outline.rules:
            tokens += sum(self.body[i].rule_tokens for i in self.rules(cut))
        return tokens + sum(self.body[i].words or self.body[i].tokens for i in self.repeated_messages(cut))

    @property
    def tools_answered(self) -> list[tuple[str | None, ...]]:
        """Return for every message the tools of its results, in order; None for a result without a call."""
        return self.outline.answers

    def late_results(self, start: int) -> set[int]:
        """Return the positions from `start` on of results whose calls precede `start`."""
        open_calls = {call.id for message in self.body[:start] for call in message.calls}
        late = set()
        for position in range(start, len(self.body)):
            message = self.body[position]
            open_calls.difference_update(call.id for call in message.calls)
            if not open_calls.isdisjoint(message.results):
                late.add(position)
        return late

    def first_spoken(self) -> int | None:
        """Return the first message in which a person speaks."""
        spoken = self.outline.spoken or self.users
        return spoken[0] if spoken else None


def _contains(positions: Sequence[int], position: int) -> bool:
    """Return True if the ascending positions contain this one."""
    at = bisect_left(positions, position)
    return at < len(positions) and positions[at] == position


def _ids(message: Message) -> list[str]:
    return [*(call.id for call in message.calls), *message.results]
