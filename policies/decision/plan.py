"""The plan for one request, decided as a value before anything is done."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from policies import numbers
from policies.conversation.conversation import Conversation
from policies.conversation.message import Message
from policies.decision.budget import Budget, usual_names, with_limit
from policies.decision.cut import Cut, by_target, choose_cut, least_kept, longer_tail, measured_room, target_tokens
from policies.price import Payoff, Price, ReadSoFar, payoff_of
from policies.settings import PolicySettings

Trigger = Literal["proactive", "tool_execution", "overflow_retry", "manual", "background", "economy", "client"]

AHEAD: frozenset[Trigger] = frozenset({"background", "economy"})
"""Triggers of compactions that run after a response. No request waits for them."""


@dataclass(frozen=True, slots=True)
class ActiveCheckpoint:
    """A record that matches this request: body[:covered] is replaced by a text of `record_tokens`."""

    covered: int
    record_tokens: int


@dataclass(frozen=True, slots=True)
class Forward:
    """Send the client's bytes unchanged."""

    reason: str


@dataclass(frozen=True, slots=True)
class Reuse:
    """Send the current record and the remaining messages, without a new summary."""

    standing: ActiveCheckpoint
    reason: str


@dataclass(frozen=True, slots=True)
class Compact:
    """Make a record of body[:cut] that continues the current one.

    must: True if the request cannot be sent without it.
    with_model: True if a model's summary is worth its price.
    budget: for the record and the remaining request.
    target: intended tokens of the request, if the cut may still move when the record is smaller (`RecordBuilder.fit`).
    None if it may not, because the request is not full.
    growth: tokens by which the tail grows until a record made ahead is needed.
    read_so_far: the reason, if the record is made because it pays.
    """

    cut: Cut
    budget: Budget
    standing: ActiveCheckpoint | None
    must: bool
    trigger: Trigger
    tokens_before: int
    with_model: bool = True
    target: int | None = None
    growth: int = 0
    read_so_far: ReadSoFar | None = None

    @property
    def payoff(self) -> Payoff:
        """Return the payoff with a record of maximum size. Tools and head stay in the cache."""
        remaining = self.budget.replacing + self.cut.kept
        return payoff_of(self.tokens_before - self.budget.fixed - remaining, remaining)


Plan = Forward | Reuse | Compact


@dataclass(frozen=True, slots=True)
class Weight:
    """The expected tokens of a record: its text, its working set, and its files of rules."""

    text: int
    names: int
    rules: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """The budgets of a request.

    real: of the model's window; None if unknown.
    budget: the one to plan with.
    """

    real: Budget | None
    budget: Budget

    @property
    def known(self) -> bool:
        """Return True if the window is known."""
        return self.real is not None


def limits_of(real: Budget | None, policy: PolicySettings, fixed: int) -> Limits:
    """Return the limits of a request with `fixed` tokens of tools and head.

    The policy's token limit replaces a larger or unknown window, so that all shares count from it.
    """
    real = real and real.with_fixed(fixed)
    budget = with_limit(real, _usable_for(policy.token_limit, policy, fixed)).with_fixed(fixed)
    return Limits(real, with_names(budget, policy))


def with_names(budget: Budget, policy: PolicySettings) -> Budget:
    """Return the budget with the policy's share for the working set, as far as the record leaves room."""
    room_next_to_record = max(0, int(numbers.MOST_INJECTED * budget.movable) - budget.record)
    return _with_rounded_names(budget, min(_share_of_names(budget, policy), room_next_to_record))


def most_names(budget: Budget, policy: PolicySettings) -> int:
    """Return the maximum tokens of the working set in the remainder of the record; in a tiny room its budget alone."""
    return budget.names if budget.movable < numbers.LEAST_FITTED_ROOM else _share_of_names(budget, policy)


def _share_of_names(budget: Budget, policy: PolicySettings) -> int:
    settings, room = policy.working_set, budget.movable
    most = usual_names(room) if settings.max_tokens is None else settings.max_tokens
    return min(int(settings.budget_ratio * room), most)


