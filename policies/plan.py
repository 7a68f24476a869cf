"""What to do with one request, decided as a value before anything is done."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from policies.budget import Budget
from policies.conversation import Conversation
from policies.half_window import Cut, choose_cut, target_tokens
from policies.settings import PolicySettings

Trigger = Literal["proactive", "tool_execution", "overflow_retry", "manual"]


@dataclass(frozen=True, slots=True)
class Standing:
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

    standing: Standing
    reason: str


@dataclass(frozen=True, slots=True)
class Compact:
    """Make a record of body[:cut], continuing the standing one; `must` when failure is no option."""

    cut: Cut
    standing: Standing | None
    must: bool
    trigger: Trigger
    tokens_before: int


Plan = Forward | Reuse | Compact


def needs_attention(total: int, budget: Budget | None, policy: PolicySettings) -> bool:
    """Whether a request is large enough to look for a checkpoint; below, its bytes go out without store access."""
    return budget is not None and total >= policy.apply_floor * budget.usable


def tokens_with(conversation: Conversation, standing: Standing | None) -> int:
    """What would be sent now, in tokens."""
    if standing is None:
        return conversation.total_tokens
    return conversation.fixed_tokens + standing.record_tokens + conversation.kept_tokens(standing.covered)


def decide(
    conversation: Conversation,
    budget: Budget,
    policy: PolicySettings,
    standing: Standing | None,
    *,
    force: bool = False,
) -> Plan:
    """The plan on the proactive path. `standing` is the longest checkpoint that matches this very prefix."""
    now = tokens_with(conversation, standing)
    due = now >= policy.compaction_threshold * budget.usable
    if not due and not force:
        return _keep(standing, "below_threshold")
    cut = choose_cut(
        conversation,
        budget,
        policy,
        covered=standing.covered if standing else 0,
        target=target_tokens(conversation, budget, policy),
    )
    if cut is None:
        return _keep(standing, "nothing_to_compact")
    if not force and _gain(conversation, budget, cut, now) < _least_gain(budget, policy, now):
        return _keep(standing, "gain_too_small")
    must = now >= policy.overflow_threshold * budget.usable
    return Compact(cut, standing, must, _trigger(conversation, force), now)


def _keep(standing: Standing | None, reason: str) -> Forward | Reuse:
    return Forward(reason) if standing is None else Reuse(standing, reason)


def _gain(conversation: Conversation, budget: Budget, cut: Cut, now: int) -> int:
    return now - (conversation.fixed_tokens + budget.record + cut.kept)


def _least_gain(budget: Budget, policy: PolicySettings, now: int) -> int:
    """A tenth of what would be sent, not of the whole history: that grows for ever, what can be gained does not."""
    absolute = min(policy.min_gain.tokens, budget.worthwhile_gain)
    return max(absolute, ceil(policy.min_gain.ratio * now))


def _trigger(conversation: Conversation, force: bool) -> Trigger:
    """R3's double check names why it looked: before a model call, or after a tool has run."""
    if force:
        return "manual"
    return "tool_execution" if conversation.messages[-1].role == "tool" else "proactive"
