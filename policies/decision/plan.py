"""What to do with one request, decided as a value before anything is done."""

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
"""Triggers of compactions that are made after an answer, and that no request waits for."""


@dataclass(frozen=True, slots=True)
class ActiveCheckpoint:
    """A checkpoint that fits this request: body[:covered] is replaced by a text of `record_tokens`."""

    covered: int
    record_tokens: int


@dataclass(frozen=True, slots=True)
class Forward:
    """Send the client's bytes as they came."""

    reason: str


@dataclass(frozen=True, slots=True)
class Reuse:
    """Send the standing checkpoint and the rest; no new summary."""

    standing: ActiveCheckpoint
    reason: str


@dataclass(frozen=True, slots=True)
class Compact:
    """Make a record of body[:cut], continuing the standing one.

    must: failure is no option. with_model: whether a model's summary is worth its price.
    budget: what the record and the rest of the request may take. target: what the request is to come down to, in
    tokens, if the cut may still move to what the record leaves (`RecordBuilder.fit`); None if it may not, since the
    request is not full. growth: tokens by which the tail of a record made ahead grows until the record is needed.
    read_so_far: why it pays, if it is made for that.
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
        """With a record that takes all it may; the cache still holds tools and head."""
        rest = self.budget.replacing + self.cut.kept
        return payoff_of(self.tokens_before - self.budget.fixed - rest, rest)


Plan = Forward | Reuse | Compact


@dataclass(frozen=True, slots=True)
class Weight:
    """What a record would take, in tokens: its working set, files of rules, and the rest of its text."""

    text: int
    names: int
    rules: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """The budgets of a request.

    real: of the model's window, None if that is unknown. budget: the one to plan with.
    """

    real: Budget | None
    budget: Budget

    @property
    def known(self) -> bool:
        return self.real is not None


def limits_of(real: Budget | None, policy: PolicySettings, fixed: int) -> Limits:
    """Those of a request with so many tokens of tools and head.

    The policy's token limit takes the place of a larger or unknown window, so that all shares count from it.
    """
    real = real and real.behind(fixed)
    budget = with_limit(real, _usable_for(policy.token_limit, policy, fixed)).behind(fixed)
    return Limits(real, with_names(budget, policy))


def with_names(budget: Budget, policy: PolicySettings) -> Budget:
    """The budget with what the policy gives the working set, where the record leaves it that of a small window."""
    beside = max(0, int(numbers.MOST_INJECTED * budget.movable) - budget.record)
    return _naming(budget, min(_share_of_names(budget, policy), beside))


def most_names(budget: Budget, policy: PolicySettings) -> int:
    """Tokens that the working set may take where the rest of the record leaves them; in a tiny room, none of those."""
    return budget.names if budget.movable < numbers.LEAST_FITTED_ROOM else _share_of_names(budget, policy)


def _share_of_names(budget: Budget, policy: PolicySettings) -> int:
    settings, room = policy.working_set, budget.movable
    most = usual_names(room) if settings.max_tokens is None else settings.max_tokens
    return min(int(settings.budget_ratio * room), most)


def is_far_below(tokens: int, window: int, calibration: float, policy: PolicySettings) -> bool:
    """Whether a request is so small for its window that nothing is done with it, whatever else is known of it."""
    least = min(numbers.LEAST_USABLE * window / calibration, policy.token_limit)
    return tokens + 1 < min(attention_floor(policy), numbers.MESSAGES_COUNT_FROM) * least


def attention_floor(policy: PolicySettings, *, is_known: bool = True) -> float:
    """Return the share of M below which a request goes out as it came, without a look at the store.

    A record may have been made from `economy_from` on. The floor lies well below, since estimates may sink. In an
    unknown window (`is_known`) none is made that early.
    """
    return min(policy.apply_floor, policy.economy_from / 2) if policy.economy and is_known else policy.apply_floor


def needs_attention(conversation: Conversation, limits: Limits, policy: PolicySettings) -> bool:
    """Whether a request is large enough to look for a checkpoint; below, its bytes go out without store access."""
    total = conversation.total_tokens
    floor = limits.budget.at(attention_floor(policy, is_known=limits.known))
    return total >= floor or is_crowded(conversation, 0, total, limits, policy)


def tokens_with(conversation: Conversation, standing: ActiveCheckpoint | None) -> int:
    """What would be sent now, in tokens."""
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
    """The plan on the proactive path. `standing` is the checkpoint in use that matches this very prefix."""
    budget = limits.budget
    now = tokens_with(conversation, standing)
    covered = standing.covered if standing else 0
    full = now >= budget.at(policy.compaction_threshold)
    crowded = is_crowded(conversation, covered, now, limits, policy)
    if not (full or crowded or force):
        return _keep(standing, "below_threshold")
    if not (full or limits.known):  # nothing to measure by: the request as it is counts as one that fills its window
        fixed = conversation.fixed_tokens
        whole = with_limit(None, _usable_for(now, policy, fixed)).behind(fixed)
        budget = replace(with_names(whole, policy), pins=budget.pins)
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
    # R3's double check names why it looked: before a model call, or after a tool has run.
    looked: Trigger = "tool_execution" if conversation.messages[-1].role == "tool" else "proactive"
    return Compact(
        cut, budget, standing, must, "manual" if force else looked, now, with_model, target if full else None
    )


def soft_share(budget: Budget, policy: PolicySettings) -> float:
    """The share of M from which on a record is made ahead: below the threshold by what may come while its summary is
    written, which is no more in a larger window."""
    measured, soft = measured_room(budget, policy), policy.soft_threshold
    if measured == budget.movable or soft >= policy.compaction_threshold:
        return soft
    return policy.compaction_threshold - (policy.compaction_threshold - soft) * measured / budget.movable


def decide_ahead(
    conversation: Conversation, limits: Limits, policy: PolicySettings, standing: ActiveCheckpoint | None
) -> Compact | None:
    """The compaction to prepare in the background, None where it would not be worth it.

    It aims lower than one made when it is needed, by as much as the request may still grow until then: so a summary
    lasts as long either way.
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
    """The compaction that pays by now, None while none does.

    It pays once reading what it takes out has cost `economy` times its price. That is a function of the history and
    of the model's price, so that all replicas decide alike.
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
    left = budget.fixed + plan.budget.replacing + plan.cut.kept
    if left > target:
        read = read_so_far(conversation, budget, standing, price, left)
    return replace(plan, read_so_far=read) if read is not None and read.times >= policy.economy else None


def read_so_far(
    conversation: Conversation, budget: Budget, standing: ActiveCheckpoint | None, price: Price, left: int
) -> ReadSoFar | None:
    """Return what was read since the standing checkpoint of what a compaction down to `left` tokens would take out.

    Requests are counted by their answers. None if what the cache serves costs nothing.
    """
    now = tokens_with(conversation, standing)
    cost = price.of_compaction(now, left - budget.fixed, budget.summary)
    if cost is None:
        return None
    covered = standing.covered if standing else 0
    read = requests = 0
    for unit in reversed(conversation.units):
        more = now - conversation.tokens_from[unit] - left
        if unit < covered or more <= 0:
            break
        if conversation.body[unit].role == "assistant":
            read += more
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
    """The compaction to make in the background, by `growth` tokens below the target; None if it frees too little."""
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
    """Whether some record leaves room for an older cut: else none has to be weighed."""
    return fit_cut(plan, conversation, policy, Weight(0, 0)) is not plan


def expected_weight(before: int, covered: Sequence[Message], budget: Budget, files: int) -> Weight:
    """Return what a record is expected to take. before: tokens of the record that it continues.

    covered: the messages that it newly covers. Calls and their results bring more to a record than what is said, and
    pictures bring nothing. files: tokens of the files in it.
    """
    work = sum(message.tokens - message.media_tokens for message in covered if message.calls or message.results)
    said = sum(message.tokens - message.media_tokens for message in covered) - work
    tokens = before + int(numbers.RECORD_OF_WORK * work + numbers.RECORD_OF_WORDS * said)
    tokens = min(tokens, budget.injected)
    text = min(budget.record, tokens)
    return Weight(text, tokens - text, files)


def fit_cut(plan: Compact, conversation: Conversation, policy: PolicySettings, weight: Weight) -> Compact:
    """The plan with an older cut where a record of this weight leaves room for it.

    Up to 30 % of M, what the record does not take is the tail's. If names or words want the room, they give way to the
    least tail, down to half, and the request may come down to half of M only.
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
    """Whether tools and head alone take the threshold's share of B, or the last unit that of M: no summary can help,
    each would be in vain."""
    units = conversation.units
    last = conversation.tokens_from[units[-1]] if units else 0
    return budget.fixed >= policy.compaction_threshold * budget.usable or budget.fixed + last >= budget.at(
        policy.compaction_threshold
    )


