"""Drafting what goes upstream for one chat request: the client's bytes, or a compacted copy of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal, assert_never

from policies.assembly import Item, assemble
from policies.budget import Budget
from policies.conversation import INSTRUCTION_ROLES
from policies.cuts import legal_cuts
from policies.fingerprint import prefix_digests
from policies.half_window import Cut
from policies.ladder import SHRINK_AT_LEAST, TARGETS, Rung, StatedLimit, allowance, next_rung, refused_budget
from policies.plan import Compact, Forward, Plan, Reuse, Standing, Trigger, decide, needs_attention, tokens_with
from policies.record import Record
from proxy.checkpoints import Checkpoints
from proxy.compactor import CompactionError, Compactor, Job
from proxy.reader import ChatRequest
from proxy.routes import Route, Router
from proxy.tenants import Caller
from proxy.tokenizer import Tokenizer
from proxy.upstream.summarizer import SummaryTarget
from proxy.wire import chat
from proxy.wire.messages import describe, shortened

Outcome = Literal["none", "applied", "reused", "shadow", "bypass", "pending", "failed-open"]
Wish = Literal["off", "on", "shadow", "force"]

# Cutting to a share of the characters leaves a little more than that share of the tokens.
_CUT_MARGIN = 0.85


@dataclass(frozen=True)
class Case:
    """A counted request with everything its draft depends on."""

    request: ChatRequest
    caller: Caller
    route: Route
    router: Router
    wish: Wish

    @property
    def summary_target(self) -> SummaryTarget | None:
        return self.router.summary_target(self.caller, self.request, self.route)

    @cached_property
    def digests(self) -> list[bytes]:
        return prefix_digests(self.caller.scope, self.request.conversation.body)

    @cached_property
    def cuts(self) -> list[int]:
        return legal_cuts(self.request.conversation)

    @property
    def retries(self) -> int:
        """How often an overflow may be answered with a smaller request."""
        policy = self.caller.policy
        return min(policy.retry_on_overflow, policy.max_iterations, len(TARGETS))

    @property
    def lineage(self) -> str:
        """The name of the conversation: the first link of its chain."""
        return prefix_digests(self.caller.scope, self.request.conversation.body[:1])[-1].hex()[:16]


@dataclass(frozen=True, slots=True)
class Draft:
    """What to send: the body, its size in tokens of our estimate, and why it looks as it does."""

    body: bytes
    tokens: int
    outcome: Outcome
    reason: str
    record: Record | None = None


class Drafter:
    """Decides by the policies and carries the decision out."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        compactor: Compactor,
        tokenizer: Tokenizer,
        workers: Executor,
    ) -> None:
        self._checkpoints = checkpoints
        self._compactor = compactor
        self._tokenizer = tokenizer
        self._workers = workers

    async def first(self, case: Case) -> Draft:
        """The draft before anything was sent."""
        request, policy, budget = case.request, case.caller.policy, case.route.budget
        if request.passthrough is not None:
            return _untouched(request, "bypass", request.passthrough)
        if case.wish == "off":
            return _untouched(request, "bypass", "off")
        if budget is None:
            return _untouched(request, "none", "unknown_window")
        if case.wish != "force" and not needs_attention(request.tokens, budget, policy):
            return _untouched(request, "none", "below_floor")
        record = await self._standing(case, budget)
        plan = decide(request.conversation, budget, policy, _standing(record), force=case.wish == "force")
        if case.wish == "shadow":
            return _untouched(request, "shadow", _would(plan))
        match plan:
            case Forward():
                return _untouched(request, "none", plan.reason)
            case Reuse():
                draft = _draft(case, record, "reused", plan.reason)
            case Compact():
                draft = await self._compacted(case, budget, plan, record)
            case _:
                assert_never(plan)
        # A forced compaction of a few words, or a record made for a larger model, may weigh more than what it covers.
        heavier = draft.record is not None and draft.tokens >= request.tokens
        return _untouched(request, "none", "no_gain") if heavier else draft

    async def retry(self, case: Case, refused: Draft, stated: StatedLimit, *, attempt: int) -> Draft | None:
        """The next smaller draft after an overflow; None when there is none (docs/design.md, section 10)."""
        request, route = case.request, case.route
        if request.passthrough is not None or case.wish in ("off", "shadow"):
            return None
        budget = refused_budget(
            stated,
            sent_tokens=refused.tokens,
            window=route.window.tokens if route.window else None,
            max_output=request.max_output,
            exact=route.exact,
        )
        if budget is None:
            return None
        record = refused.record or await self._standing(case, budget)
        rung = next_rung(
            request.conversation,
            budget,
            case.caller.policy,
            _standing(record),
            attempt=attempt,
            smallest_sent=refused.tokens,
        )
        if rung.cut is not None:
            target = case.summary_target if rung.with_model else None
            job = _job(
                case,
                rung.budget,
                rung.cut,
                record,
                trigger="overflow_retry",
                must=True,
                target=target,
                before=refused.tokens,
            )
            record = await self._compactor.compact(job)
        draft = _draft(case, record, "applied", "overflow_retry")
        if rung.tail_tokens is not None:
            draft = await self._cut_contents(case, draft, record, rung)
        return draft if draft.tokens <= SHRINK_AT_LEAST * refused.tokens else None

    async def _standing(self, case: Case, budget: Budget) -> Record | None:
        """The longest checkpoint that matches this prefix: from memory where it is enough, else from the store."""
        known = self._checkpoints.recall(case.digests, case.cuts)
        if known is not None:
            size = tokens_with(case.request.conversation, _standing(known))
            if size < case.caller.policy.compaction_threshold * budget.usable:
                return known
        newer = [cut for cut in case.cuts if known is None or cut > known.covered]
        return await self._checkpoints.find(case.digests, newer) or known

    async def _compacted(self, case: Case, budget: Budget, plan: Compact, record: Record | None) -> Draft:
        target = case.summary_target
        job = _job(
            case,
            budget,
            plan.cut,
            record,
            trigger=plan.trigger,
            must=plan.must,
            target=target,
            before=plan.tokens_before,
        )
        try:
            made = await self._compactor.compact(job)
        except CompactionError as error:
            pending: Outcome = "pending" if str(error) == "pending" else "failed-open"
            return _draft(case, record, pending, str(error))
        return _draft(case, made, "applied", plan.trigger)

    async def _cut_contents(self, case: Case, draft: Draft, record: Record | None, rung: Rung) -> Draft:
        """Cut the largest contents of what is still sent, so that it weighs `rung.tail_tokens`."""
        request = case.request
        covered = record.covered if record else 0
        assert rung.tail_tokens is not None  # noqa: S101 - the caller's condition
        cuts = _contents_to_cut(request, covered, rung.tail_tokens)
        work = partial(self._shortened, request, cuts)
        replaced, saved = await asyncio.get_running_loop().run_in_executor(self._workers, work)
        body = _body(case, record, replaced)
        return replace(draft, body=body, tokens=draft.tokens - saved)

    def _shortened(self, request: ChatRequest, cuts: dict[int, float]) -> tuple[dict[int, bytes], int]:
        count = partial(self._tokenizer.count, encoding=request.encoding)
        replaced = {}
        saved = 0
        for index, share in cuts.items():
            shorter = shortened(request.message_bytes(index), share)
            message = describe(chat.decode(shorter), count)
            if message is not None and message.tokens < request.messages[index].tokens:
                replaced[index] = shorter
                saved += request.messages[index].tokens - message.tokens
        return replaced, saved


