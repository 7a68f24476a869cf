"""Large messages that cooled down become short forms, in batches that never change (docs/design.md, "Large messages").

Everything here is a function of the message list and the window: every replica decides the same, a longer history only
adds batches, and so the bytes sent before stay as they are.
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
    """Positions in the body that are replaced from the moment on that the body had `seen` messages.

    payoff: of taking them out whole; their short forms weigh next to nothing. media: positions of results that stay but
    for their pictures and papers.
    """

    seen: int
    members: tuple[int, ...]
    payoff: Payoff
    media: tuple[int, ...] = ()

    @property
    def last(self) -> int:
        """The newest position."""
        return max(*self.members[-1:], *self.media[-1:], -1, -1)


@dataclass(frozen=True, slots=True)
class Coming:
    """A position that the next batch takes once the conversation has grown by about so many tokens."""

    position: int
    wait: int


@dataclass(frozen=True, slots=True)
class Zone:
    """batches: what is replaced, oldest first. next: what the next batch takes first, oldest first."""

    batches: tuple[Batch, ...]
    next: tuple[Coming, ...]


def zone_of(conversation: Conversation, window: int, policy: PolicySettings, pinned: Collection[int] = ()) -> Zone:
    """The large messages of a conversation that are replaced, and those whose turn comes next.

    `window` is the model's, in tokens; the shares count from its usable input for a request without a stated maximum
    output, less tools and head, so that neither such a maximum nor a calibration moves what is frozen.
    pinned: positions of what stays whole.
    """
    budget = usable_input(window, None, exact=True).behind(conversation.fixed_tokens)
    threshold = threshold_tokens(budget, policy)
    if all(message.tokens < threshold and not message.media_tokens for message in conversation.body):
        return Zone((), ())
    run = _CoolingRun(conversation, budget, policy, pinned)
    batches = tuple(batch for seen in conversation.units[1:] if (batch := run.step(seen)) is not None)
    return Zone(batches, tuple(run.foreseen()))


def threshold_tokens(budget: Budget, policy: PolicySettings) -> int:
    """From how many tokens on a message is large; the less is left beside tools and head, the fewer."""
    if policy.large_messages.threshold is not None:
        return policy.large_messages.threshold
    low, high = numbers.LARGE_RESULT_RANGE
    return max(low, min(int(numbers.LARGE_RESULT * (budget.window - budget.fixed)), high))


class _CoolingRun:
    """The large messages that are still sent whole, followed through the conversation unit by unit."""

    def __init__(
        self, conversation: Conversation, budget: Budget, policy: PolicySettings, pinned: Collection[int]
    ) -> None:
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
        last = -1
        self._last_user = [-1, *(last := i if m.is_user else last for i, m in enumerate(body))]
        left = policy.target_ratio * measured_room(budget, policy)
        # More is not sent beside tools and head: what lies further back is in a record by then.
        self._most = policy.compaction_threshold * budget.movable
        self._headroom = self._most - left
        # What a compaction costs in tokens of a prompt: the rest is written anew, and its model reads the whole.
        self._compaction = left * REWRITTEN + self._most * CACHED
        self._live: deque[int] = deque()
        self._cooled: deque[int] = deque()
        self._cooled_weight = 0
        self._weight = 0
        self._finished = 0
        self._read = 0

    def step(self, seen: int) -> Batch | None:
        """The state once body[:seen] was complete; a unit counts when the next one has begun."""
        self._finished += 1
        for position in range(self._read, seen):
            if self._is_large(position):
                self._live.append(position)
                self._weight += self._weighs(position)
        self._read = seen
        self._leave_covered(seen)
        self._cool(seen)
        worth = (1 - numbers.RELIEF) * self._valve
        if self._before[seen] < self._floor or self._weight <= self._valve or self._cooled_weight < worth:
            return None
        due = tuple(self._due())
        payoff = self._payoff(seen, due)
        if not self._pays(seen, payoff):
            return None
        self._take(due)
        media = tuple(position for position in due if self._body[position].media_tokens)
        return Batch(seen, tuple(position for position in due if position not in media), payoff, media)

    def _weighs(self, position: int) -> int:
        """What would go of a message."""
        message = self._body[position]
        return message.media_tokens or message.tokens

    def _payoff(self, seen: int, members: Sequence[int]) -> Payoff:
        """All behind tools and head is written anew: of a prompt that changes far from its end, caches that work by
        marks have no more than that."""
        removed = sum(map(self._weighs, members))
        sent = min(self._before[seen] - self._before[0], int(self._most))
        return payoff_of(removed, max(0, sent - removed))

    def _pays(self, seen: int, payoff: Payoff) -> bool:
        """Whether a batch now saves more than the cache that it breaks: what it takes out is not read again as long as
        the conversation may go on before a compaction, if it lasts as long again, and puts that off."""
        rounds = min(self._finished, self._headroom * self._finished / self._before[seen])
        saved = payoff.removed * (CACHED * rounds + self._compaction / self._headroom)
        return saved >= payoff.rewritten * REWRITTEN

    def _leave_covered(self, seen: int) -> None:
        """What a record has certainly taken the place of by now neither weighs nor cools."""
        for waiting in (self._cooled, self._live):
            while waiting and self._before[seen] - self._before[waiting[0]] > self._most:
                if waiting[0] == self._last_user[seen]:
                    return
                gone = self._weighs(waiting.popleft())
                self._weight -= gone
                self._cooled_weight -= gone if waiting is self._cooled else 0

    def _cool(self, seen: int) -> None:
        """What has cooled down stays so: the oldest first. Media are hot by their rounds alone."""
        while self._live:
            oldest = self._live[0]
            has_media = self._body[oldest].media_tokens > 0
            rounds = self._media_rounds if has_media else self._settings.hot_rounds
            is_recent = oldest >= self._units[max(0, self._finished - rounds)]
            if not (is_recent or has_media):
                is_recent = self._results_before[seen] - self._results_before[oldest] <= self._hot
            if is_recent or oldest == self._last_user[seen]:
                return
            self._cooled.append(self._live.popleft())
            self._cooled_weight += self._weighs(oldest)

    def _due(self) -> Iterator[int]:
        """The oldest that have cooled down, until the valve is relieved."""
        weight = self._weight
        for position in self._cooled:
            if weight <= numbers.RELIEF * self._valve:
                return
            weight -= self._weighs(position)
            yield position

    def _take(self, members: Sequence[int]) -> None:
        for position in members:
            self._cooled.popleft()
            self._cooled_weight -= self._weighs(position)
            self._weight -= self._weighs(position)

    def foreseen(self) -> Iterator[Coming]:
        """What the next batch takes for certain: the oldest that are worth one together."""
        worth = (1 - numbers.RELIEF) * self._valve
        members: list[int] = []
        weight = 0
        for position in (*self._cooled, *self._live):
            if weight >= worth:
                break
            members.append(position)
            weight += self._weighs(position)
        if members:
            wait = self._wait(members[-1], max(self._valve - self._weight, worth - weight))
            yield from (Coming(position, wait) for position in members if not self._body[position].media_tokens)

    def _wait(self, last: int, missing: float) -> int:
        """Tokens by which the conversation grows, if it goes on as it is, until so many more are in large messages, the
        floor is reached, and this one has cooled."""
        end = self._before[-1]
        newer = self._finished - bisect_right(self._units, last) + 1
        rounds = (self._settings.hot_rounds - newer) * end / max(1, len(self._units))
        tokens = self._hot - (self._results_before[-1] - self._results_before[last])
        large = sum(map(self._weighs, filter(self._is_large, range(self._read))))
        return max(
            0, int(rounds), tokens, int(missing * self._before[self._read] / max(1, large)), int(self._floor - end)
        )

    def _is_large(self, position: int) -> bool:
        message = self._body[position]
        if message.media_tokens:
            return self._ages_media and message.role == "tool" and not self._is_excluded(position)
        # A message of several results is as large as they are, on average, so that each dialect cools the same.
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
    """What stands for a large message: a status line, then its summary, else its first and last 400 characters; and
    whole, what a person typed into it. is_brought: see `typed_in_result`."""
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
    """Whether a short form is worth sending instead of a message of `tokens` tokens."""
    return bool(form.strip()) and count(form) < tokens
