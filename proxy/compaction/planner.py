"""The plan for a request, as a value. `PromptBuilder` executes it, and `explain` shows it."""

from dataclasses import dataclass, replace
from typing import assert_never

from msgspec import structs

from policies.decision.plan import Compact, Forward, Plan, Reuse, decide, needs_attention
from policies.record.record import Record
from proxy.compaction.checkpoints import Checkpoints
from proxy.compaction.plan_input import Outcome, PlanInput
from proxy.compaction.prompt import Prompt, active_checkpoint, build_prompt, untouched_prompt
from proxy.compaction.prompt_view import PromptView, Step
from proxy.compaction.shortener import Shortener
from proxy.compaction.stability import Stability
from proxy.sessions.lineages import Lineages


@dataclass(frozen=True, slots=True)
class Bypass:
    """Relay a request uncompacted: its client asked for that, or its shape must not be changed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The plan for a request.

    record:        the checkpoint in use.
    view:          the conversation as it is sent; None if the plan needs none.
    unstable_root: the name of the first lost summary of an unstable history, which gets a record without a model.
    """

    plan: Bypass | Plan
    record: Record | None = None
    view: PromptView | None = None
    unstable_root: str | None = None

    @property
    def cooled(self) -> PromptView:
        """Return the view. The plan must have one."""
        assert self.view is not None  # noqa: S101 - every plan to compact has a view
        return self.view

    @property
    def standing_outcome(self) -> Outcome:
        """Return the outcome without a new record."""
        return "reused" if self.record is not None else "cooled" if self.view and self.view.replaced else "none"

    @property
    def would(self) -> str:
        """Return the reason in shadow mode."""
        match self.plan:
            case Bypass() | Forward():
                return "would_cool" if self.view and self.view.replaced else self.plan.reason
            case Reuse():
                return "would_reuse"
            case Compact():
                return f"would_compact_{self.plan.cut.position}_messages"
            case _:
                assert_never(self.plan)

    def standing_prompt(self, plan_input: PlanInput) -> Prompt:
        """Return the request with its checkpoint and short forms, or unchanged in shadow mode."""
        reason = "counted" if isinstance(self.plan, Compact) else self.plan.reason
        if self.view is None:
            return untouched_prompt(plan_input.request, "bypass" if isinstance(self.plan, Bypass) else "none", reason)
        if plan_input.mode == "shadow":
            return untouched_prompt(plan_input.request, "shadow", self.would)
        outcome = self.standing_outcome
        if outcome == "cooled":
            reasons = {Step.MEDIA: "media_aged", Step.LOSSLESS: "said_once"}
            matching = (reasons[step] for step in reasons if self.view.is_only(step))
            reason = "too_large" if self.view.is_cut else next(matching, reason)
        return prompt_or_original(plan_input, build_prompt(plan_input, self.view, self.record, outcome, reason))


@dataclass(eq=False, repr=False)
class Planner:
    """Plans requests by what is stored; one per engine."""

    _checkpoints: Checkpoints
    _shortener: Shortener
    _stability: Stability
    _lineages: Lineages

    async def plan(self, plan_input: PlanInput) -> Decision:
        """Return the plan for a request."""
        if (reason := bypass_reason(plan_input)) is not None:
            return Decision(Bypass(reason))
        if (reason := small_reason(plan_input)) is not None:
            return Decision(Forward(reason), view=await self._shortener.shorten_small(plan_input))
        is_forced, policy = plan_input.mode == "force", plan_input.caller.policy
        record = await self._checkpoints.find_active(plan_input)
        view = await self._shortener.shorten(plan_input, record)
        plan = decide(view.conversation, plan_input.limits, policy, active_checkpoint(record), force=is_forced)
        if isinstance(plan, Compact):
            plan = await self._without_futile_model(plan_input, plan, record, force=is_forced)
        if plan == Forward("nothing_to_compact") and plan_input.has_stored_items:
            return Decision(Bypass("stored_items"))
        return Decision(plan, record, view)

    async def check_stability(self, plan_input: PlanInput, decision: Decision) -> Decision:
        """Return the decision, without a model if summaries of the history are lost as soon as they are made."""
        plan = decision.plan
        if not isinstance(plan, Compact) or plan_input.mode == "force":
            return decision
        root = await self._stability.lost_since(plan_input, decision.record)
        if root is None:
            return decision
        return replace(decision, plan=replace(plan, with_model=False), unstable_root=root)

    async def _without_futile_model(
        self, plan_input: PlanInput, plan: Compact, record: Record | None, *, force: bool
    ) -> Plan:
        """Return the plan. It has no model if recent summaries did not help, or if this one gained nothing before."""
        tag, tokens = plan_input.chain.tag, plan_input.request.tokens
        reason = None
        if not await self._lineages.may_gain(tag, record, tokens):
            reason = "no_gain"
        elif not (force or await self._lineages.may_ask_model(tag, record, plan_input.limits.budget, tokens)):
            reason = "ineffective"
        if reason is None:
            return plan
        if plan.must and not force:
            return replace(plan, with_model=False)
        return Forward(reason) if plan.standing is None else Reuse(plan.standing, reason)


def bypass_reason(plan_input: PlanInput) -> str | None:
    """Return the reason why a request must not be changed; None if it may be."""
    if (reason := plan_input.request.settings.passthrough) is not None:
        return reason
    if plan_input.mode == "off":
        return "off"
    if plan_input.mode != "force" and plan_input.request.settings.reactive is not None:
        return plan_input.request.settings.reactive
    return "refused" if not plan_input.is_copied and plan_input.fits_whole else None


def small_reason(plan_input: PlanInput) -> str | None:
    """Return the reason to send a request unchanged without reading the store; None if it may need more."""
    if plan_input.mode == "force" or plan_input.overflowed:
        return None
    if plan_input.is_far_below(plan_input.request.tokens):
        return "below_floor"
    if needs_attention(plan_input.conversation, plan_input.limits, plan_input.caller.policy):
        return None
    return "below_floor" if plan_input.limits.known else "unknown_window"


def prompt_or_original(plan_input: PlanInput, prompt: Prompt) -> Prompt:
    """Return the prompt, or the unchanged request if that has no more tokens.

    A forced record may have more tokens than its span. So may a record that was made for a larger model.
    """
    if prompt.record is None or prompt.tokens < plan_input.request.tokens:
        return prompt
    return structs.replace(untouched_prompt(plan_input.request, "none", "no_gain", prompt.view), waited=prompt.waited)
