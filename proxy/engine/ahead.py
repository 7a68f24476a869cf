"""What is worth doing once an answer is with its client, so that the next request need not wait for it (section 3)."""

from __future__ import annotations

from math import ceil

from policies.experience import MIN_CALIBRATION_TOKENS, was_cut_off
from policies.plan import Compact, decide_ahead
from policies.record.lineage import may_rebuild
from policies.record.record import Record
from proxy.engine.case import Case, Draft, job_of, standing_of
from proxy.engine.compactions import Compactions
from proxy.engine.cooler import Cooled
from proxy.engine.excerpts import Excerpts
from proxy.engine.standing import StandingRecords
from proxy.engine.summarizer import Summarizer, SummaryTarget
from proxy.engine.trails import Trails
from proxy.gateway.usage import Usage
from proxy.models.windows import Windows
from proxy.observing.log import Log
from proxy.observing.metrics import Metrics
from proxy.records.lineages import Lineages

# Nobody waits for it: all calls together may take this many seconds.
_DEADLINE = 300.0
# From this generation on, or after a shortened one, a summary is made anew from the whole history.
_REBUILD_AT = 5
# For an estimate of its price: tokens of a shortened tool result, and the share of a window that a transcript may take.
_LONGEST_RESULT = 700
_USED_WINDOW = 0.7


class Ahead:
    """Calibrates, notes how a compaction went, and prepares what the next requests will want; one per process."""

    def __init__(
        self,
        standing: StandingRecords,
        compactions: Compactions,
        excerpts: Excerpts,
        summarizer: Summarizer,
        lineages: Lineages,
        trails: Trails,
        windows: Windows,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._standing = standing
        self._compactions = compactions
        self._excerpts = excerpts
        self._summarizer = summarizer
        self._lineages = lineages
        self._trails = trails
        self._windows = windows
        self._metrics = metrics
        self._log = log

    def learn(self, case: Case, sent: Draft, usage: Usage | None) -> None:
        """Take what the upstream billed for a draft: how it counts, how much it takes, whether it read all of it."""
        if usage is None:
            return
        self._windows.saw_bill(case.place, sent.tokens, usage.prompt_tokens)
        self._windows.saw_success(case.place, usage.prompt_tokens, usage.completion_tokens)
        self._windows.saw_answer(case.place, case.session, usage.completion_tokens)
        route, model, tenant = case.route, case.request.model, case.caller.tenant
        if sent.tokens >= MIN_CALIBRATION_TOKENS:
            self._metrics.billed(tenant, route.name, model, usage.prompt_tokens / sent.tokens)
        if was_cut_off(sent.tokens, usage.prompt_tokens):
            self._metrics.cut_off(tenant, route.name, model)
            counts = {"tokens_sent": sent.tokens, "tokens_read": usage.prompt_tokens}
            self._log.warning("cut_off", tenant=tenant, upstream=route.name, session=case.lineage, **counts)

    async def after(self, case: Case, sent: Draft, usage: Usage | None) -> None:
        """R3's double check, part 2, for a draft that was answered; `usage` is what the upstream billed."""
        if case.is_let_through:
            return
        policy = case.caller.policy
        prompt, total = _shares(case, sent, usage)
        if sent.record is not None:
            await self._lineages.showed(
                case.tag,
                sent.record,
                share=prompt,
                threshold=policy.compaction_threshold,
                history_tokens=case.request.tokens,
            )
        target = case.summary_target
        if target is None or self._summarizer.is_cooling_down(target) or sent.warning == "unstable_history":
            return
        view = sent.view or Cooled(case.conversation, {})
        if positions := _worth_an_excerpt(case, sent, view):
            await self._excerpts.prepare(case, target, positions)
        if total >= policy.soft_threshold:
            await self._compact(case, view, sent.record, target)

    async def _compact(self, case: Case, view: Cooled, used: Record | None, target: SummaryTarget) -> None:
        """Make the summary that a later request would have to wait for, unless one was made ahead already."""
        budget = case.limits.budget
        standing = await self._standing.newest(case)
        if (standing and standing.digest) != (used and used.digest):
            return
        plan = decide_ahead(view.conversation, case.limits, case.caller.policy, standing_of(standing))
        if plan is None or not await self._lineages.may_ask_model(case.tag, standing, budget, case.request.tokens):
            return
        if await self._trails.unstable(case, standing) is not None:
            return
        job = job_of(
            case,
            view,
            plan,
            standing,
            target=target,
            started=self._lineages.seen(case.first_link),
            deadline=_DEADLINE,
            rebuild=await self._is_rebuilt(case, standing, target, plan),
        )
        await self._compactions.ahead(case, job)

    async def _is_rebuilt(self, case: Case, standing: Record | None, target: SummaryTarget, plan: Compact) -> bool:
        """Whether a chain of summaries of summaries is old enough to begin anew, and it costs no more than promised."""
        if standing is None or not (standing.generation >= _REBUILD_AT or standing.making.truncated):
            return False
        return may_rebuild(
            await self._lineages.of(case.tag, standing),
            case.limits.budget,
            case.caller.policy.compaction_threshold,
            history_tokens=case.request.tokens,
            calls=_calls(case, target, plan.cut.position),
        )


def _shares(case: Case, sent: Draft, usage: Usage | None) -> tuple[float, float]:
    """Shares of M that the prompt took, and the prompt with its answer: by usage, else by our count."""
    budget, real = case.limits.budget, case.usable_input()
    if usage is None or real is None:
        estimated = budget.share(sent.tokens)
        return estimated, estimated
    billed = real.behind(int(budget.fixed * case.experience.calibration))
    return billed.share(usage.prompt_tokens), billed.share(usage.prompt_tokens + usage.completion_tokens)


def _worth_an_excerpt(case: Case, sent: Draft, view: Cooled) -> list[int]:
    """What the next batch takes, if the session goes on like this: not with the very next request, before there is an
    answer, nor once the next compaction has covered it."""
    room = case.limits.budget.at(case.caller.policy.soft_threshold) - sent.tokens
    conversation = case.conversation
    average = conversation.kept_tokens(0) / len(conversation.units)
    soon = max(message.tokens for message in conversation.body) + average
    return [coming.position for coming in view.next if soon <= coming.wait <= room]


def _calls(case: Case, target: SummaryTarget, cut: int) -> int:
    """Calls that a summary of body[:cut] may take, tool results shortened as they are for summarizers."""
    sizes = (min(m.tokens, _LONGEST_RESULT) if m.role == "tool" else m.tokens for m in case.conversation.body[:cut])
    parts = ceil(sum(sizes) * target.calibration / (_USED_WINDOW * (target.window or case.limits.budget.window)))
    return parts + 1 if parts > 1 else 1
