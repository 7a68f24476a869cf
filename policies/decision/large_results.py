"""Replacement of old large messages by short forms, in batches that never change (docs/design.md, "Large messages").

The batches depend only on the messages and the window. So every replica decides the same, and a longer history only
adds batches: the bytes sent before stay the same.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from policies import numbers
from policies.authorship.heard import words_of
from policies.authorship.parts import typed_in_result
from policies.conversation.conversation import Conversation
from policies.conversation.transcript import CountTokens
from policies.decision.budget import Budget, usable_input
from policies.decision.cut import measured_room
from policies.price import CACHED, REWRITTEN, Payoff, payoff_of
from policies.settings import PolicySettings


@dataclass(frozen=True, slots=True)
class Batch:
    """Positions in the body that are replaced from the time the body had `seen` messages.

    payoff: computed as if the messages were removed, since their short forms are tiny.
    media: positions of results whose pictures and papers alone are removed.
    """

    seen: int
    members: tuple[int, ...]
    payoff: Payoff
    media: tuple[int, ...] = ()

    @property
    def last(self) -> int:
        """Return the newest position; -1 if there is none."""
        return max(*self.members[-1:], *self.media[-1:], -1, -1)


@dataclass(frozen=True, slots=True)
class Coming:
    """A position of the next batch. wait: estimated tokens by which the conversation grows until then."""

    position: int
    wait: int


@dataclass(frozen=True, slots=True)
class Zone:
    """The batches of replaced messages, oldest first, and the first positions of the next batch."""

    batches: tuple[Batch, ...]
    next: tuple[Coming, ...]


def zone_of(conversation: Conversation, window: int, policy: PolicySettings, pinned: Collection[int] = ()) -> Zone:
    """Return the replaced large messages of a conversation, and those to be replaced next.

    window: of the model, in tokens. Shares count from its usable input without a stated maximum output, minus tools and
    head. So neither such a maximum nor a calibration changes existing batches.
    pinned: positions of messages that are never replaced.
    """
    budget = usable_input(window, None, exact=True).with_fixed(conversation.fixed_tokens)
    threshold = threshold_tokens(budget, policy)
    if all(message.tokens < threshold and not message.media_tokens for message in conversation.body):
        return Zone((), ())
    run = _CoolingRun(conversation, budget, policy, pinned)
    batches = tuple(batch for seen in conversation.units[1:] if (batch := run.step(seen)) is not None)
    return Zone(batches, tuple(run.foreseen()))


def threshold_tokens(budget: Budget, policy: PolicySettings) -> int:
    """Return the tokens from which a message is large. The threshold is lower if tools and head leave less room."""
    if policy.large_messages.threshold is not None:
        return policy.large_messages.threshold
    low, high = numbers.LARGE_RESULT_RANGE
    return max(low, min(int(numbers.LARGE_RESULT * (budget.window - budget.fixed)), high))


class _CoolingRun:
    """The large messages that are still sent in full, tracked unit by unit through the conversation."""

    def __init__(
        self, conversation: Conversation, budget: Budget, policy: PolicySettings, pinned: Collection[int]
    ) -> None:
        """Start before the first unit of a conversation."""
        body = conversation.body
        self._pinned = pinned
        self._body = body
        self._settings = policy.large_messages
        self._ages_media = policy.media.mode == "on"
        self._media_rounds = policy.media.keep_rounds or policy.large_messages.hot_rounds
        self._threshold = threshold_tokens(budget, policy)
        self._floor = budget.at(policy.apply_floor)
        self._valve = policy.large_messages.valve * budget.movable
        self._hot = min(numbers.MOST_HOT_RESULTS, int(numbers.HOT_RESULTS * budget.movable))
        self._before = [*accumulate((m.tokens for m in body), initial=conversation.fixed_tokens)]
        weights = (m.tokens if m.role in policy.large_messages.roles else 0 for m in body)
        self._results_before = [*accumulate(weights, initial=0)]
        self._units = conversation.units
        self._tools = conversation.tools_answered
        last_user = -1
        self._last_user = [-1, *(last_user := i if m.is_user else last_user for i, m in enumerate(body))]
        target = policy.target_ratio * measured_room(budget, policy)
        # The conversation never exceeds this. Earlier messages are in a record by then.
        self._most = policy.compaction_threshold * budget.movable
        self._headroom = self._most - target
        # The price of a compaction in prompt tokens: the remaining prompt is written again, and the model reads
        # everything.
        self._compaction = target * REWRITTEN + self._most * CACHED
        self._live: deque[int] = deque()
        self._cooled: deque[int] = deque()
        self._cooled_weight = 0
        self._weight = 0
        self._finished = 0
        self._read = 0

    def step(self, length: int) -> Batch | None:
        """Return the batch once body[:length] is complete, or None. A unit counts when the next one has begun."""
        self._finished += 1
        for position in range(self._read, length):
            if self._is_large(position):
                self._live.append(position)
                self._weight += self._weight_of(position)
        self._read = length
        self._drop_covered(length)
        self._cool(length)
        worth = (1 - numbers.RELIEF) * self._valve
        if self._before[length] < self._floor or self._weight <= self._valve or self._cooled_weight < worth:
            return None
        due = tuple(self._due())
        payoff = self._payoff(length, due)
        if not self._pays(length, payoff):
            return None
        self._take(due)
        media = tuple(position for position in due if self._body[position].media_tokens)
        return Batch(length, tuple(position for position in due if position not in media), payoff, media)

    def _weight_of(self, position: int) -> int:
        """Return the tokens that replacing a message removes."""
        message = self._body[position]
        return message.media_tokens or message.tokens

    def _payoff(self, length: int, members: Sequence[int]) -> Payoff:
        """Return the payoff of a batch. Everything after tools and head is written again.

        If a prompt changes far from its end, caches with breakpoints retain no more than tools and head.
        """
        removed = sum(map(self._weight_of, members))
        sent = min(self._before[length] - self._before[0], int(self._most))
        return payoff_of(removed, max(0, sent - removed))

    def _pays(self, length: int, payoff: Payoff) -> bool:
        """Return True if a batch saves more than it costs to write the prompt to the cache again.

        The removed tokens are not read again until the next compaction, which they also postpone. The conversation is
        expected to last as long again as it has so far.
        """
        rounds = min(self._finished, self._headroom * self._finished / self._before[length])
        saved = payoff.removed * (CACHED * rounds + self._compaction / self._headroom)
        return saved >= payoff.rewritten * REWRITTEN

    def _drop_covered(self, length: int) -> None:
        """Drop messages that a record certainly covers by now. They neither weigh nor cool."""
        for waiting in (self._cooled, self._live):
            while waiting and self._before[length] - self._before[waiting[0]] > self._most:
                if waiting[0] == self._last_user[length]:
                    return
                weight = self._weight_of(waiting.popleft())
                self._weight -= weight
                self._cooled_weight -= weight if waiting is self._cooled else 0

    def _cool(self, length: int) -> None:
        """Move messages that have cooled down, the oldest first. Media stay hot for a number of rounds only."""
        while self._live:
            oldest = self._live[0]
            has_media = self._body[oldest].media_tokens > 0
            rounds = self._media_rounds if has_media else self._settings.hot_rounds
            is_recent = oldest >= self._units[max(0, self._finished - rounds)]
            if not (is_recent or has_media):
                is_recent = self._results_before[length] - self._results_before[oldest] <= self._hot
            if is_recent or oldest == self._last_user[length]:
                return
            self._cooled.append(self._live.popleft())
            self._cooled_weight += self._weight_of(oldest)

    def _due(self) -> Iterator[int]:
        """Yield the oldest cooled messages until enough weight is removed."""
        weight = self._weight
        for position in self._cooled:
            if weight <= numbers.RELIEF * self._valve:
                return
            weight -= self._weight_of(position)
            yield position

    def _take(self, members: Sequence[int]) -> None:
        for position in members:
            self._cooled.popleft()
            self._cooled_weight -= self._weight_of(position)
            self._weight -= self._weight_of(position)

    def foreseen(self) -> Iterator[Coming]:
        """Yield the positions that the next batch certainly has: the oldest that are worth a batch together."""
        worth = (1 - numbers.RELIEF) * self._valve
        members: list[int] = []
        weight = 0
        for position in (*self._cooled, *self._live):
            if weight >= worth:
                break
            members.append(position)
            weight += self._weight_of(position)
        if members:
            wait = self._wait(members[-1], max(self._valve - self._weight, worth - weight))
            yield from (Coming(position, wait) for position in members if not self._body[position].media_tokens)

    def _wait(self, newest_member: int, missing: float) -> int:
        """Return the tokens by which the conversation grows until a batch is due, if it continues as before.

        By then `missing` more tokens are in large messages, the floor is reached, and the message `last` has cooled.
        """
        end = self._before[-1]
        newer = self._finished - bisect_right(self._units, newest_member) + 1
        rounds = (self._settings.hot_rounds - newer) * end / max(1, len(self._units))
        tokens = self._hot - (self._results_before[-1] - self._results_before[newest_member])
        large = sum(map(self._weight_of, filter(self._is_large, range(self._read))))
        return max(
            0, int(rounds), tokens, int(missing * self._before[self._read] / max(1, large)), int(self._floor - end)
        )

    def _is_large(self, position: int) -> bool:
        message = self._body[position]
        if message.media_tokens:
            return self._ages_media and message.role == "tool" and not self._is_excluded(position)
        # Divide by the number of results, so that dialects with several results in a message cool the same.
        if message.tokens < self._threshold * max(1, len(message.results)):
            return False
        if message.role not in self._settings.roles:
            return False
        if message.media or message.signed != "none":
            return False
        return not self._is_excluded(position)

    def _is_excluded(self, position: int) -> bool:
        return position in self._pinned or any(tool in self._settings.exclude_tools for tool in self._tools[position])


def short_form(text: str, tool: str | None, summary: str | None, tokens: int, *, is_brought: bool = False) -> str:
    """Return the short form of a large message: a status line, and a summary or the first and last 400 characters.

    Text that a person typed into a result is kept in full. is_brought: see `typed_in_result`.
    """
    typed = words_of(typed_in_result(text, tool, is_brought=is_brought)) if tool else ""
    form = _short_form(text, tool, summary, tokens)
    return f"{form}\n[The user said here:] {typed}" if typed and typed not in form else form


def _short_form(text: str, tool: str | None, summary: str | None, tokens: int) -> str:
    source = f"output of {tool}" if tool else "message"
    status = f"[{source}, {len(text):,} characters, {tokens:,} tokens, shortened by the gateway"
    if summary is not None:
        return f"{status} to a summary]\n{summary}"
    left_out = len(text) - 2 * numbers.EXCERPT
    if left_out <= 0:
        return f"{status}]\n{text}"
    excerpt = f"{text[: numbers.EXCERPT]}\n[… {left_out:,} characters left out …]\n{text[-numbers.EXCERPT :]}"
    return f"{status}: its beginning and end]\n{excerpt}"


def is_short_enough(form: str, tokens: int, count: CountTokens) -> bool:
    """Return True if a short form has fewer tokens than its message of `tokens` tokens."""
    return bool(form.strip()) and count(form) < tokens