def is_crowded(conversation: Conversation, covered: int, now: int, limits: Limits, policy: PolicySettings) -> bool:
    """Whether so many messages stand behind the first `covered` that their number leads to a compaction, where `now`
    tokens would be sent."""
    if limits.known and policy.message_limit is None:
        return False
    enough = now >= limits.budget.at(numbers.MESSAGES_COUNT_FROM) if limits.known else now >= 2 * numbers.LEAST_SPAN
    return enough and len(conversation.body) - covered >= (policy.message_limit or numbers.MOST_MESSAGES)


def _keep(standing: ActiveCheckpoint | None, reason: str) -> Forward | Reuse:
    return Forward(reason) if standing is None else Reuse(standing, reason)


def _least_gain(budget: Budget, policy: PolicySettings, now: int, *, full: bool) -> int:
    """A tenth of what would be sent beside tools and head, not of the whole history: that grows for ever, what can be
    gained does not."""
    relative = ceil(policy.min_gain.ratio * (now - budget.fixed))
    if not full:
        return relative
    return max(min(policy.min_gain.tokens, budget.worthwhile_gain), relative)


def _with_room(budget: Budget, room: int) -> Budget:
    """The budget with less for the working set, down to half, where the cut leaves less room than there should be."""
    spare = room - budget.fixed - budget.record - budget.pins
    return _naming(budget, max(budget.names // 2, min(budget.names, spare)))


def _naming(budget: Budget, tokens: int) -> Budget:
    """In steps: how a dialect or a client words the same must not decide what is carried."""
    return replace(budget, names=tokens // numbers.NAMES_STEP * numbers.NAMES_STEP)


def _usable_for(tokens: int, policy: PolicySettings, fixed: int) -> int:
    """The usable input of which a request of so many tokens is as large as one that is compacted."""
    return fixed + int((tokens - fixed) / policy.compaction_threshold)
