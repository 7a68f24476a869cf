"""What would be done with one request, and why: nothing is sent anywhere, and nothing is written to the store."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
from msgspec.structs import replace

from policies.half_window import Cut
from policies.ledger import ledger
from policies.ledger.entries import Entry
from policies.plan import Compact, Forward, Reuse, soft_share
from policies.price import Payoff
from policies.record import working_set
from policies.record.actions import file_changes, key_actions
from policies.record.record import Record, RoundCounts
from policies.transcript import CountTokens
from proxy.dialects.reader import CountedRequest
from proxy.engine.case import CompactionContext
from proxy.engine.decider import Decider, Decision, bypass_reason, onlooker
from proxy.engine.draft import Draft, untouched_draft
from proxy.engine.explaining import explanation
from proxy.engine.explaining.fates import SentPrompt, fates, indexes_of
from proxy.engine.fitting import fitted_job
from proxy.engine.job import Job
from proxy.engine.media import media_figures
from proxy.engine.quoter import Quoter
from proxy.engine.standing import StandingRecords
from proxy.memory import Cache, Memory
from proxy.models.tokenizer import Tokenizer
from proxy.records.sessions import Sessions
from proxy.runtime.workers import Workers

# For what is looked at only, as when tokens are counted: a part of what serves requests.
_REMEMBERED_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Outlook:
    """What would be sent. covered: messages that a record stands for; record_tokens: what that weighs; would: what
    shadow mode tells."""

    draft: Draft
    decision: Decision
    covered: int = 0
    record_tokens: int | None = None
    would: str = ""

    @property
    def plan(self) -> Compact | None:
        return self.decision.plan if isinstance(self.decision.plan, Compact) else None

    @property
    def payoff(self) -> Payoff | None:
        if self.plan is not None:
            return self.plan.payoff
        view = self.draft.view
        return view.payoff if view is not None and self.draft.copy is not None else None

    def media(self, case: CompactionContext) -> explanation.MediaLeftOut | None:
        view, told = self.draft.view, media_figures(case, self.draft)
        if view is None or told is None or not view.left_out:
            return None
        most = told.max_bytes, told.max_pictures, told.source, told.learned_at
        return explanation.MediaLeftOut(told.received, len(view.left_out), told.bytes, *most)

    @property
    def record(self) -> Record | None:
        return self.decision.record

    @property
    def sent(self) -> SentPrompt:
        return SentPrompt(self.draft, self.covered, self.record, self.plan)


class Explainer:
    """Explains requests; one per process."""

    def __init__(self, sessions: Sessions, tokenizer: Tokenizer, workers: Workers) -> None:
        # Its own: what is only looked at must not count as done, nor push out what is.
        memory = Memory(_REMEMBERED_BYTES)
        self._sessions = sessions.read_only()
        self._standing = StandingRecords(self._sessions)
        self._tokenizer = tokenizer
        self._workers = workers
        self._quoter = Quoter(
            tokenizer,
            workers,
            lambda _: None,
            Cache(memory, "quotations"),
            Cache(memory, "indexes"),
            Cache(memory, "sent"),
        )

    async def explain(self, case: CompactionContext, received: CountedRequest) -> explanation.Explanation:
        """`received` is the request as it came; the case's may begin behind a separator."""
        case = await self._place_case(case)
        live = replace(case, mode="on") if case.mode in ("off", "shadow") else case
        count = partial(self._tokenizer.count, encoding=case.request.encoding)
        decision = await self._decider().decide(live)
        outlook = _outlook(live, await self._fit_cut(live, decision, count), decision.would)
        explained = await self._workers.run(_explanation, case, received, outlook, count)
        if outlook.record is None:
            return explained
        lineage = await self._sessions.lineages.of(case.chain.tag, outlook.record)
        return msgspec.structs.replace(explained, lineage=lineage)

    async def due(self, case: CompactionContext) -> Job | None:
        """The compaction that is due for it; None where none is."""
        case = await self._place_case(case)
        live = replace(case, mode="on") if case.mode in ("off", "shadow") else case
        count = partial(self._tokenizer.count, encoding=case.request.encoding)
        decision = await self._fit_cut(live, await self._decider().decide(live), count)
        return self._job(live, decision, decision.plan) if isinstance(decision.plan, Compact) else None

    async def _fit_cut(self, case: CompactionContext, decision: Decision, count: CountTokens) -> Decision:
        """The decision, with the cut that the record leaves room for."""
        if not isinstance(decision.plan, Compact):
            return decision
        job = await self._workers.run(fitted_job, self._job(case, decision, decision.plan), count)
        return dataclasses.replace(decision, plan=job.plan)

    def _job(self, case: CompactionContext, decision: Decision, plan: Compact) -> Job:
        target = case.summarizer if plan.with_model else None
        started, parent = self._sessions.lineages.first_seen(case.chain.first_link), decision.record or case.carried
        return Job(case, decision.cooled, plan, parent, target, started, case.caller.policy.summarizer.timeout)

    def without_store(self) -> "Explainer":
        """One that looks at no store, as if nothing had been stored."""
        return Explainer(self._sessions.without_store(), self._tokenizer, self._workers)

    async def standing(self, case: CompactionContext) -> Draft:
        """What is sent for a request with what there is already."""
        case = await self._place_case(case)
        decision = await self._decider().decide(case)
        if case.mode == "shadow" and decision.view is not None:
            return untouched_draft(case.request, "shadow", decision.would)
        plan = decision.plan
        if isinstance(plan, Compact):
            plan = Forward("counted") if plan.standing is None else Reuse(plan.standing, "counted")
        return decision.standing_draft(case, plan)

    async def _place_case(self, case: CompactionContext) -> CompactionContext:
        return replace(case, chain=await self._sessions.epochs.place(case.chain, stores=False))

    def _decider(self) -> Decider:
        """What is not frozen yet may look otherwise when it is: a cooler must not remember it."""
        return onlooker(self._sessions, self._standing, self._quoter, self._tokenizer, self._workers, Memory())


