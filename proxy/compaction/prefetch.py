"""Work after a response that prepares for the next request (docs/design.md, "Afterwards")."""

from dataclasses import dataclass
from math import ceil

from msgspec.structs import replace

from policies.decision.plan import Compact, decide_ahead, decide_economy, soft_share
from policies.model_profile import was_cut_off
from policies.record.lineage import may_rebuild
from policies.record.record import Record
from proxy.compaction.checkpoints import Checkpoints
from proxy.compaction.compactor import Compactor
from proxy.compaction.excerpt_writer import ExcerptWriter
from proxy.compaction.job import Job
from proxy.compaction.plan_input import PlanInput, RoutedRequest
from proxy.compaction.prompt import Prompt, active_checkpoint
from proxy.compaction.prompt_view import PromptView
from proxy.compaction.stability import Stability
from proxy.dialects.base import Usage
from proxy.models.windows import Windows
from proxy.sessions.sessions import Sessions
from proxy.telemetry.events import Hook, PromptBilled
from proxy.upstreams.routes import SummaryTarget
from proxy.upstreams.summarizer import Summarizer

# Share of M below which nothing is prepared for the next request, unless a compaction may already pay off.
_WORTH_FOLLOWING = 0.5
# Seconds that all calls together may take. No request waits for them.
_DEADLINE = 300.0
# From this generation on, or after a shortened one, a summary is rebuilt from the whole history.
_REBUILD_AT = 5
# To estimate that price: tokens of a shortened tool result, and the share of a window for a transcript.
_LONGEST_RESULT = 700
_USED_WINDOW = 0.7


def is_worth_following(plan_input: PlanInput, sent: Prompt) -> bool:
    """Return True if a prompt is large enough to prepare something for the next request.

    Also if its record is not needed yet, since its use is noted.
    """
    limits, policy = plan_input.limits, plan_input.caller.policy
    if limits.real is None:
        return False
    if sent.record is not None and sent.record.making.trigger == "background":
        return True
    if plan_input.is_far_below(sent.tokens):
        return False
    is_half_full = sent.tokens >= limits.real.at(_WORTH_FOLLOWING)
    return is_half_full or (policy.economy > 0 and sent.tokens >= limits.budget.at(policy.economy_from))


