"""A conversation as the policies see it: references and index ranges over the client's messages, never copies."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import Literal, NamedTuple, NewType, cast

from policies.cached import cached_property
from policies.conversation.message import Message
from policies.conversation.outline import Outline

# Of a message among all that a request holds. A plain number is a position in the body, behind the head.
MessageIndex = NewType("MessageIndex", int)
# Messages that load tools and are looked at for one cut: no session has half as many.
_MOST_LOADING = 64


@dataclass(frozen=True, slots=True)
class Rooms:
    """Tokens that covered messages may take which are sent all the same; None for any number.

    loading: those that load tools. task: what the user said that is at work. rules: files of rules. oversize: from here
    on a message fits no window anyway, and is cut itself.
    """

    loading: int | None = None
    task: int | None = None
    rules: int | None = None
    oversize: int | None = None


NO_LIMITS = Rooms()


class Span(NamedTuple):
    """Tokens that are sent in addition if the cut is at a position after `after` and not after `until`."""

    after: int
    until: int
    tokens: int


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
        rooms: Rooms = NO_LIMITS,
        outline: Outline | None = None,
        carried: int | None = None,
        spans: Sequence[Span] = (),
        barred: frozenset[int] = frozenset(),
    ) -> None:
        """`instructions_covered`: system and developer messages of the body are summarized like all others.

        `outline`: of these messages, if it is there already. `carried`: position of a record of ours that the client
        carries, of what is before it. `spans`: texts that other cuts put back (policies/pointers.py). `barred`: cuts
        that are not legal, since their records were undone.
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
        """The same conversation with other weights."""
        return self._with(messages, self.rooms, self.spans)

    def with_rooms(self, rooms: Rooms) -> "Conversation":
        """The same conversation, of which as much is repeated as these have room for."""
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
        """Of all messages."""
        return cast("Sequence[MessageIndex]", range(len(self.messages)))

    def index(self, position: int) -> MessageIndex:
        """Of the message at this position of the body."""
        return MessageIndex(self.head_length + position)

    @cached_property
    def head_tokens(self) -> int:
        """What stands before a provider's compaction is no part of the prompt."""
        return sum(m.tokens for m in self.messages[self.outline.barrier : self.head_length])

    @property
    def fixed_tokens(self) -> int:
        """What every request carries whatever is cut: tools and head."""
        return self.tools_tokens + self.head_tokens

    @cached_property
    def tokens_from(self) -> list[int]:
        return [*accumulate(map(attrgetter("tokens"), reversed(self.body)), initial=0)][::-1]

    @property
    def total_tokens(self) -> int:
        """N: tools, head and body."""
        return self.fixed_tokens + self.tokens_from[0]

    @property
    def units(self) -> list[int]:
        """Start of every unit."""
        return self.outline.units

    @property
    def turns(self) -> list[int]:
        """Start of every turn: a message in which a person speaks, and that does not follow another one."""
        return self.outline.turns

    @property
    def users(self) -> list[int]:
        return self.outline.users

    def anchors(self, cut: int) -> list[int]:
        """What of body[:cut] a person said that is at work at the cut, and is sent verbatim after the record, in order.

        The newest request, what was said since the last time the agent had stopped, and the client's own summary, as
        far as there is room; nothing where the cut is at a new request.
        """
        if cut == 0 or cut >= len(self.body):
            return []
        wanted = [*self._at_work(cut), *self.outline.summaries[: bisect_left(self.outline.summaries, cut)][-1:]]
        found, left, oversize = [], self.rooms.task, self.rooms.oversize
        for position in dict.fromkeys(wanted):
            tokens = self.body[position].words or self.body[position].tokens
            if left is None or tokens <= left or (oversize is not None and tokens > oversize):
                found.append(position)
                left = None if left is None else left - tokens
        return sorted(found)

    def _at_work(self, cut: int) -> list[int]:
        """Positions of what a person said that is at work at the cut, what matters most first."""
        outline = self.outline
        if not outline.spoken or outline.spoken[0] >= cut:  # what is said behind the cut changes nothing before it
            return self._last_user(cut)
        if _holds(outline.tasks, cut):
            return []
        tasks = bisect_left(outline.tasks, cut)
        task = outline.tasks[tasks - 1] if tasks else outline.spoken[0]
        if _holds(outline.openers, cut):
            return [task] if task < cut else []
        openers = bisect_left(outline.openers, cut)
        begun = outline.openers[openers - 1] if openers else 0
        since = outline.spoken[bisect_left(outline.spoken, begun) : bisect_left(outline.spoken, cut)]
        last = outline.heard[: bisect_left(outline.heard, cut)][-1:]
        return [position for position in (task, *last, *reversed(since)) if position < cut]

    def _last_user(self, cut: int) -> list[int]:
        if self.body[cut].role == "user":
            return []
        before = bisect_left(self.users, cut)
        return [self.users[before - 1]] if before else []

    def repeated_messages(self, cut: int) -> list[int]:
        """Return the anchors of body[:cut] in their order, without those that load tools and are sent anyway."""
        return sorted({*self.anchors(cut)}.difference(self.loading(cut)))

    def rules(self, cut: int) -> list[int]:
        """Messages of body[:cut] whose files of rules are sent as they are, of every file the newest, as far as there
        is room; without those that are sent anyway."""
        found: dict[str, int] = {}
        for position in self.outline.rules[: bisect_left(self.outline.rules, cut)]:
            found |= dict.fromkeys(self.body[position].rules, position)
        kept, left = [], self.rooms.rules
        for position in sorted({*found.values()}.difference(self.repeated_messages(cut))):
            tokens = self.body[position].rule_tokens
            if left is None or tokens <= left:
                kept.append(position)
                left = None if left is None else left - tokens
        return kept

    def loading(self, cut: int) -> list[int]:
        """Messages of body[:cut] by which tools are there: sent as they are, of every tool the newest, calls and
        results together, as far as there is room."""
        loads = self.outline.loading
        return self._loading(bisect_left(loads, cut)) if loads else []

    def _loading(self, count: int) -> list[int]:
        """Of the first so many messages that load tools."""
        found: set[int] = set()
        seen: set[str] = set()
        tokens = 0
        for position in reversed(self.outline.loading[max(0, count - _MOST_LOADING) : count]):
            names = self.body[position].loads
            if seen.issuperset(names):
                continue
            together = self._linked_messages(position) - found
            tokens += sum(self.body[i].tokens for i in together)
            if self.rooms.loading is not None and tokens > self.rooms.loading:
                break
            seen.update(names)
            found |= together
        return sorted(found)

    def _linked_messages(self, position: int) -> set[int]:
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
            if message.lapses and self._next_user(i) <= cut:
                continue
            name = message.loose or i
            found.pop(name, None)
            found[name] = i
        return [*found.values()]

    @cached_property
    def _instructions(self) -> list[int]:
        """What changes the tools is never covered."""
        found = self.outline.instructions
        return [i for i in found if self.body[i].loads] if self.instructions_covered else found

    def _next_user(self, position: int) -> int:
        """The first user message behind a position."""
        at = bisect_right(self.users, position)
        return self.users[at] if at < len(self.users) else len(self.body) + 1

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

    @cached_property
    def _put_back(self) -> list[int]:
        """For every cut, the tokens that its spans add."""
        steps = [0] * (len(self.body) + 2)
        for span in self.spans:
            steps[span.after + 1] += span.tokens
            steps[span.until + 1] -= span.tokens
        return [*accumulate(steps)]

    def kept_tokens(self, cut: int) -> int:
        """Tokens of the messages that still go upstream when body[:cut] is replaced by a record."""
        kept = self.tokens_from[cut]
        if self.spans:
            kept += self._put_back[cut]
        if self._instructions:
            kept += self._instruction_tokens[cut]
        if self.outline.loading:
            kept += sum(self.body[i].tokens for i in self.loading(cut))
        if self.outline.rules:
            kept += sum(self.body[i].rule_tokens for i in self.rules(cut))
        return kept + sum(self.body[i].words or self.body[i].tokens for i in self.repeated_messages(cut))

    @property
    def tools_answered(self) -> list[tuple[str | None, ...]]:
        """Of every message, which tools its results are of, in their order; None where a result answers no call."""
        return self.outline.answers

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

    def first_spoken(self) -> int | None:
        """The first message in which a person speaks."""
        spoken = self.outline.spoken or self.users
        return spoken[0] if spoken else None


def _holds(positions: Sequence[int], position: int) -> bool:
    """Whether it is one of these, which ascend."""
    at = bisect_left(positions, position)
    return at < len(positions) and positions[at] == position


def _ids(message: Message) -> list[str]:
    return [*(call.id for call in message.calls), *message.results]