def _untouched(request: ChatRequest, outcome: Outcome, reason: str) -> Draft:
    return Draft(request.body, request.tokens, outcome, reason)


def _would(plan: Plan) -> str:
    match plan:
        case Forward():
            return plan.reason
        case Reuse():
            return "would_reuse"
        case Compact():
            return f"would_compact_{plan.cut.position}_messages"
        case _:
            assert_never(plan)


def _standing(record: Record | None) -> Standing | None:
    return None if record is None else Standing(record.covered, record.text_tokens)


def _draft(case: Case, record: Record | None, outcome: Outcome, reason: str) -> Draft:
    tokens = tokens_with(case.request.conversation, _standing(record))
    return Draft(_body(case, record, {}), tokens, outcome, reason, record)


def _body(case: Case, record: Record | None, replaced: dict[int, bytes]) -> bytes:
    request = case.request
    if record is None and not replaced:
        return request.body
    items: Sequence[Item] = range(len(request.messages))
    if record is not None:
        items = assemble(request.conversation, record.covered, record.text)
    return chat.rebuild(request.body, request.parsed, items, replaced)


def _contents_to_cut(request: ChatRequest, covered: int, total: int) -> dict[int, float]:
    """Message index -> the share of it that may stay. User messages are spared while the rest can make the room."""
    conversation = request.conversation
    head, anchor = conversation.head_length, conversation.anchor(covered)
    kept = [*([] if anchor is None else [anchor]), *range(covered, len(conversation.body))]
    sizes = {head + i: conversation.body[i].tokens for i in kept if conversation.body[i].role not in INSTRUCTION_ROLES}
    users = {i: size for i, size in sizes.items() if request.messages[i].role == "user"}
    spared = sum(users.values())
    if spared <= total // 2 and len(users) < len(sizes):
        sizes = {i: size for i, size in sizes.items() if i not in users}
        total -= spared
    cap = allowance(list(sizes.values()), total)
    return {i: cap / size * _CUT_MARGIN for i, size in sizes.items() if size > cap}


def _job(
    case: Case,
    budget: Budget,
    cut: Cut,
    parent: Record | None,
    *,
    trigger: Trigger,
    must: bool,
    target: SummaryTarget | None,
    before: int,
) -> Job:
    return Job(
        request=case.request,
        digests=case.digests,
        cut=cut,
        parent=parent,
        trigger=trigger,
        must=must,
        tokens_before=before,
        budget=budget,
        policy=case.caller.policy,
        target=target,
        tenant=case.caller.tenant,
        daily_tokens=case.caller.summary_tokens_per_day,
    )