def is_far_below(tokens: int, window: int, calibration: float, policy: PolicySettings) -> bool:
    """Return True if a request is so small for its window that nothing is done with it."""
    least = min(numbers.LEAST_USABLE * window / calibration, policy.token_limit)
    return tokens + 1 < min(attention_floor(policy), numbers.MESSAGES_COUNT_FROM) * least


def attention_floor(policy: PolicySettings, *, is_known: bool = True) -> float:
    """Return the share of M below which a request is forwarded without reading the store.

    Records may have been made from `economy_from` on. The floor is well below, because estimates may decrease. In an
    unknown window (`is_known`) no record is made that early.
    """
    return min(policy.apply_floor, policy.economy_from / 2) if policy.economy and is_known else policy.apply_floor


def needs_attention(conversation: Conversation, limits: Limits, policy: PolicySettings) -> bool:
    """Return True if a request is large enough to look for a record. Smaller ones are forwarded without the store."""
    total = conversation.total_tokens
    floor = limits.budget.at(attention_floor(policy, is_known=limits.known))
    return total >= floor or is_crowded(conversation, 0, total, limits, policy)


def tokens_with(conversation: Conversation, standing: ActiveCheckpoint | None) -> int:
    """Return the tokens that would be sent now."""
    if standing is None:
        return conversation.total_tokens
    return conversation.fixed_tokens + standing.record_tokens + conversation.kept_tokens(standing.covered)


def decide(
    conversation: Conversation,
    limits: Limits,
    policy: PolicySettings,
    standing: ActiveCheckpoint | None,
    *,
    force: bool = False,
) -> Plan:
    """Return the plan for a request before it is sent. standing: the record in use for exactly this prefix."""
    budget = limits.budget
    now = tokens_with(conversation, standing)
    covered = standing.covered if standing else 0
    full = now >= budget.at(policy.compaction_threshold)
    crowded = is_crowded(conversation, covered, now, limits, policy)
    if not (full or crowded or force):
        return _keep(standing, "below_threshold")
    if not (full or limits.known):  # the size is unknown: presume that the request fills its window
        fixed = conversation.fixed_tokens
        full_window = with_limit(None, _usable_for(now, policy, fixed)).with_fixed(fixed)
        budget = replace(with_names(full_window, policy), pins=budget.pins)
    target = target_tokens(conversation, budget, policy)
    cut = choose_cut(conversation, budget, policy, covered=covered, target=target)
    if cut is None:
        return _keep(standing, "nothing_to_compact")
    budget = _with_room(budget, target - cut.kept)
    gain = now - (conversation.fixed_tokens + budget.replacing + cut.kept)
    if not force and gain < _least_gain(budget, policy, now, full=full):
        return _keep(standing, "irreducible" if is_irreducible(conversation, budget, policy) else "gain_too_small")
    real = limits.real
    must = force or (real is not None and now >= real.at(policy.overflow_threshold))
    with_model = force or not is_irreducible(conversation, budget, policy)
    if not (with_model or must):
        return _keep(standing, "irreducible")
    # R3's double check names its cause: before a model call, or after a tool has run.
    checked_trigger: Trigger = "tool_execution" if conversation.messages[-1].role == "tool" else "proactive"
    return Compact(
        cut, budget, standing, must, "manual" if force else checked_trigger, now, with_model, target if full else None
    )


def soft_share(budget: Budget, policy: PolicySettings) -> float:
    """Return the share of M from which a record is made ahead.

    It is below the threshold by the growth expected while the summary is written. That is no larger in a larger window.
    """
    measured, soft = measured_room(budget, policy), policy.soft_threshold
    if measured == budget.movable or soft >= policy.compaction_threshold:
        return soft
    return policy.compaction_threshold - (policy.compaction_threshold - soft) * measured / budget.movable


