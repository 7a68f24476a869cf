"""The plan for a request, as a value. The drafter carries it out, and `explain` shows it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from msgspec import structs

from policies.conversation import MessageIndex
from policies.oversize import kept_behind, least_tokens, oversized_messages
from policies.plan import Compact, Forward, Plan, Reuse, decide, needs_attention
from policies.record.record import Record
from proxy.engine.case import CompactionContext, Outcome
from proxy.engine.cooler import Cooler
from proxy.engine.draft import Draft, draft_of, standing_of, untouched_draft
from proxy.engine.media import MediaAger
from proxy.engine.prompt_view import PromptView
from proxy.engine.quoter import Quoter
from proxy.engine.stability import Stability
from proxy.engine.standing import StandingRecords
from proxy.engine.thinking import ThinkingTrimmer, Use
from proxy.records.lineages import Lineages


@dataclass(frozen=True, slots=True)
class Bypass:
    """Relay it uncompacted: the client asked for that, or its shape is none that we change."""

    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The plan for a request.

    record: the checkpoint in use. view: the conversation as it is sent, None if the plan needs none.
    unstable_root: the name of the first lost summary of an unstable history, which gets a record without a model.
    """

    plan: Bypass | Plan
    record: Record | None = None
    view: PromptView | None = None
    unstable_root: str | None = None

    @property
    def cooled(self) -> PromptView:
        assert self.view is not None  # noqa: S101 - nobody plans one without a look
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

    def standing_draft(self, case: CompactionContext) -> Draft:
        """Return the request with its checkpoint and short forms, or as it came in shadow mode."""
        reason = "counted" if isinstance(self.plan, Compact) else self.plan.reason
        if self.view is None:
            return untouched_draft(case.request, "bypass" if isinstance(self.plan, Bypass) else "none", reason)
        if case.mode == "shadow":
            return untouched_draft(case.request, "shadow", self.would)
        outcome = self.standing_outcome
        if outcome == "cooled":
            reason = "too_large" if self.view.is_cut else "media_aged" if self.view.is_of_media else reason
        return draft_or_original(case, draft_of(case, self.view, self.record, outcome, reason))