def _outlook(case: CompactionContext, decision: Decision, would: str) -> _Outlook:
    """What `Drafter.first` would come to, with an estimate of the record where one is to be made."""
    plan, record = decision.plan, decision.record
    if isinstance(plan, Compact):
        view = decision.cooled
        rest = view.conversation.fixed_tokens + plan.cut.kept
        record_tokens = min(plan.budget.injected, plan.tokens_before - rest)
        draft = Draft(b"", rest + record_tokens, "applied", plan.trigger, view=view)
        return _Outlook(draft, decision, plan.cut.position, record_tokens, would)
    draft = decision.standing_draft(case, plan)
    if draft.record is None or record is None:
        return _Outlook(draft, decision, would=would)
    return _Outlook(draft, decision, record.covered, record.text_tokens, would)


def _explanation(
    case: CompactionContext, received: CountedRequest, outlook: _Outlook, count: CountTokens
) -> explanation.Explanation:
    window, budget, policy = case.route.window, case.limits.budget, case.caller.policy
    expected = explanation.Verdict(outlook.draft.outcome, outlook.draft.reason)
    verdict = _verdict(case, outlook, expected)
    real = case.limits.real
    indexes = indexes_of(case, received)
    pinned, actions, files = _carried_entries(case, outlook, count)
    head = case.conversation.head_length
    return explanation.Explanation(
        model=case.request.settings.model,
        policy=case.caller.policy_name,
        outcome=verdict.outcome,
        reason=verdict.reason,
        dialect=case.request.dialect.name,
        would=None if verdict == expected else expected,
        window=None if window is None else explanation.ExplainedWindow(window.tokens, window.source),
        usable=budget.usable,
        thresholds=explanation.Thresholds(
            budget.at(policy.apply_floor),
            budget.at(soft_share(budget, policy)),
            budget.at(policy.compaction_threshold),
            None if real is None else real.at(policy.overflow_threshold),
        ),
        tokens_received=case.request.received_tokens,
        tokens_sent=outlook.draft.tokens,
        tokens_tools=case.request.tools_tokens,
        record_tokens=outlook.record_tokens,
        payoff=outlook.payoff,
        media=outlook.media(case),
        cut=None if outlook.plan is None else _cut(outlook.plan.cut, indexes[head + outlook.plan.cut.position]),
        checkpoint=None if outlook.record is None else _checkpoint(outlook.record),
        messages=list(fates(case, received, outlook.sent, indexes)),
        recalled=list(_recalled_passages(outlook, indexes)),
        pinned=[explanation.Pinned(entry.kind, _index(case, indexes, entry.position), entry.text) for entry in pinned],
        actions=actions,
        files=files,
    )


def _verdict(case: CompactionContext, outlook: _Outlook, expected: explanation.Verdict) -> explanation.Verdict:
    if (reason := bypass_reason(case)) is not None:
        return explanation.Verdict("bypass", reason)
    if case.mode == "shadow" and outlook.decision.view is not None:
        return explanation.Verdict("shadow", outlook.would)
    return expected


def _index(case: CompactionContext, indexes: Sequence[int], position: int) -> int | None:
    """Of a message of the body by its place in the conversation; None where the client sends it no more."""
    place = case.relative(position)
    return None if place is None else indexes[case.conversation.head_length + place]


def _cut(cut: Cut, index: int) -> explanation.CutMade:
    rounds = RoundCounts(cut.units_total, cut.units_total - cut.units_kept, cut.units_kept)
    return explanation.CutMade(index, cut.level, cut.strategy, cut.adjustment, cut.adjustment_delta, rounds)


def _checkpoint(record: Record) -> explanation.Checkpoint:
    return explanation.Checkpoint(
        digest=record.digest[:16],
        covered=record.covered,
        tokens=record.text_tokens,
        generation=record.generation,
        trigger=record.making.trigger,
        title=record.title,
        timeline=tuple(segment.text for segment in record.segments),
        names=len(working_set.unpack_names(record.uses)),
    )


def _recalled_passages(outlook: _Outlook, indexes: Sequence[int]) -> Iterator[explanation.RecalledPassages]:
    """Nothing for a record that is not made yet: what it will hold is not known."""
    view = outlook.draft.view
    if view is not None and outlook.plan is None and outlook.draft.record is not None:
        for index, one in sorted(view.quotations.items()):
            yield explanation.RecalledPassages(indexes[index], len(one.passages), one.tokens)


def _carried_entries(case: CompactionContext, outlook: _Outlook, count: CountTokens) -> tuple[list[Entry], int, int]:
    """What the record shows of the user's statements, and how many tool calls and changed files it knows of."""
    record, plan = outlook.record, outlook.plan
    if plan is not None:
        job = Job(case, outlook.decision.cooled, plan, record or case.carried, target=None, started=0.0, deadline=0.0)
        said, spoken, budget = job.statements.entries, job.span.utterances, plan.budget
    elif outlook.covered and record is not None:
        said, spoken, budget = list(record.entries), (), case.limits.budget
    else:
        return [], 0, 0
    repeated = case.conversation.anchors(outlook.covered)
    most = min(budget.record, case.caller.policy.ledger.max_tokens)
    pinned = ledger.fit([entry for entry in said if entry.position not in repeated], most, count)
    actions = len(record.actions if record else ()) + len(key_actions(spoken))
    return pinned, actions, len(file_changes(record.files if record else (), spoken))