def decide_ahead(
    conversation: Conversation, limits: Limits, policy: PolicySettings, standing: ActiveCheckpoint | None
) -> Compact | None:
    """Return the compaction to prepare in the background; None if it is not worth it.

    Its target is lower than usual by the expected growth of the request, so that the summary lasts as long.
    """
    growth = int(max(0.0, policy.compaction_threshold - soft_share(limits.budget, policy)) * limits.budget.movable)
    return _ahead(conversation, limits.budget, policy, standing, "background", growth)


def decide_economy(
    conversation: Conversation,
    limits: Limits,
    policy: PolicySettings,
    standing: ActiveCheckpoint | None,
    price: Price | None,
) -> Compact | None:
    """Return a compaction that already pays; None if there is none.

    It pays when reading what it would remove has cost `economy` times its price. This depends only on the history and
    the model's price, so that all replicas decide the same.
    """
    budget, now = limits.budget, tokens_with(conversation, standing)
    if price is None or not (policy.economy and limits.known) or now < budget.at(policy.economy_from):
        return None
    target = target_tokens(conversation, budget, policy)
    read = read_so_far(conversation, budget, standing, price, target)
    if read is None or read.times < policy.economy:
        return None
    plan = _ahead(conversation, budget, policy, standing, "economy", 0)
    if plan is None:
        return None
    tokens_left = budget.fixed + plan.budget.replacing + plan.cut.kept
    if tokens_left > target:
        read = read_so_far(conversation, budget, standing, price, tokens_left)
    return replace(plan, read_so_far=read) if read is not None and read.times >= policy.economy else None


def read_so_far(
    conversation: Conversation, budget: Budget, standing: ActiveCheckpoint | None, price: Price, left: int
) -> ReadSoFar | None:
    """Return what was read since the current record of the tokens that a compaction to `left` tokens would remove.

    Each assistant message counts as one request. Return None if cached tokens are free.
    """
    now = tokens_with(conversation, standing)
    cost = price.of_compaction(now, left - budget.fixed, budget.summary)
    if cost is None:
        return None
    covered = standing.covered if standing else 0
    read = requests = 0
    for unit in reversed(conversation.units):
        removable = now - conversation.tokens_from[unit] - left
        if unit < covered or removable <= 0:
            break
        if conversation.body[unit].role == "assistant":
            read += removable
            requests += 1
    return ReadSoFar(read, requests, int(cost))


def _ahead(
    conversation: Conversation,
    budget: Budget,
    policy: PolicySettings,
    standing: ActiveCheckpoint | None,
    trigger: Trigger,
    growth: int,
) -> Compact | None:
    """Return the compaction to make in the background, `growth` tokens below the target; None if not worth it."""
    target = target_tokens(conversation, budget, policy) - growth
    now = tokens_with(conversation, standing)
    cut = choose_cut(conversation, budget, policy, covered=standing.covered if standing else 0, target=target)
    if cut is None or is_irreducible(conversation, budget, policy):
        return None
    budget = _with_room(budget, target - cut.kept)
    gain = now - (conversation.fixed_tokens + budget.replacing + cut.kept)
    if gain < _least_gain(budget, policy, now, full=True):
        return None
    return Compact(cut, budget, standing, False, trigger, now, target=target, growth=growth)


def may_be_fitted(plan: Compact, conversation: Conversation, policy: PolicySettings) -> bool:
    """Return True if a small enough record leaves room for an older cut. Otherwise none has to be weighed."""
    return fit_cut(plan, conversation, policy, Weight(0, 0)) is not plan


def expected_weight(before: int, covered: Sequence[Message], budget: Budget, files: int) -> Weight:
    """Return the expected weight of a record. before: tokens of the record that it continues.

    covered: the newly covered messages. Calls and results contribute more than texts, and pictures nothing.
    files: tokens of the files in it.
    """
    work = sum(message.tokens - message.media_tokens for message in covered if message.calls or message.results)
    texts = sum(message.tokens - message.media_tokens for message in covered) - work
    tokens = before + int(numbers.RECORD_OF_WORK * work + numbers.RECORD_OF_WORDS * texts)
    tokens = min(tokens, budget.injected)
    text = min(budget.record, tokens)
    return Weight(text, tokens - text, files)


