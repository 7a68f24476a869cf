"""Explanations: what the read-only engine would do with a request, and why."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
from msgspec.structs import replace

from policies.conversation.transcript import CountTokens
from policies.decision.cut import Cut, target_tokens
from policies.decision.plan import Compact, attention_floor, read_so_far, soft_share
from policies.price import Payoff
from policies.record import working_set
from policies.record.actions import file_changes, key_actions
from policies.record.left_out import LeftOut, not_shown
from policies.record.pins import HEAD, pins_block
from policies.record.record import Occasion, Record, RoundCounts, build, language_for
from policies.record.texts import texts_for
from policies.statements import ledger
from policies.statements.entries import Entry
from proxy.compaction.engine import Engine
from proxy.compaction.explain import explanation
from proxy.compaction.explain.fates import SentPrompt, fates, indexes_of, sent_with
from proxy.compaction.job import Job
from proxy.compaction.media import media_figures
from proxy.compaction.pins import all_pins
from proxy.compaction.plan_input import PlanInput
from proxy.compaction.planner import Decision
from proxy.compaction.prompt import Prompt, active_checkpoint
from proxy.dialects.reader import CountedRequest


@dataclass(frozen=True, slots=True)
class Preview:
    """The plan for a request and the prompt that would be sent, by the read-only engine.

    job:    the compaction that is due; None for none.
    prompt: has the tokens of the largest record that the job may make.
    """

    plan_input: PlanInput
    decision: Decision
    prompt: Prompt
    job: Job | None = None

    @property
    def sent(self) -> SentPrompt:
        """Return the prompt as `fates` reads it."""
        if self.job is None:
            return sent_with(self.prompt)
        plan = self.job.plan
        return SentPrompt(self.prompt, plan.cut.position, self.decision.record, plan)

    @property
    def record_tokens(self) -> int | None:
        """Return the tokens of the record in the prompt; None without one."""
        if self.job is not None:
            return _most_record_tokens(self.job)
        return self.prompt.record.text_tokens if self.prompt.record else None

    @property
    def payoff(self) -> Payoff | None:
        """Return the estimate for a compaction or short forms that no earlier request had."""
        if self.job is not None:
            return self.job.plan.payoff
        view = self.prompt.view
        return view.payoff if view is not None and self.prompt.copy is not None else None

    @property
    def reading(self) -> explanation.Reading | None:
        """Return the tokens read so far that a compaction would remove; None without a policy or a price for that."""
        plan_input, policy, view = self.plan_input, self.plan_input.caller.policy, self.decision.view
        if not policy.economy or plan_input.route.price is None:
            return None
        conversation, budget = view.conversation if view else plan_input.conversation, plan_input.limits.budget
        target, standing = target_tokens(conversation, budget, policy), active_checkpoint(self.decision.record)
        progress = read_so_far(conversation, budget, standing, plan_input.route.price, target)
        if progress is None:
            return None
        return explanation.Reading(progress.read, progress.requests, round(progress.times, 1), policy.economy)

    @property
    def media(self) -> explanation.MediaLeftOut | None:
        """Return the figures of media if some would be left out; else None."""
        view, figures = self.prompt.view, media_figures(self.plan_input, self.prompt)
        if view is None or figures is None or not view.left_out:
            return None
        limits = figures.max_bytes, figures.max_pictures, figures.source, figures.learned_at
        return explanation.MediaLeftOut(figures.received, len(view.left_out), figures.bytes, *limits)


async def explain(engine: Engine, plan_input: PlanInput, received: CountedRequest) -> explanation.Explanation:
    """Return what would be done with a request now, and why. Nothing is sent or stored.

    received: the request as received. The plan input's may begin after a separator.
    """
    engine = engine.read_only()
    preview = await preview_request(engine, plan_input)
    # The explanation of a request that is left alone shows the plan of mode `on`.
    prompt = (
        preview.prompt
        if preview.plan_input.mode == plan_input.mode
        else await engine.prompt_builder.place_and_build(plan_input)
    )
    verdict = explanation.Verdict(prompt.outcome, prompt.reason)
    count = partial(engine.tokenizer.count, encoding=plan_input.request.encoding)
    explained = await engine.workers.run(_explanation, preview, received, verdict, count)
    if preview.decision.record is None:
        return explained
    lineage = await engine.sessions.lineages.of(preview.plan_input.chain.tag, preview.decision.record)
    return msgspec.structs.replace(explained, lineage=lineage)


async def preview_request(engine: Engine, plan_input: PlanInput) -> Preview:
    """Return what would be done with a request in mode `on`, or in mode `force` if that is its mode."""
    engine = engine.read_only()
    plan_input = replace(plan_input, mode="on") if plan_input.mode in ("off", "shadow") else plan_input
    plan_input = await engine.prompt_builder.place(plan_input)
    decision = await engine.prompt_builder.decision(plan_input)
    if not isinstance(decision.plan, Compact):
        prompt = await engine.prompt_builder.build(plan_input, decision)
        prompt = await engine.prompt_builder.with_pins(plan_input, engine.prompt_builder.fit_output(plan_input, prompt))
        return Preview(plan_input, decision, prompt)
    job = await engine.builder.fit(
        engine.prompt_builder.job(plan_input, decision.cooled, decision.plan, decision.record)
    )
    tokens = job.cooled.conversation.fixed_tokens + job.plan.cut.kept + _most_record_tokens(job)
    return Preview(plan_input, decision, Prompt(b"", tokens, "applied", job.plan.trigger, view=job.cooled), job)


def _most_record_tokens(job: Job) -> int:
    """Return the tokens that the record of a job takes at most."""
    plan = job.plan
    return min(plan.budget.replacing, plan.tokens_before - job.cooled.conversation.fixed_tokens - plan.cut.kept)


def _explanation(
    preview: Preview, received: CountedRequest, verdict: explanation.Verdict, count: CountTokens
) -> explanation.Explanation:
    plan_input, record = preview.plan_input, preview.decision.record
    window, budget, policy = plan_input.route.window, plan_input.limits.budget, plan_input.caller.policy
    expected = explanation.Verdict(preview.prompt.outcome, preview.prompt.reason)
    real = plan_input.limits.real
    indexes = indexes_of(plan_input, received)
    pinned, actions, files = _carried_entries(preview, count)
    return explanation.Explanation(
        model=plan_input.request.settings.model,
        policy=plan_input.caller.policy_name,
        outcome=verdict.outcome,
        reason=verdict.reason,
        dialect=plan_input.request.dialect.name,
        would=None if verdict == expected else expected,
        window=None if window is None else explanation.ExplainedWindow(window.tokens, window.source),
        usable=budget.usable,
        thresholds=explanation.Thresholds(
            budget.at(attention_floor(policy, is_known=plan_input.limits.known)),
            budget.at(soft_share(budget, policy)),
            budget.at(policy.compaction_threshold),
            None if real is None else real.at(policy.overflow_threshold),
        ),
        tokens_received=plan_input.request.received_tokens,
        tokens_sent=preview.prompt.tokens,
        tokens_tools=plan_input.request.tools_tokens,
        record_tokens=preview.record_tokens,
        payoff=preview.payoff,
        reading=preview.reading,
        media=preview.media,
        cut=None if preview.job is None else _cut(plan_input, preview.job.plan.cut, indexes),
        checkpoint=None if record is None else _checkpoint(record),
        messages=list(fates(plan_input, received, preview.sent, indexes)),
        recalled=list(_recalled_passages(preview, indexes)),
        shortened=list(_shortened_results(preview, indexes)),
        restored=list(_restored_texts(preview, indexes)),
        unresolved=0 if preview.prompt.view is None else preview.prompt.view.unresolved,
        pins=list(_pinned_texts(preview, indexes, count)),
        pinned=[
            explanation.Pinned(entry.kind, _index(plan_input, indexes, entry.position), entry.text) for entry in pinned
        ],
        left_out=[
            explanation.LeftOutText(text.kind, _index(plan_input, indexes, text.position), text.text)
            for text in _left_out(preview, count)
        ],
        actions=actions,
        files=files,
    )


def _index(plan_input: PlanInput, indexes: Sequence[int], position: int) -> int | None:
    """Return the index of a message by its position in the conversation; None if the client left it out."""
    relative = plan_input.relative(position) if position >= 0 else None
    return None if relative is None else indexes[plan_input.conversation.head_length + relative]


def _cut(plan_input: PlanInput, cut: Cut, indexes: Sequence[int]) -> explanation.CutMade:
    index = indexes[plan_input.conversation.head_length + cut.position]
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


def _recalled_passages(preview: Preview, indexes: Sequence[int]) -> Iterator[explanation.RecalledPassages]:
    """Yield the quotations that would be sent. Those after a record that is not made yet are unknown."""
    view = preview.prompt.view
    if view is not None and preview.prompt.record is not None:
        for index, quotation in sorted(view.quotations.items()):
            yield explanation.RecalledPassages(indexes[index], len(quotation.passages), quotation.tokens)


def _shortened_results(preview: Preview, indexes: Sequence[int]) -> Iterator[explanation.ShortenedResult]:
    view = preview.prompt.view
    for shortened in view.shortened if view is not None else ():
        yield explanation.ShortenedResult(indexes[shortened.message], shortened.tokens)


def _restored_texts(preview: Preview, indexes: Sequence[int]) -> Iterator[explanation.RestoredText]:
    """Yield the texts that would be put back. Before a record is made, they are those put back now."""
    view = preview.prompt.view
    for restored in view.restored if view is not None else ():
        yield explanation.RestoredText(indexes[restored.pointer], indexes[restored.source], restored.tokens)


def _pinned_texts(preview: Preview, indexes: Sequence[int], count: CountTokens) -> Iterator[explanation.PinnedText]:
    """Yield the pinned texts. Before a record is made, they are those that it has room for."""
    plan_input, job, pins = preview.plan_input, preview.job, preview.prompt.pins
    if job is not None:
        texts = texts_for(language_for(job.parent, job.span))
        block = pins_block(job.span.pins.held, texts, job.plan.budget.pins, count)
        missing = {pin.key for pin in block.pins if not pin.text}
    else:
        missing = {pin.key for pin in pins.missing} if pins is not None else set()
    for pin in all_pins(plan_input):
        index = None if pin.position == HEAD else _index(plan_input, indexes, pin.position)
        source = plan_input.allowed_text(pin.source)
        yield explanation.PinnedText(pin.origin, index, source, pin.key not in missing)


def _left_out(preview: Preview, count: CountTokens) -> list[LeftOut]:
    """Return what the record leaves out: the one in use, else the job's as built without a model."""
    job, record = preview.job, preview.prompt.record
    if job is not None:
        occasion = Occasion(job.plan.trigger, job.plan.tokens_before, job.plan.cut.kept, "", job.started, job.started)
        record = build(job.context(count), None, occasion)
    return not_shown(record.left_out) if record is not None else []


def _carried_entries(preview: Preview, count: CountTokens) -> tuple[list[Entry], int, int]:
    """Return the user's statements in the record, and its numbers of tool calls and changed files."""
    plan_input, record, job = preview.plan_input, preview.prompt.record, preview.job
    if job is not None:
        entries, utterances, budget, record = job.statements.entries, job.span.utterances, job.plan.budget, job.parent
    elif record is not None:
        entries, utterances, budget = list(record.entries), (), plan_input.limits.budget
    else:
        return [], 0, 0
    repeated = plan_input.conversation.anchors(preview.sent.covered)
    most = min(budget.record, plan_input.caller.policy.ledger.max_tokens)
    pinned = ledger.fit([entry for entry in entries if entry.position not in repeated], most, count)
    actions = len(record.actions if record else ()) + len(key_actions(utterances))
    return pinned, actions, len(file_changes(record.files if record else (), utterances))