class Planner:
    """Plans requests by what is stored; one per engine."""

    def __init__(
        self,
        standing: StandingRecords,
        cooler: Cooler,
        media: MediaAger,
        thinking: ThinkingTrimmer,
        quoter: Quoter,
        stability: Stability,
        lineages: Lineages,
    ) -> None:
        self._standing = standing
        self._cooler = cooler
        self._media = media
        self._thinking = thinking
        self._quoter = quoter
        self._stability = stability
        self._lineages = lineages

    async def plan(self, case: CompactionContext) -> Decision:
        """Return the plan for a request."""
        if (reason := bypass_reason(case)) is not None:
            return Decision(Bypass(reason))
        if (reason := small_reason(case)) is not None:
            return Decision(Forward(reason), view=await self._small(case))
        force, policy = case.mode == "force", case.caller.policy
        record = await self._standing.in_use(case)
        view = await self.cool(case, record)
        plan = decide(view.conversation, case.limits, policy, standing_of(record), force=force)
        if isinstance(plan, Compact):
            plan = await self._without_futile_model(case, plan, record, force=force)
        if plan == Forward("nothing_to_compact") and _has_stored_items(case):
            return Decision(Bypass("stored_items"))
        if not isinstance(plan, Compact) or force:
            return Decision(plan, record, view)
        root = await self._stability.lost_since(case, record)
        return Decision(plan if root is None else replace(plan, with_model=False), record, view, root)

    async def _small(self, case: CompactionContext) -> PromptView | None:
        """A request that goes out as it came, but for media that its upstream has no room for, and for the thinking
        that it had lost before it became small."""
        view = await self._media.age(case, PromptView(case.conversation), 0)
        if case.binds_thinking and await self._thinking.is_removed(case):
            return await self._thinking.left_out(case, None, view, await self._thinking.use(case, None))
        return view if view.media else None

    async def view_again(self, case: CompactionContext, record: Record | None) -> PromptView:
        """Return the conversation as `plan` shows it after this record, by the media limits that the case has now."""
        if record is None and small_reason(case) is not None:
            return await self._small(case) or PromptView(case.conversation)
        return await self.cool(case, record)

    async def cool(self, case: CompactionContext, record: Record | None) -> PromptView:
        """The conversation as it is sent behind this record."""
        use = await self._thinking.use(case, record)
        view = await self._thinking.left_out(case, record, await self._fitting(case, record, use), use)
        # Last: what names the front that thinking is bound to must not depend on what is asked behind it.
        return await self._quoter.quote(case, record, view)

    async def _fitting(self, case: CompactionContext, record: Record | None, use: Use | None) -> PromptView:
        """The conversation with its thinking, large messages cooled and what would not fit cut."""
        covered = record.covered if record else 0
        if case.route.window is None:
            return await self._media.age(case, PromptView(case.conversation), covered)
        window = case.route.window.tokens
        view = await self._cooler.cool(case, covered, use.first if use else None)
        view = await self._media.age(case, view, covered)
        # A turn without a legal cut has to be sent whole. Of stored items the provider alone knows the size.
        newest = max(case.cuts, default=0)
        if newest == 0 and _has_stored_items(case):
            return view
        if not case.cannot_take(least_tokens(view.conversation, newest)):
            return view
        harness = case.request.harness_shares(kept_behind(view.conversation, newest))
        limits = oversized_messages(view.conversation, case.steady_budget(window), newest, harness)
        return await self._cooler.cut(case, view, limits)

    async def shorten(
        self, case: CompactionContext, record: Record | None, view: PromptView, limits: Mapping[MessageIndex, int]
    ) -> PromptView:
        """The conversation with contents cut to so many tokens, by index of a message."""
        use = await self._thinking.use(case, record)
        # What names the cuts must not depend on what was left out; and what hardly fits has no room for quotations.
        if use is not None or view.quotations:
            view = await self._fitting(case, record, use)
        return await self._thinking.left_out(case, record, await self._cooler.cut(case, view, limits), use)

    async def without_thinking(self, case: CompactionContext, record: Record | None) -> PromptView:
        """The conversation behind this record without any thinking, for good."""
        everything = len(case.conversation.body)
        view = await self._fitting(case, record, Use(everything, everything))
        return await self._quoter.quote(case, record, await self._thinking.remove_all(case, record, view))

    async def _without_futile_model(
        self, case: CompactionContext, plan: Compact, record: Record | None, *, force: bool
    ) -> Plan:
        """The plan, but no model is asked where its summaries have been in vain lately, or the same one gained
        nothing."""
        tag, tokens = case.chain.tag, case.request.tokens
        reason = None
        if not await self._lineages.may_gain(tag, record, tokens):
            reason = "no_gain"
        elif not (force or await self._lineages.may_ask_model(tag, record, case.limits.budget, tokens)):
            reason = "ineffective"
        if reason is None:
            return plan
        if plan.must and not force:
            return replace(plan, with_model=False)
        return Forward(reason) if plan.standing is None else Reuse(plan.standing, reason)


def bypass_reason(case: CompactionContext) -> str | None:
    """Why a request must not be changed; None if it may be."""
    if (reason := case.request.settings.passthrough) is not None:
        return reason
    if case.mode == "off":
        return "off"
    if case.mode != "force" and case.request.settings.reactive is not None:
        return case.request.settings.reactive
    return "refused" if not case.is_copied and case.fits_whole else None


def small_reason(case: CompactionContext) -> str | None:
    """Why a case goes out as it came, without a look at the store; None where it may need more."""
    if case.mode == "force" or case.overflowed:
        return None
    if case.is_far_below(case.request.tokens):
        return "below_floor"
    if needs_attention(case.conversation, case.limits, case.caller.policy):
        return None
    return "below_floor" if case.limits.known else "unknown_window"


def _has_stored_items(case: CompactionContext) -> bool:
    return any(message.stored for message in case.conversation.body)


def draft_or_original(case: CompactionContext, draft: Draft) -> Draft:
    """The draft; the request as it came where a forced record, or one made for a larger model, outweighs its span."""
    heavier = draft.record is not None and draft.tokens >= case.request.tokens
    return (
        structs.replace(untouched_draft(case.request, "none", "no_gain", draft.view), waited=draft.waited)
        if heavier
        else draft
    )