def fit_cut(plan: Compact, conversation: Conversation, policy: PolicySettings, weight: Weight) -> Compact:
    """Return the plan with an older cut if a record of this weight leaves room for it.

    The tail gets what the record leaves, up to 30 % of M. If the record needs
    the room, it gives up to half of its names and words for the minimum tail. The request may then take half of M.
    """
    if plan.target is None or plan.budget.movable < numbers.LEAST_FITTED_ROOM:
        return plan
    budget, covered = plan.budget, plan.standing.covered if plan.standing else 0
    room = plan.target - budget.fixed
    measured, less = measured_room(budget, policy), by_target(policy)
    most_share = min(numbers.MOST_RAISED * less, policy.compaction_threshold - numbers.LEAST_GROWTH)
    raised = room + max(0, int((most_share - policy.target_ratio) * measured))
    text = min(weight.text, budget.record)
    names = min(weight.names + weight.text - text, budget.injected - text)
    room, raised = room - weight.rules, raised - weight.rules
    most, least = text + names, text + names // 2
    cut = plan.cut
    for space, share in (
        (room - most, int(numbers.USUAL_TAIL * less * measured)),
        (raised - least, least_kept(budget, policy)),
    ):
        kept = max(0, share - plan.growth)
        cut = longer_tail(conversation, policy, cut, covered=covered, room=space, least=kept) or cut
    if cut is plan.cut:
        return plan
    spare = max(room - cut.kept, min(raised - cut.kept, most))
    record = min(budget.record, spare)
    return replace(plan, cut=cut, budget=replace(budget, record=record, names=min(budget.names, spare - record)))


def is_irreducible(conversation: Conversation, budget: Budget, policy: PolicySettings) -> bool:
    """Return True if no summary can help.

    Tools and head alone then take the threshold's share of B, or the last unit takes that share of M.
    """
    units = conversation.units
    last_unit = conversation.tokens_from[units[-1]] if units else 0
    return budget.fixed >= policy.compaction_threshold * budget.usable or budget.fixed + last_unit >= budget.at(
        policy.compaction_threshold
    )


def is_crowded(conversation: Conversation, covered: int, now: int, limits: Limits, policy: PolicySettings) -> bool:
    """Return True if the number of messages after the first `covered` leads to a compaction of `now` tokens."""
    if limits.known and policy.message_limit is None:
        return False
    is_large_enough = (
        now >= limits.budget.at(numbers.MESSAGES_COUNT_FROM) if limits.known else now >= 2 * numbers.LEAST_SPAN
    )
    return is_large_enough and len(conversation.body) - covered >= (policy.message_limit or numbers.MOST_MESSAGES)


def _keep(standing: ActiveCheckpoint | None, reason: str) -> Forward | Reuse:
    return Forward(reason) if standing is None else Reuse(standing, reason)


def _least_gain(budget: Budget, policy: PolicySettings, now: int, *, full: bool) -> int:
    """Return the minimum gain: a tenth of the sent tokens without tools and head.

    The whole history would be the wrong base: it grows forever, the possible gain does not.
    """
    relative = ceil(policy.min_gain.ratio * (now - budget.fixed))
    if not full:
        return relative
    return max(min(policy.min_gain.tokens, budget.worthwhile_gain), relative)


def _with_room(budget: Budget, room: int) -> Budget:
    """Return the budget with less for the working set, down to half, if the cut leaves too little room."""
    spare = room - budget.fixed - budget.record - budget.pins
    return _with_rounded_names(budget, max(budget.names // 2, min(budget.names, spare)))


def _with_rounded_names(budget: Budget, tokens: int) -> Budget:
    """Return the budget with the working set rounded to steps. Small differences between clients then do not count."""
    return replace(budget, names=tokens // numbers.NAMES_STEP * numbers.NAMES_STEP)


def _usable_for(tokens: int, policy: PolicySettings, fixed: int) -> int:
    """Return the usable input for which a request of `tokens` is just large enough for a compaction."""
    return fixed + int((tokens - fixed) / policy.compaction_threshold)