@dataclass(eq=False, repr=False)
class Prefetch:
    """Learns from a response, and prepares short forms and records for the next requests; one per process."""

    _checkpoints: Checkpoints
    _compactor: Compactor
    _excerpt_writer: ExcerptWriter
    _summarizer: Summarizer
    _sessions: Sessions
    _stability: Stability
    _windows: Windows
    _observe: Hook

    def learn(self, routed: RoutedRequest, sent: Prompt, usage: Usage | None) -> None:
        """Learn from a prompt's usage: the ratio of tokens, and the room, if the upstream read the whole prompt."""
        if usage is None:
            return
        self._windows.saw_answer(
            routed.place,
            routed.chain.session,
            sent.tokens,
            usage.prompt_tokens,
            usage.completion_tokens,
            is_enlarged=routed.request.settings.is_enlarged,
            is_held_long=bool(usage.cache_written_long),
        )
        self._observe(
            PromptBilled(
                tenant=routed.caller.tenant,
                upstream=routed.route.name,
                model=routed.request.settings.model,
                session=routed.chain.name,
                estimated=sent.tokens,
                billed=usage.prompt_tokens,
                cut_off=was_cut_off(sent.tokens, usage.prompt_tokens),
            )
        )

    async def follow_up(self, plan_input: PlanInput, sent: Prompt, usage: Usage | None) -> None:
        """Prepare for the next request after the response to a prompt (R3's double check, part 2).

        usage: the tokens that the upstream billed.
        """
        if plan_input.is_let_through:
            return
        # A request below the floor was sent without reading the store.
        plan_input = replace(plan_input, chain=await self._sessions.epochs.place(plan_input.chain, stores=True))
        policy = plan_input.caller.policy
        prompt, total = _shares(plan_input, sent, usage)
        if sent.record is not None:
            await self._sessions.lineages.note_share(
                plan_input.chain.tag,
                sent.record,
                share=prompt,
                threshold=policy.compaction_threshold,
                history_tokens=plan_input.request.tokens,
            )
        target = plan_input.summarizer
        if target is None or self._summarizer.is_cooling_down(target) or sent.warning == "unstable_history":
            return
        view = sent.view or PromptView(plan_input.conversation)
        if positions := _worth_an_excerpt(plan_input, sent, view):
            await self._excerpt_writer.prepare(plan_input, target, positions)
        limits, standing = plan_input.limits, active_checkpoint(sent.record)
        plan = decide_economy(view.conversation, limits, policy, standing, plan_input.route.price)
        if plan is None and total >= soft_share(limits.budget, policy):
            plan = decide_ahead(view.conversation, limits, policy, standing)
        if plan is not None:
            await self._compact(plan_input, view, plan, sent.record, target)

    async def _compact(
        self, plan_input: PlanInput, view: PromptView, plan: Compact, in_use: Record | None, target: SummaryTarget
    ) -> None:
        """Make a summary that no request waits for, unless a newer one than the prompt's exists."""
        budget = plan_input.limits.budget
        standing = await self._checkpoints.newest(plan_input)
        if (standing and standing.digest) != (in_use and in_use.digest):
            return
        if not await self._sessions.lineages.may_ask_model(
            plan_input.chain.tag, standing, budget, plan_input.request.tokens
        ):
            return
        if await self._stability.lost_since(plan_input, standing) is not None:
            return
        started = self._sessions.lineages.first_seen(plan_input.chain.first_link)
        rebuild = await self._is_rebuilt(plan_input, standing, target, plan)
        job = Job(plan_input, view, plan, standing or plan_input.carried, target, started, _DEADLINE, rebuild)
        await self._compactor.prefetch(job)

    async def _is_rebuilt(
        self, plan_input: PlanInput, standing: Record | None, target: SummaryTarget, plan: Compact
    ) -> bool:
        """Return True if enough summaries of summaries follow each other, and a new one is affordable."""
        if (
            standing is None
            or plan_input.carried is not None
            or not (standing.generation >= _REBUILD_AT or standing.making.truncated)
        ):
            return False
        return may_rebuild(
            await self._sessions.lineages.of(plan_input.chain.tag, standing),
            plan_input.limits.budget,
            plan_input.caller.policy.compaction_threshold,
            history_tokens=plan_input.request.tokens,
            calls=_calls(plan_input, target, plan.cut.position),
        )


def _shares(plan_input: PlanInput, sent: Prompt, usage: Usage | None) -> tuple[float, float]:
    """Return the shares of M of the prompt, and of prompt and response: by usage, else by our estimate."""
    budget, real = plan_input.limits.budget, plan_input.usable_input()
    if usage is None or real is None:
        estimated = budget.share(sent.tokens)
        return estimated, estimated
    billed = real.with_fixed(int(budget.fixed * plan_input.calibration))
    return billed.share(usage.prompt_tokens), billed.share(usage.prompt_tokens + usage.completion_tokens)


def _worth_an_excerpt(plan_input: PlanInput, sent: Prompt, view: PromptView) -> list[int]:
    """Return the positions of messages of the next batch that are likely to be sent in a short form.

    A message is not likely to if the next request already needs its short form, or if a compaction covers it first.
    """
    room = plan_input.limits.budget.at(soft_share(plan_input.limits.budget, plan_input.caller.policy)) - sent.tokens
    conversation = plan_input.conversation
    average = conversation.kept_tokens(0) / len(conversation.units)
    soon = max(message.tokens for message in conversation.body) + average
    return [coming.position for coming in view.next if soon <= coming.wait <= room]


def _calls(plan_input: PlanInput, target: SummaryTarget, cut: int) -> int:
    """Return the number of calls that a summary of body[:cut] may take. Tool results count as shortened."""
    sizes = (
        min(m.tokens, _LONGEST_RESULT) if m.role == "tool" else m.tokens for m in plan_input.conversation.body[:cut]
    )
    parts = ceil(sum(sizes) * target.calibration / (_USED_WINDOW * (target.window or plan_input.limits.budget.window)))
    return parts + 1 if parts > 1 else 1
