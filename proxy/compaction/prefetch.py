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


def is_worth_following(case: PlanInput, sent: Prompt) -> bool:
    """Return True if a prompt is large enough to prepare something for the next request.

    Also if its record is not needed yet, since its use is noted.
    """
    limits, policy = case.limits, case.caller.policy
    if limits.real is None:
        return False
    if sent.record is not None and sent.record.making.trigger == "background":
        return True
    if case.is_far_below(sent.tokens):
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

    async def after(self, case: PlanInput, sent: Prompt, usage: Usage | None) -> None:
        """Prepare for the next request after the response to a prompt (R3's double check, part 2).

        usage: the tokens that the upstream billed.
        """
        if case.is_let_through:
            return
        # A request below the floor was sent without reading the store.
        case = replace(case, chain=await self._sessions.epochs.place(case.chain, stores=True))
        policy = case.caller.policy
        prompt, total = _shares(case, sent, usage)
        if sent.record is not None:
            await self._sessions.lineages.note_share(
                case.chain.tag,
                sent.record,
                share=prompt,
                threshold=policy.compaction_threshold,
                history_tokens=case.request.tokens,
            )
        target = case.summarizer
        if target is None or self._summarizer.is_cooling_down(target) or sent.warning == "unstable_history":
            return
        view = sent.view or PromptView(case.conversation)
        if positions := _worth_an_excerpt(case, sent, view):
            await self._excerpt_writer.prepare(case, target, positions)
        limits, standing = case.limits, active_checkpoint(sent.record)
        plan = decide_economy(view.conversation, limits, policy, standing, case.route.price)
        if plan is None and total >= soft_share(limits.budget, policy):
            plan = decide_ahead(view.conversation, limits, policy, standing)
        if plan is not None:
            await self._compact(case, view, plan, sent.record, target)

    async def _compact(
        self, case: PlanInput, view: PromptView, plan: Compact, in_use: Record | None, target: SummaryTarget
    ) -> None:
        """Make a summary that no request waits for, unless a newer one than the prompt's exists."""
        budget = case.limits.budget
        standing = await self._checkpoints.newest(case)
        if (standing and standing.digest) != (in_use and in_use.digest):
            return
        if not await self._sessions.lineages.may_ask_model(case.chain.tag, standing, budget, case.request.tokens):
            return
        if await self._stability.lost_since(case, standing) is not None:
            return
        started = self._sessions.lineages.first_seen(case.chain.first_link)
        rebuild = await self._is_rebuilt(case, standing, target, plan)
        job = Job(case, view, plan, standing or case.carried, target, started, _DEADLINE, rebuild)
        await self._compactor.prefetch(job)

    async def _is_rebuilt(self, case: PlanInput, standing: Record | None, target: SummaryTarget, plan: Compact) -> bool:
        """Return True if enough summaries of summaries follow each other, and a new one is affordable."""
        if (
            standing is None
            or case.carried is not None
            or not (standing.generation >= _REBUILD_AT or standing.making.truncated)
        ):
            return False
        return may_rebuild(
            await self._sessions.lineages.of(case.chain.tag, standing),
            case.limits.budget,
            case.caller.policy.compaction_threshold,
            history_tokens=case.request.tokens,
            calls=_calls(case, target, plan.cut.position),
        )


def _shares(case: PlanInput, sent: Prompt, usage: Usage | None) -> tuple[float, float]:
    """Return the shares of M of the prompt, and of prompt and response: by usage, else by our estimate."""
    budget, real = case.limits.budget, case.usable_input()
    if usage is None or real is None:
        estimated = budget.share(sent.tokens)
        return estimated, estimated
    billed = real.with_fixed(int(budget.fixed * case.calibration))
    return billed.share(usage.prompt_tokens), billed.share(usage.prompt_tokens + usage.completion_tokens)


def _worth_an_excerpt(case: PlanInput, sent: Prompt, view: PromptView) -> list[int]:
    """Return the positions of messages of the next batch that are likely to be sent in a short form.

    A message is not likely to if the next request already needs its short form, or if a compaction covers it first.
    """
    room = case.limits.budget.at(soft_share(case.limits.budget, case.caller.policy)) - sent.tokens
    conversation = case.conversation
    average = conversation.kept_tokens(0) / len(conversation.units)
    soon = max(message.tokens for message in conversation.body) + average
    return [coming.position for coming in view.next if soon <= coming.wait <= room]


def _calls(case: PlanInput, target: SummaryTarget, cut: int) -> int:
    """Return the number of calls that a summary of body[:cut] may take. Tool results count as shortened."""
    sizes = (min(m.tokens, _LONGEST_RESULT) if m.role == "tool" else m.tokens for m in case.conversation.body[:cut])
    parts = ceil(sum(sizes) * target.calibration / (_USED_WINDOW * (target.window or case.limits.budget.window)))
    return parts + 1 if parts > 1 else 1
