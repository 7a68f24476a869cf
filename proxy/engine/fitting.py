"""The cut of a compaction, moved to what its record leaves room for (docs/design.md, "The cut")."""

from dataclasses import replace

from policies.plan import fit_cut, may_be_fitted
from policies.record import record as records
from policies.transcript import CountTokens
from proxy.engine.job import Job


def fitted_job(job: Job, count: CountTokens) -> Job:
    """The job with the cut that its record leaves room for, by what the record for the newest cut would take.

    That is read off the covered messages alone, and what a model would write counts with what it is asked for: every
    replica comes to the same cut. A record that stands in for a model's summary that is late is to buy time: it covers
    what was planned.
    """
    if job.plan.target is None or (job.target is None and job.plan.with_model and job.case.summarizer is not None):
        return job
    if not may_be_fitted(job.plan, job.cooled.conversation, job.policy):
        return job
    settings, budget = job.policy.summarizer, job.plan.budget
    summary = None if job.target is None else min(settings.target_tokens or budget.summary, budget.record)
    weight = records.weigh(
        job.span,
        job.parent,
        job.statements,
        summary=summary,
        budget=budget,
        settings=job.policy.ledger,
        segments=settings.history_segments,
        kept=job.kept,
        count=count,
        most_names=job.most_names,
        names=job.names,
        judge=job.judge,
    )
    plan = fit_cut(job.plan, job.cooled.conversation, job.policy, weight)
    return job if plan is job.plan else replace(job, plan=replace(plan, target=None))
